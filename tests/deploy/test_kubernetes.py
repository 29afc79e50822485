"""Kubernetes: objects that an API server takes, of pods that run vLLM as it must be run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from specserve.deploy.deployment import Deployment
from tests.deploy.conftest import ROOT, files_of, made_of, objects_of
from tests.deploy.schema import kubernetes_problems

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"
DIGEST = "vllm/vllm-openai:v0.33.0@sha256:" + "0123456789abcdef" * 4


def pod_of(made: Deployment, kind: str = "Deployment", name: str | None = None) -> dict[str, Any]:
    objects = objects_of(files_of("kubernetes", made))
    spec: dict[str, Any] = objects[f"{kind}/{name or made.name}"]["spec"]["template"]["spec"]
    return spec


def server_of(made: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = pod_of(made)["containers"][0]
    return found


PROFILES = sorted(file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_"))


@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_every_object_of_every_shipped_profile_is_one_that_an_api_server_takes(file: Any) -> None:
    objects = objects_of(
        {
            path: text
            for path, text in files_of("kubernetes", made_of(file)).items()
            if "kustomization" not in path
        }
    )
    assert {document["kind"] for document in objects.values()} >= {
        "Deployment", "Service", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor", "PrometheusRule",
    }  # fmt: skip
    assert {
        name: problems for name, document in objects.items() if (problems := kubernetes_problems(document))
    } == {}


def test_the_schemas_refuse_what_an_api_server_would(llama: Deployment) -> None:
    good = objects_of(files_of("kubernetes", llama))["Deployment/llama70b-8b"]
    changes: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda spec: spec.update(enableServiceLink=False),
        lambda spec: spec["containers"][0].update(args="one text"),
        lambda spec: spec["containers"][0]["startupProbe"].update(failureThreshold="402"),
    )
    for change in changes:
        bad = copy.deepcopy(good)
        change(bad["spec"]["template"]["spec"])
        assert kubernetes_problems(bad)


def test_what_kubernetes_would_replace_in_an_argument_is_doubled() -> None:
    made = made_of(LLAMA, 'engine.tokenizer_mode="$(HOME)"', 'server.served_model_name="a$(b)"')
    assert "a$$(b)" in server_of(made)["args"]


def test_nothing_has_privileges_and_only_volumes_can_be_written(llama: Deployment) -> None:
    spec = pod_of(llama)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["containers"], *spec["initContainers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    writable = {
        mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"] if not mount.get("readOnly")
    }
    home = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}["HOME"]
    assert {home, "/tmp", "/cache", "/dev/shm"} == writable


def test_the_user_is_one_that_the_image_knows(llama: Deployment, demo: Deployment) -> None:
    assert (pod_of(llama)["securityContext"]["runAsUser"], llama.image.home) == (2000, "/home/vllm")
    assert (pod_of(demo)["securityContext"]["runAsUser"], demo.image.home) == (1000, "/home/ubuntu")


def test_no_pod_is_ready_without_target_and_draft(llama: Deployment, demo: Deployment) -> None:
    staged = {container["name"]: container["command"] for container in pod_of(llama)["initContainers"]}
    assert list(staged) == ["stage-target", "stage-draft"]
    assert staged["stage-draft"][:3] == ["hf", "download", "meta-llama/Llama-3.1-8B-Instruct"]
    assert "initContainers" not in pod_of(demo)


def test_the_server_asks_the_hub_for_nothing_once_it_is_staged() -> None:
    def offline(*settings: str) -> bool:
        env = {item["name"]: item.get("value") for item in server_of(made_of(LLAMA, *settings))["env"]}
        return env.get("HF_HUB_OFFLINE") == "1"

    assert offline()
    assert not offline("engine.trust_remote_code=true")
    assert not offline("engine.enable_lora=true")


def test_the_start_may_take_as_long_as_the_weights_need() -> None:
    probe = server_of(made_of(LLAMA))["startupProbe"]  # 157 GB are published of the pair
    assert probe["failureThreshold"] * probe["periodSeconds"] == 2220  # at 100 MB/s, and ten minutes
    unknown = server_of(made_of(LLAMA, "target.model=org/nobody-knows-this"))["startupProbe"]
    assert unknown["failureThreshold"] == 120


def test_a_rollout_may_take_as_long_as_the_download_and_the_start(demo: Deployment) -> None:
    def limit_s(made: Deployment) -> int:
        found = objects_of(files_of("kubernetes", made))[f"Deployment/{made.name}"]["spec"]
        return int(found["progressDeadlineSeconds"])

    assert limit_s(made_of(LLAMA)) == 1620 + 2220 + 1800
    assert limit_s(demo) == demo.start_limit_s + 1800  # whose models lie in a claim


def test_requests_may_end_before_the_kill() -> None:
    made = made_of(LLAMA, "server.shutdown_timeout_s=90")
    assert pod_of(made)["terminationGracePeriodSeconds"] == 120
    assert server_of(made)["lifecycle"]["preStop"]["exec"]["command"][0] == "sleep"


def test_accelerators_are_asked_for_and_the_image_can_be_pinned(llama: Deployment, demo: Deployment) -> None:
    assert server_of(llama)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert "limits" not in server_of(demo)["resources"]
    assert server_of(demo)["image"] == "vllm/vllm-openai-cpu:v0.33.0"
    pinned = pod_of(made_of(LLAMA, image=DIGEST))
    assert {one["image"] for one in (*pinned["containers"], *pinned["initContainers"])} == {DIGEST}


def test_secrets_are_named_and_never_written(llama: Deployment) -> None:
    env = {item["name"]: item.get("valueFrom") for item in server_of(llama)["env"]}
    assert env["VLLM_API_KEY"] == {"secretKeyRef": {"name": "llama70b-8b-api-key", "key": "VLLM_API_KEY"}}
    tokens = {item["name"]: item.get("valueFrom") for item in pod_of(llama)["initContainers"][0]["env"]}
    assert tokens["HF_TOKEN"] == {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}}


def test_every_object_says_which_profile_it_is(llama: Deployment) -> None:
    for name, document in objects_of(files_of("kubernetes", llama)).items():
        if document["kind"] not in ("Kustomization", "Component"):
            labels = document["metadata"]["labels"]
            assert labels["specserve/fingerprint"] == llama.plan.fingerprint[:16], name
            assert labels["app.kubernetes.io/version"] == "0.33.0", name
            assert document["metadata"]["annotations"]["specserve/fingerprint"] == llama.plan.fingerprint, (
                name
            )


def test_several_nodes_are_one_group_that_lives_and_dies_together(two_nodes: Deployment) -> None:
    files = files_of("kubernetes", two_nodes)
    objects = objects_of({path: text for path, text in files.items() if "kustomization" not in path})
    assert {
        name: problems for name, document in objects.items() if (problems := kubernetes_problems(document))
    } == {}
    template = objects["LeaderWorkerSet/llama70b-8b"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (
        template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    assert leader["args"][-8:] == [
        "--nnodes", "2", "--node-rank", "0", "--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", "29501",
    ]  # fmt: skip
    assert worker["args"][-9:] == [
        "--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)",
        "--master-port", "29501", "--headless",
    ]  # fmt: skip
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert (
        objects["Service/llama70b-8b"]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    )
    ranks = objects["NetworkPolicy/llama70b-8b"]["spec"]["ingress"][1]
    assert ranks == {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "llama70b-8b"}}}]}


def test_one_node_answers_on_one_port_only(llama: Deployment) -> None:
    policy = objects_of(files_of("kubernetes", llama))["NetworkPolicy/llama70b-8b"]["spec"]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "http"}]]


def test_only_the_node_that_answers_gets_the_key() -> None:
    two = ("hardware.nodes=2", "target.pipeline_parallel_size=2", "server.api_key_env=LLAMA_KEY")
    objects = objects_of({"x": files_of("kubernetes", made_of(LLAMA, *two))["leaderworkerset.yaml"]})
    template = objects["LeaderWorkerSet/llama70b-8b"]["spec"]["leaderWorkerTemplate"]
    names = [
        {entry["name"] for entry in template[each]["spec"]["containers"][0]["env"]}
        for each in ("leaderTemplate", "workerTemplate")
    ]
    assert names[0] - names[1] == {"VLLM_API_KEY"}
