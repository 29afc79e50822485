"""The pods of a deployment: the server, what stages its models, and where they may write."""

from __future__ import annotations

from typing import Any

from specserve.deploy.deployment import CACHE, HOME_NOTE, LEADER, MODELS, Deployment, environment, staging
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.plan.nodes import rank_at
from specserve.profile.writer import Commented

FINGERPRINT = "specserve/fingerprint"
_PROBE_PERIOD_S = 10
_PRE_STOP_S = 5


def server(made: Deployment, plan: LaunchPlan, *, leader: str | None, index: str | None) -> dict[str, Any]:
    """Returns vLLM's container. `leader`, `index`: what stands for node 0's address and a node's number."""
    arguments = [_literal(word) for word in plan.argv[2:]]
    if index is not None:
        arguments[rank_at(plan) - 2] = index
    container: dict[str, Any] = {
        "name": "vllm",
        **_image(made),
        "command": list(plan.argv[:2]),
        "args": [leader if leader is not None and word == LEADER else word for word in arguments],
        "env": _environment(made, plan),
        "resources": _resources(made),
        "securityContext": _confined(),
        "volumeMounts": _mounts(made),
    }
    if made.mounts:
        container["workingDir"] = Commented("paths in the arguments are seen from here", MODELS)
    if plan.answers:
        pause = "until no new request comes in: the Service forgets a pod a moment after it is told to stop"
        container["ports"] = [{"name": "http", "containerPort": plan.port}]
        container |= _probes(made)
        sleep = {"exec": {"command": ["sleep", str(_PRE_STOP_S)]}}
        container["lifecycle"] = {"preStop": Commented(pause, sleep)}
    return container


