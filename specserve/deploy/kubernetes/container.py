"""The containers of a pod: vLLM with its probes and limits, and those that stage the models before it."""

from __future__ import annotations

from typing import Any

from specserve.deploy.container import HOME_NOTE, environment, staging
from specserve.deploy.deployment import CACHE, LEADER, MODELS, Deployment
from specserve.deploy.yamltext import Note
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.plan.nodes import rank_at

PROBE_PERIOD_S = 10
PRE_STOP_S = 5
_GIB = 2**30


def server(
    made: Deployment, plan: LaunchPlan, *, leader: str | None = None, index: str | None = None
) -> dict[str, Any]:
    """vLLM. `leader`, `index`: what stands for node 0's address and a node's number, where there are several."""
    container: dict[str, Any] = {
        "name": "vllm",
        **image(made),
        "command": list(plan.argv[:2]),
        "args": arguments(plan, leader=leader, index=index),
        "env": _environment(made, plan),
        "resources": _resources(made),
        "securityContext": confined(),
        "volumeMounts": mounts(made),
    }
    if made.mounts:
        container["workingDir"] = Note("paths in the arguments are seen from here", MODELS)
    if not plan.answers:
        return container
    container["ports"] = [{"name": "http", "containerPort": plan.port}]
    container |= _probes(made)
    pause = Note("until no new request comes in: the Service forgets a pod a moment after it is told to stop",
                 {"exec": {"command": ["sleep", str(PRE_STOP_S)]}})  # fmt: skip
    container["lifecycle"] = {"preStop": pause}
    return container


def arguments(plan: LaunchPlan, *, leader: str | None = None, index: str | None = None) -> list[str]:
    """The argv behind `vllm serve`."""
    words = [literal(word) for word in plan.argv[2:]]
    if index is not None:
        words[rank_at(plan) - 2] = index
    return [leader if leader is not None and word == LEADER else word for word in words]


def literal(text: str) -> str:
    """A text in which Kubernetes replaces nothing: it takes `$(NAME)` for a variable, in arguments and in values."""
    return text.replace("$(", "$$(")


def stagers(made: Deployment) -> list[dict[str, Any]]:
    """What runs before vLLM: each repository downloaded, each folder looked for. No pod is ready without them all."""
    found = [
        {
            "name": f"stage-{download.step}",
            **image(made),
            "command": staging(download),
            "env": [{"name": "HOME", "value": made.image.home}, {"name": "HF_HOME", "value": CACHE}, token()],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
            "securityContext": confined(),
            "volumeMounts": [mount for mount in mounts(made) if mount["name"] != "shm"],
        }
        for download in made.downloads
    ]
    if made.mounts:
        found.append(
            {
                "name": "look-for-models",
                **image(made),
                "command": ["ls", "-d", *(f"{MODELS}/{mount.name}" for mount in made.mounts)],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                "securityContext": confined(),
                "volumeMounts": [{"name": "models", "mountPath": MODELS, "readOnly": True}],
            }
        )
    return found


def token() -> Note:
    """HF_TOKEN, by reference; models that anybody may read need none."""
    reference = {"name": "huggingface", "key": "token", "optional": True}
    note = "for gated models: kubectl create secret generic huggingface --from-literal=token=…"
    return Note(note, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})


def image(made: Deployment) -> dict[str, Any]:
    """Which image, and when it is pulled."""
    note = "" if made.image.is_pinned else "a tag can move: `--image …@sha256:…` pins it"
    name = made.image.reference
    return {"image": Note(note, name) if note else name, "imagePullPolicy": "IfNotPresent"}


def confined() -> dict[str, Any]:
    """No privilege, and nothing to write but the volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def mounts(made: Deployment) -> list[dict[str, Any]]:
    """Where the volumes are."""
    found: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE},
        {"name": "home", "mountPath": made.image.home},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # a path of the container
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if made.mounts:
        found.append({"name": "models", "mountPath": MODELS, "readOnly": True})
    return found


def volumes(made: Deployment) -> list[dict[str, Any]]:
    """The volumes of a pod."""
    found: list[Any] = [
        {"name": "cache", **(_claim(f"{made.name}-cache") if made.downloads else {"emptyDir": {}})},
        Note(HOME_NOTE, {"name": "home", "emptyDir": {}}),
        {"name": "tmp", "emptyDir": {}},
        Note("NCCL and vLLM's message queues; what is used of it counts as memory of the pod",
             {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(made.shm_bytes)}}),
    ]  # fmt: skip
    if made.mounts:
        names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
        found.append(
            Note(f"must hold {names}", {"name": "models", **_claim(f"{made.name}-models", read_only=True)})
        )
    return found


def quantity(size_bytes: float) -> str:
    """`8Gi`, rounded up."""
    return f"{-int(-size_bytes // _GIB)}Gi"


def _claim(name: str, *, read_only: bool = False) -> dict[str, Any]:
    claim: dict[str, Any] = {"claimName": name}
    return {"persistentVolumeClaim": claim | ({"readOnly": True} if read_only else {})}


def _environment(made: Deployment, plan: LaunchPlan) -> list[Any]:
    found: list[Any] = [
        {"name": name, "value": literal(value)} for name, value in environment(made, cache=CACHE).items()
    ]
    for name, value in plan.env.items():
        if isinstance(value, FromEnv) and plan.answers:
            reference = {"name": f"{made.name}-api-key", "key": name}
            note = f"kubectl create secret generic {made.name}-api-key --from-literal={name}=…"
            found.append(Note(note, {"name": name, "valueFrom": {"secretKeyRef": reference}}))
    if not made.may_be_offline:
        found.append(token())
    if made.nodes > 1:
        address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        found.append(Note("at which the other nodes find this one", address))
    return found


def _resources(made: Deployment) -> Any:
    per_node = max(1, made.world // made.nodes)
    requests = {"cpu": str(2 + 2 * per_node), "memory": f"{16 + 16 * per_node}Gi"}
    if made.is_cpu:
        requests = {"cpu": str(2 * per_node), "memory": f"{8 * per_node}Gi"}
        return Note(
            "assumed: weights, KV cache and 2 GiB more; processors decide the speed", {"requests": requests}
        )
    gpus = {"nvidia.com/gpu": str(made.accelerators)}
    text = "processors and memory are assumed; weights pass through the page cache, which counts as memory"
    return Note(text, {"requests": {**requests, **gpus}, "limits": gpus})


def _probes(made: Deployment) -> dict[str, Any]:
    get: dict[str, Any] = {"path": "/health", "port": "http"}
    if made.scheme == "https":
        get["scheme"] = "HTTPS"
    limit = f"{made.start_limit_s // 60} minutes: {made.start_limit_from}"
    return {
        "startupProbe": {
            "httpGet": get,
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": Note(limit, made.start_limit_s // PROBE_PERIOD_S),
        },
        "readinessProbe": {"httpGet": get, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {
            "httpGet": get,
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }
