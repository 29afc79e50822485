"""Kubernetes: objects that an API server takes, of pods that run vLLM as it must be run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.deploy.deployment import Deployment
from tests.deploy.conftest import PROFILES, ROOT, files_of, made_of, objects_of
from tests.deploy.schema import kubernetes_problems

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"
DIGEST = "vllm/vllm-openai:v0.33.0@sha256:" + "0123456789abcdef" * 4


def objects(made: Deployment) -> dict[str, Any]:
    """The objects that reach an API server."""
    files = files_of("kubernetes", made)
    return objects_of({path: text for path, text in files.items() if "kustomization" not in path})


def pod_of(made: Deployment) -> dict[str, Any]:
    spec: dict[str, Any] = objects(made)[f"Deployment/{made.name}"]["spec"]["template"]["spec"]
    return spec


def server_of(made: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = pod_of(made)["containers"][0]
    return found


@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_every_object_of_every_shipped_profile_is_one_that_an_api_server_takes(file: Path) -> None:
    found = objects(made_of(file))
    kinds = {
        "Deployment",
        "Service",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodMonitor",
        "PrometheusRule",
    }
    assert {document["kind"] for document in found.values()} == kinds
    problems = {name: kubernetes_problems(document) for name, document in found.items()}
    assert not any(problems.values()), problems


def test_the_schemas_refuse_what_an_api_server_would(llama: Deployment) -> None:
    good = objects(llama)["Deployment/llama70b-8b"]
    changes: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda spec: spec.update(enableServiceLink=False),
        lambda spec: spec["containers"][0].update(args="one text"),
        lambda spec: spec["containers"][0]["startupProbe"].update(failureThreshold="402"),
    )
    for change in changes:
        bad = copy.deepcopy(good)
        change(bad["spec"]["template"]["spec"])
        assert kubernetes_problems(bad)


@pytest.mark.parametrize("name", ["llama", "demo"])
def test_nothing_has_privileges_and_home_is_on_the_volume_of_the_models(
    name: str, request: pytest.FixtureRequest
) -> None:
    spec = pod_of(request.getfixturevalue(name))
    user = {"llama": (2000, "/home/vllm"), "demo": (1000, "/home/ubuntu")}[name]
    assert (spec["securityContext"]["runAsNonRoot"], spec["automountServiceAccountToken"]) == (True, False)
    assert spec["securityContext"]["runAsUser"] == user[0]  # one that the image knows
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        writable = {
            one["mountPath"]: one["name"] for one in container["volumeMounts"] if not one.get("readOnly")
        }
        assert writable == {user[1]: "cache", "/tmp": "tmp", "/dev/shm": "shm"}
        env = {item["name"]: item.get("value", "") for item in container["env"]}
        assert env["HOME"] == user[1]
        assert all(env[name].startswith(f"{user[1]}/") for name in ("HF_HOME", "VLLM_CACHE_ROOT"))


def test_no_pod_is_ready_without_target_and_draft(llama: Deployment, demo: Deployment) -> None:
    (stage,) = pod_of(llama)["initContainers"]
    script = stage["command"][-1].split(" && ")
    assert [step.split()[:3] for step in script] == [
        ["hf", "download", f"meta-llama/Llama-3.1-{size}-Instruct"] for size in ("70B", "8B")
    ]
    assert "initContainers" not in pod_of(demo)


def test_the_server_asks_the_hub_for_nothing_once_it_is_staged() -> None:
    def offline(*settings: str) -> bool:
        env = {item["name"]: item.get("value") for item in server_of(made_of(LLAMA, *settings))["env"]}
        return env.get("HF_HUB_OFFLINE") == "1"

    assert offline()
    assert not offline("engine.trust_remote_code=true")
    assert not offline("engine.enable_lora=true")


def test_a_start_and_a_rollout_may_take_as_long_as_the_weights_need(demo: Deployment) -> None:
    def limits_s(made: Deployment) -> tuple[int, int]:
        spec = objects(made)[f"Deployment/{made.name}"]["spec"]
        probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
        return probe["failureThreshold"] * probe["periodSeconds"], spec["progressDeadlineSeconds"]

    # 157 GB are published of the pair: at 100 MB/s, and ten minutes
    assert limits_s(made_of(LLAMA)) == (2220, 1620 + 2220 + 1800)
    assert limits_s(made_of(LLAMA, "target.model=org/nobody-knows-this")) == (1200, 600 + 1200 + 1800)
    assert limits_s(demo) == (1200, 1200 + 1800)  # whose models lie in a claim


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


def test_several_nodes_are_one_group_that_lives_and_dies_together() -> None:
    two = ("hardware.nodes=2", "target.pipeline_parallel_size=2", "server.api_key_env=LLAMA_KEY")
    found = objects(made_of(LLAMA, *two))
    problems = {name: kubernetes_problems(document) for name, document in found.items()}
    assert not any(problems.values()), problems
    template = found["LeaderWorkerSet/llama70b-8b"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (
        template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    words = "--nnodes 2 --node-rank {} --master-addr $(LWS_LEADER_ADDRESS) --master-port 29501"
    assert leader["args"][-8:] == words.format(0).split()
    assert worker["args"][-9:] == [*words.format("$(LWS_WORKER_INDEX)").split(), "--headless"]
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    names = [{entry["name"] for entry in one["env"]} for one in (leader, worker)]
    assert names[0] - names[1] == {"VLLM_API_KEY"}  # only the node that answers gets the key
    selector = found["Service/llama70b-8b"]["spec"]["selector"]
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    requests, ranks = found["NetworkPolicy/llama70b-8b"]["spec"]["ingress"]
    assert requests["ports"] == [{"port": "http"}]
    assert ranks == {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "llama70b-8b"}}}]}