def pod(made: Deployment, container: dict[str, Any]) -> dict[str, Any]:
    """Returns the pod around a server."""
    links = "a Service called vllm would set VLLM_PORT in every pod, and vLLM dies of it (vllm-project/vllm#34199)"
    user = "must be a user in the image's /etc/passwd: torch fails for any other uid"
    spec: dict[str, Any] = {
        "enableServiceLinks": Commented(links, False),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": Commented("server.shutdown_timeout_s and 30 s more", made.grace_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": Commented(user, made.image.uid),
            "runAsGroup": made.image.gid,
            "fsGroup": made.image.uid,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if not made.is_cpu:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        accelerator = made.profile.hardware and made.profile.hardware.accelerator
        if accelerator:
            note = f"the profile is for {accelerator}: name your nodes' label of it, if they differ"
            spec["nodeSelector"] = Commented(note, {})
    if staged := _stagers(made):
        spec["initContainers"] = Commented("no pod is ready without all of its models", staged)
    return {**spec, "containers": [container], "volumes": _volumes(made)}


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces nothing: it takes `$(NAME)` for a variable, in arguments and in values."""
    return text.replace("$(", "$$(")


def _stagers(made: Deployment) -> list[dict[str, Any]]:
    """What runs before vLLM: each repository is downloaded, each folder looked for."""
    paths = [{"name": "HOME", "value": made.image.home}, {"name": "HF_HOME", "value": CACHE}]
    found = [
        {
            "name": f"stage-{download.step}",
            **_image(made),
            "command": staging(download),
            "env": [*paths, _token()],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
            "securityContext": _confined(),
            "volumeMounts": [mount for mount in _mounts(made) if mount["name"] != "shm"],
        }
        for download in made.downloads
    ]
    if made.mounts:
        look = {
            "name": "look-for-models",
            **_image(made),
            "command": ["ls", "-d", *(f"{MODELS}/{mount.name}" for mount in made.mounts)],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "securityContext": _confined(),
            "volumeMounts": [mount for mount in _mounts(made) if mount["name"] == "models"],
        }
        found.append(look)
    return found


def _token() -> Commented:
    """HF_TOKEN, by reference; models that anybody may read need none."""
    reference = {"name": "huggingface", "key": "token", "optional": True}
    note = "for gated models: kubectl create secret generic huggingface --from-literal=token=…"
    return Commented(note, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})


def _image(made: Deployment) -> dict[str, Any]:
    return {"image": made.image.commented, "imagePullPolicy": "IfNotPresent"}


def _confined() -> dict[str, Any]:
    """No privilege, and nothing to write but the volumes."""
    capabilities = {"drop": ["ALL"]}
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": capabilities}


def _mounts(made: Deployment) -> list[dict[str, Any]]:
    paths = {"cache": CACHE, "home": made.image.home, "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108  # in a container
    found: list[dict[str, Any]] = [{"name": name, "mountPath": path} for name, path in paths.items()]
    return [*found, *([{"name": "models", "mountPath": MODELS, "readOnly": True}] if made.mounts else [])]


def _volumes(made: Deployment) -> list[Any]:
    memory = {"medium": "Memory", "sizeLimit": f"{made.shm_gib}Gi"}
    cache: dict[str, Any] = {"emptyDir": {}}
    if made.downloads:
        cache = {"persistentVolumeClaim": {"claimName": f"{made.name}-cache"}}
    counted = "NCCL and vLLM's message queues; what is used of it counts as memory of the pod"
    found: list[Any] = [
        {"name": "cache", **cache},
        Commented(HOME_NOTE, {"name": "home", "emptyDir": {}}),
        {"name": "tmp", "emptyDir": {}},
        Commented(counted, {"name": "shm", "emptyDir": memory}),
    ]
    if made.mounts:
        names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
        claim = {"persistentVolumeClaim": {"claimName": f"{made.name}-models", "readOnly": True}}
        found.append(Commented(f"must hold {names}", {"name": "models", **claim}))
    return found


def _environment(made: Deployment, plan: LaunchPlan) -> list[Any]:
    variables = environment(made, cache=CACHE)
    found: list[Any] = [{"name": name, "value": _literal(value)} for name, value in variables.items()]
    for name, value in plan.env.items():
        if isinstance(value, FromEnv) and plan.answers:
            reference = {"name": f"{made.name}-api-key", "key": name}
            note = f"kubectl create secret generic {made.name}-api-key --from-literal={name}=…"
            found.append(Commented(note, {"name": name, "valueFrom": {"secretKeyRef": reference}}))
    if not made.may_be_offline:
        found.append(_token())
    if made.nodes > 1:
        address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        found.append(Commented("at which the other nodes find this one", address))
    return found


def _resources(made: Deployment) -> Any:
    per_node = made.ranks_per_node
    if made.is_cpu:
        text = "assumed: weights, KV cache and 2 GiB more; processors decide the speed"
        return Commented(text, {"requests": {"cpu": str(2 * per_node), "memory": f"{8 * per_node}Gi"}})
    gpus = {"nvidia.com/gpu": str(per_node)}
    requests = {"cpu": str(2 + 2 * per_node), "memory": f"{16 + 16 * per_node}Gi", **gpus}
    text = "processors and memory are assumed; weights pass through the page cache, which counts as memory"
    return Commented(text, {"requests": requests, "limits": gpus})


def _probes(made: Deployment) -> dict[str, Any]:
    get: dict[str, Any] = {"path": "/health", "port": "http"}
    if made.scheme == "https":
        get["scheme"] = "HTTPS"

    def probe(period_s: int, timeout_s: int, failures: Any) -> dict[str, Any]:
        times = {"periodSeconds": period_s, "timeoutSeconds": timeout_s}
        return {"httpGet": get, **times, "failureThreshold": failures}

    limit = f"{made.start_limit_s // 60} minutes: {made.start_limit_from}"
    starts = Commented(limit, made.start_limit_s // _PROBE_PERIOD_S)
    return {
        "startupProbe": probe(_PROBE_PERIOD_S, 5, starts),
        "readinessProbe": probe(5, 5, 3),
        "livenessProbe": probe(_PROBE_PERIOD_S, 10, 6),
    }
