"""The pods of a deployment: the server, what stages its models, and where they may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specserve.deploy.deployment import (
    MODELS,
    USER_NOTE,
    Deployment,
    Reference,
    environment,
    staging,
)
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.plan.nodes import leader_at, value_at
from specserve.profile.writer import Commented

FINGERPRINT = "specserve/fingerprint"
CACHE = "/cache"
"""Where a container finds what comes from the Hub."""
_PROBE_PERIOD_S = 10
_PRE_STOP_S = "5"
Object = dict[str, Any]


def server(made: Deployment, plan: LaunchPlan, *, leader: str | None, index: str | None) -> Object:
    """Return vLLM's container. `leader`, `index`: for node 0's address and a node's number."""
    words = list(plan.argv)
    if index is not None:
        words[value_at(plan, "node_rank")] = Reference(index)
    at = leader_at(plan, made.profile)
    if leader is not None and at is not None:
        words[at] = Reference(leader)
    container = {
        **_container(
            "vllm", made, words[:2], words[2:], volumes=("cache", "home", "tmp", "shm", "models")
        ),
        "env": _environment(made, plan),
        "resources": _resources(made),
    }
    if made.mounts:
        container["workingDir"] = Commented("paths in the arguments are seen from here", MODELS)
    if plan.answers:
        pause = "the Service forgets a pod a moment after it is asked to stop"
        container["ports"] = [{"name": "http", "containerPort": plan.port}]
        container |= _probes(made)
        sleep = {"exec": {"command": ["sleep", _PRE_STOP_S]}}
        container["lifecycle"] = {"preStop": Commented(pause, sleep)}
    return container


def _container(
    name: str,
    made: Deployment,
    command: Sequence[str],
    arguments: Sequence[str] = (),
    *,
    volumes: Sequence[str],
) -> Object:
    """What every container has: no privilege, and nothing to write but the volumes."""
    paths = {"cache": CACHE, "home": made.image.home, "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108  # in a container
    mounts: list[Object] = [
        {"name": one, "mountPath": path} for one, path in paths.items() if one in volumes
    ]
    if made.mounts and "models" in volumes:
        mounts.append({"name": "models", "mountPath": MODELS, "readOnly": True})
    confined = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return {
        "name": name,
        "image": made.image.commented,
        "imagePullPolicy": "IfNotPresent",
        "command": [_literal(word) for word in command],
        **({"args": [_literal(word) for word in arguments]} if arguments else {}),
        "securityContext": confined,
        "volumeMounts": mounts,
    }


def pod(made: Deployment, container: Object) -> Object:
    """Return the pod around a server."""
    links = (
        "a Service called vllm would set VLLM_PORT, and vLLM dies of it (vllm-project/vllm#34199)"
    )
    spec: Object = {
        "enableServiceLinks": Commented(links, False),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": made.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": Commented(USER_NOTE, made.image.uid),
            "runAsGroup": made.image.gid,
            "fsGroup": made.image.uid,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if not made.is_cpu:
        spec["tolerations"] = [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        ]
        accelerator = made.profile.hardware and made.profile.hardware.accelerator
        if accelerator:
            which = (
                f"if your nodes have different GPUs, select those with {accelerator} by their label"
            )
            note = f"{which}, in your own kustomization"
            spec["nodeSelector"] = Commented(note, {})
    if staged := _stagers(made):
        spec["initContainers"] = Commented("no pod is ready without all of its models", staged)
    return {**spec, "containers": [container], "volumes": _volumes(made)}


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces nothing: there `$(NAME)` is a variable, `$$` is `$`.

    Source: third_party/forked/golang/expansion/expand.go of kubernetes.
    """
    return text if isinstance(text, Reference) else text.replace("$", "$$")


def _stagers(made: Deployment) -> list[Object]:
    """What runs before vLLM: each repository is downloaded."""
    env = [*_variables({"HOME": made.image.home, "HF_HOME": CACHE}), _TOKEN]
    return [
        {
            **_container(
                f"stage-{one.step}", made, staging(one), volumes=("cache", "home", "tmp", "models")
            ),
            "env": env,
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
        }
        for one in made.downloads
    ]


def _variables(values: Mapping[str, str]) -> list[Any]:
    return [{"name": name, "value": _literal(value)} for name, value in values.items()]


def _secret(variable: str, name: str, key: str, note: str, **more: bool) -> Commented:
    """A variable by reference to a Secret."""
    reference = {"secretKeyRef": {"name": name, "key": key, **more}}
    command = f"kubectl create secret generic {name} --from-literal={key}=…"
    return Commented(f"{note}{command}", {"name": variable, "valueFrom": reference})


_TOKEN = _secret("HF_TOKEN", "huggingface", "token", "for gated models: ", optional=True)


def _volumes(made: Deployment) -> list[Any]:
    memory = {"medium": "Memory", "sizeLimit": f"{made.shm_gib}Gi"}
    cache = {"persistentVolumeClaim": {"claimName": f"{made.name}-cache"}}
    counted = "NCCL and vLLM's message queues; what is used of it counts as memory of the pod"
    found: list[Any] = [
        {"name": "cache", **cache},
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        Commented(counted, {"name": "shm", "emptyDir": memory}),
    ]
    if made.mounts:
        claim = {"persistentVolumeClaim": {"claimName": f"{made.name}-models", "readOnly": True}}
        found.append(Commented(f"must hold {made.mounted}", {"name": "models", **claim}))
    return found


def _environment(made: Deployment, plan: LaunchPlan) -> list[Any]:
    found = _variables(environment(made, cache=CACHE))
    for name, value in plan.env.items():
        if isinstance(value, FromEnv) and plan.answers:
            found.append(_secret(name, f"{made.name}-api-key", name, ""))
    if not made.may_be_offline:
        found.append(_TOKEN)
    if made.nodes > 1:
        address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        found.append(Commented("at which the other nodes find this one", address))
    return found


def _resources(made: Deployment) -> Any:
    per_node = made.ranks_per_node
    if made.is_cpu:
        text = "assumed: weights, KV cache and 2 GiB more; processors decide the speed"
        return Commented(
            text, {"requests": {"cpu": str(2 * per_node), "memory": f"{8 * per_node}Gi"}}
        )
    gpus = {"nvidia.com/gpu": str(per_node)}
    requests = {"cpu": str(2 + 2 * per_node), "memory": f"{16 + 16 * per_node}Gi", **gpus}
    text = "assumed; weights pass through the page cache, which counts as memory"
    return Commented(text, {"requests": requests, "limits": gpus})


def _probes(made: Deployment) -> Object:
    get: Object = {"path": "/health", "port": "http"}
    if made.scheme == "https":
        get["scheme"] = "HTTPS"

    def probe(period_s: int, timeout_s: int, failures: Any) -> Object:
        times = {"periodSeconds": period_s, "timeoutSeconds": timeout_s}
        return {"httpGet": get, **times, "failureThreshold": failures}

    limit = f"{made.start_limit_s // 60} minutes: {made.start_limit_from}"
    starts = Commented(limit, made.start_limit_s // _PROBE_PERIOD_S)
    return {
        "startupProbe": probe(_PROBE_PERIOD_S, 5, starts),
        "readinessProbe": probe(5, 5, 3),
        "livenessProbe": probe(_PROBE_PERIOD_S, 10, 6),
    }
