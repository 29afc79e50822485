"""The pods of a deployment: the server, what stages its models, and where they may write."""

from __future__ import annotations

from typing import Any

from specserve.deploy.deployment import (
    MODELS,
    USER_NOTE,
    Deployment,
    Reference,
    environment,
    literal,
    places,
    staging_script,
)
from specserve.plan.launchplan import LaunchPlan
from specserve.plan.nodes import leader_at, value_at
from specserve.profile.writer import Commented

Object = dict[str, Any]
_PROBE_PERIOD_S = 10


def pod(
    made: Deployment, plan: LaunchPlan, *, leader: str | None = None, index: str | None = None
) -> Object:
    """Return the `spec` of a pod that serves a plan.

    `leader`, `index`: the references to node 0's address and to a node's number.
    """
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
        taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        spec["tolerations"] = [taint]
    if made.downloads:
        stage = {
            **_container("stage", made, ["sh", "-ec", staging_script(made)]),
            "env": [*_variables(places(made.image.home)), _TOKEN],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
        }
        spec["initContainers"] = Commented("no pod is ready without all of its models", [stage])
    spec["containers"] = [_server(made, plan, leader, index)]
    counted = "NCCL and vLLM's message queues; what is used of it counts as memory of the pod"
    memory = {"medium": "Memory", "sizeLimit": f"{made.shm_gib}Gi"}
    spec["volumes"] = [
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{made.name}-cache"}},
        {"name": "tmp", "emptyDir": {}},
        Commented(counted, {"name": "shm", "emptyDir": memory}),
    ]
    if made.mounts:
        claim = {"persistentVolumeClaim": {"claimName": f"{made.name}-models", "readOnly": True}}
        spec["volumes"].append(Commented(f"must hold {made.mounted}", {"name": "models", **claim}))
    return spec


def _server(made: Deployment, plan: LaunchPlan, leader: str | None, index: str | None) -> Object:
    words = list(plan.argv)
    if index is not None:
        words[value_at(plan, "node_rank")] = Reference(index)
    at = leader_at(plan, made.profile)
    if leader is not None and at is not None:
        words[at] = Reference(leader)
    env = _variables(environment(made))
    for name in made.secrets if plan.answers else ():
        env.append(_secret(name, f"{made.name}-api-key", name))
    if not made.may_be_offline:
        env.append(_TOKEN)
    if made.nodes > 1:
        address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        env.append(Commented("at which the other nodes find this one", address))
    container = {
        **_container("vllm", made, words[:2]),
        "args": literal(words[2:]),
        "env": env,
        "resources": _resources(made),
    }
    if made.mounts:
        container["workingDir"] = Commented("paths in the arguments are seen from here", MODELS)
    if plan.answers:
        pause = "the Service forgets a pod a moment after it is asked to stop"
        sleep = {"exec": {"command": ["sleep", "5"]}}
        get: Object = {"path": "/health", "port": "http"}
        if made.scheme == "https":
            get["scheme"] = "HTTPS"
        starts = Commented(made.start_limit_from, made.start_limit_s // _PROBE_PERIOD_S)
        container |= {
            "ports": [{"name": "http", "containerPort": plan.port}],
            "startupProbe": _probe(get, _PROBE_PERIOD_S, 5, starts),
            "readinessProbe": _probe(get, 5, 5, 3),
            "livenessProbe": _probe(get, _PROBE_PERIOD_S, 10, 6),
            "lifecycle": {"preStop": Commented(pause, sleep)},
        }
    return container


def _container(name: str, made: Deployment, command: list[str]) -> Object:
    """What every container has: no privilege, and nothing to write but the volumes."""
    paths = {"cache": made.image.home, "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108  # in a container
    mounts: list[Object] = [{"name": one, "mountPath": path} for one, path in paths.items()]
    if made.mounts:
        mounts.append({"name": "models", "mountPath": MODELS, "readOnly": True})
    return {
        "name": name,
        "image": made.image.reference,
        "imagePullPolicy": "IfNotPresent",
        "command": literal(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _variables(values: dict[str, str]) -> list[Any]:
    return [{"name": name, "value": literal(value)} for name, value in values.items()]


def _secret(variable: str, name: str, key: str, note: str = "", **more: bool) -> Commented:
    """A variable by reference to a Secret."""
    reference = {"secretKeyRef": {"name": name, "key": key, **more}}
    command = f"kubectl create secret generic {name} --from-literal={key}=…"
    return Commented(f"{note}{command}", {"name": variable, "valueFrom": reference})


_TOKEN = _secret("HF_TOKEN", "huggingface", "token", "for gated models: ", optional=True)


def _resources(made: Deployment) -> Commented:
    ranks = made.ranks_per_node
    if made.is_cpu:
        text = "assumed: weights, KV cache and 2 GiB more; processors decide the speed"
        return Commented(text, {"requests": {"cpu": str(2 * ranks), "memory": f"{8 * ranks}Gi"}})
    gpus = {"nvidia.com/gpu": str(ranks)}
    requests = {"cpu": str(2 + 2 * ranks), "memory": f"{16 + 16 * ranks}Gi", **gpus}
    text = "assumed; weights pass through the page cache, which counts as memory"
    return Commented(text, {"requests": requests, "limits": gpus})


def _probe(get: Object, period_s: int, timeout_s: int, failures: int | Commented) -> Object:
    times = {"periodSeconds": period_s, "timeoutSeconds": timeout_s}
    return {"httpGet": get, **times, "failureThreshold": failures}
