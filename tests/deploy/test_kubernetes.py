"""Kubernetes: objects that an API server takes, of pods that run vLLM as it must be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specserve.deploy.deployment import Deployment
from tests.deploy.conftest import LLAMA, PROFILES, kubernetes_problems, made_of, objects_of

DIGEST = "vllm/vllm-openai:v0.33.0@sha256:" + "0123456789abcdef" * 4


def pod_of(made: Deployment) -> dict[str, Any]:
    spec: dict[str, Any] = objects_of(made)[f"Deployment/{made.name}"]["spec"]["template"]["spec"]
    return spec


def server_of(made: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = pod_of(made)["containers"][0]
    return found


@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_every_object_of_every_shipped_profile_is_one_that_an_api_server_takes(file: Path) -> None:
    found = objects_of(made_of(file))
    kinds = set("Deployment Service NetworkPolicy PersistentVolumeClaim PodMonitor PrometheusRule".split())
    assert {document["kind"] for document in found.values()} == kinds
    problems = {name: kubernetes_problems(document) for name, document in found.items()}
    assert not any(problems.values()), problems


def test_a_pod_for_the_cpu_has_the_user_of_its_image_and_neither_gpus_nor_downloads(demo: Deployment) -> None:
    spec, server = pod_of(demo), server_of(demo)
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (1000, 1000)
    writable = {one["mountPath"]: one["name"] for one in server["volumeMounts"] if not one.get("readOnly")}
    assert writable == {"/home/ubuntu": "cache", "/tmp": "tmp", "/dev/shm": "shm"}
    env = {item["name"]: item.get("value", "") for item in server["env"]}
    assert env["HOME"] == "/home/ubuntu" and env["HF_HOME"].startswith("/home/ubuntu/")
    assert not {"initContainers", "tolerations"} & spec.keys() and "limits" not in server["resources"]
    assert server["image"] == "vllm/vllm-openai-cpu:v0.33.0"
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in server["volumeMounts"]


def test_the_server_asks_the_hub_for_nothing_once_it_is_staged() -> None:
    def offline(*settings: str) -> bool:
        env = {item["name"]: item.get("value") for item in server_of(made_of(LLAMA, *settings))["env"]}
        return env.get("HF_HUB_OFFLINE") == "1"

    assert offline()
    assert not offline("engine.trust_remote_code=true")
    assert not offline("engine.enable_lora=true")


def test_a_start_and_a_rollout_may_take_as_long_as_the_weights_need(demo: Deployment) -> None:
    def limits_s(made: Deployment) -> tuple[int, int]:
        spec = objects_of(made)[f"Deployment/{made.name}"]["spec"]
        probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
        return probe["failureThreshold"] * probe["periodSeconds"], spec["progressDeadlineSeconds"]

    # 157 GB are published of the pair: at 100 MB/s, and ten minutes
    assert limits_s(made_of(LLAMA)) == (2220, 1620 + 2220 + 1800)
    assert limits_s(made_of(LLAMA, "target.model=org/nobody-knows-this")) == (1200, 600 + 1200 + 1800)
    assert limits_s(demo) == (1200, 1200 + 1800)  # whose models lie in a claim


def test_requests_may_end_before_the_kill_and_the_image_can_be_pinned() -> None:
    made = made_of(LLAMA, "server.shutdown_timeout_s=90", "frontend.ssl_certfile=/c.pem", image=DIGEST)
    spec = pod_of(made)
    assert spec["terminationGracePeriodSeconds"] == 120
    assert {one["image"] for one in (*spec["containers"], *spec["initContainers"])} == {DIGEST}
    assert server_of(made)["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_several_nodes_are_one_group_that_lives_and_dies_together() -> None:
    two = ("hardware.nodes=2", "target.pipeline_parallel_size=2", "server.api_key_env=LLAMA_KEY")
    found = objects_of(made_of(LLAMA, *two))
    problems = {name: kubernetes_problems(document) for name, document in found.items()}
    assert not any(problems.values()), problems
    template = found["LeaderWorkerSet/llama70b-8b"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (
        template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    names = [{entry["name"] for entry in one["env"]} for one in (leader, worker)]
    assert names[0] - names[1] == {"VLLM_API_KEY"}  # only the node that answers gets the key
    selector = found["Service/llama70b-8b"]["spec"]["selector"]
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    requests, ranks = found["NetworkPolicy/llama70b-8b"]["spec"]["ingress"]
    assert requests["ports"] == [{"port": "http"}]
    assert ranks == {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "llama70b-8b"}}}]}
