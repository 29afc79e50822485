"""The pods of a deployment and what runs them: containers, a Deployment, a LeaderWorkerSet."""

from __future__ import annotations

from typing import Any

from specserve.deploy.deployment import CACHE, HOME_NOTE, LEADER, MODELS, Deployment, environment, staging
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.plan.nodes import rank_at
from specserve.profile.writer import Commented

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
        container["workingDir"] = Commented("paths in the arguments are seen from here", MODELS)
    if not plan.answers:
        return container
    container["ports"] = [{"name": "http", "containerPort": plan.port}]
    container |= _probes(made)
    pause = Commented("until no new request comes in: the Service forgets a pod a moment after it is told to stop",
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


def token() -> Commented:
    """HF_TOKEN, by reference; models that anybody may read need none."""
    reference = {"name": "huggingface", "key": "token", "optional": True}
    note = "for gated models: kubectl create secret generic huggingface --from-literal=token=…"
    return Commented(note, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})


def image(made: Deployment) -> dict[str, Any]:
    """Which image, and when it is pulled."""
    note = "" if made.image.is_pinned else "a tag can move: `--image …@sha256:…` pins it"
    name = made.image.reference
    return {"image": Commented(note, name) if note else name, "imagePullPolicy": "IfNotPresent"}


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
        Commented(HOME_NOTE, {"name": "home", "emptyDir": {}}),
        {"name": "tmp", "emptyDir": {}},
        Commented("NCCL and vLLM's message queues; what is used of it counts as memory of the pod",
             {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(made.shm_bytes)}}),
    ]  # fmt: skip
    if made.mounts:
        names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
        found.append(
            Commented(
                f"must hold {names}", {"name": "models", **_claim(f"{made.name}-models", read_only=True)}
            )
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
            found.append(Commented(note, {"name": name, "valueFrom": {"secretKeyRef": reference}}))
    if not made.may_be_offline:
        found.append(token())
    if made.nodes > 1:
        address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        found.append(Commented("at which the other nodes find this one", address))
    return found


def _resources(made: Deployment) -> Any:
    per_node = max(1, made.world // made.nodes)
    requests = {"cpu": str(2 + 2 * per_node), "memory": f"{16 + 16 * per_node}Gi"}
    if made.is_cpu:
        requests = {"cpu": str(2 * per_node), "memory": f"{8 * per_node}Gi"}
        return Commented(
            "assumed: weights, KV cache and 2 GiB more; processors decide the speed", {"requests": requests}
        )
    gpus = {"nvidia.com/gpu": str(made.accelerators)}
    text = "processors and memory are assumed; weights pass through the page cache, which counts as memory"
    return Commented(text, {"requests": {**requests, **gpus}, "limits": gpus})


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
            "failureThreshold": Commented(limit, made.start_limit_s // PROBE_PERIOD_S),
        },
        "readinessProbe": {"httpGet": get, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {
            "httpGet": get,
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }


POOL = "specserve/pool"
_LEADER = "$(LWS_LEADER_ADDRESS)"
_INDEX = "$(LWS_WORKER_INDEX)"


def pool_name(made: Deployment, *, plain: bool) -> str:
    """`NAME`, or `NAME-plain` for the pool without speculation."""
    return f"{made.name}-plain" if plain else made.name


def selector(made: Deployment, *, plain: bool) -> dict[str, str]:
    """The labels by which the pods of a pool are found; they never change."""
    return {"app.kubernetes.io/name": made.name, POOL: "plain" if plain else "main"}


def labels(made: Deployment, *, plain: bool = False) -> dict[str, str]:
    """Those, and what is known of the version."""
    return {**made.labels, POOL: "plain" if plain else "main"}


def metadata(made: Deployment, name: str, *, plain: bool = False) -> dict[str, Any]:
    """Name, labels, the whole fingerprint."""
    return {
        "name": name,
        "labels": labels(made, plain=plain),
        "annotations": {
            "specserve/fingerprint": made.plan.fingerprint,
            "specserve/profile": made.profile.name,
        },
    }


def workload(made: Deployment, *, plain: bool = False) -> dict[str, Any]:
    """The object. `plain`: the pool without speculation; only of a single node."""
    if made.nodes > 1:
        return leader_worker_set(made)
    plan = (made.plain if plain else None) or made.plan
    template = {"metadata": _pod_metadata(made, plain=plain), "spec": pod(made, server(made, plan))}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(made, pool_name(made, plain=plain), plain=plain),
        "spec": {
            "replicas": Commented("each replica takes GPUs of its own", 1) if not made.is_cpu else 1,
            "selector": {"matchLabels": selector(made, plain=plain)},
            "strategy": Commented(
                "the old pod stops before the new one starts, because a cluster seldom has the accelerators twice; "
                "if yours does, set maxSurge 1 and maxUnavailable 0",
                {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            ),
            "progressDeadlineSeconds": made.start_limit_s + 1800,
            "template": template,
        },
    }


def leader_worker_set(made: Deployment) -> dict[str, Any]:
    """One group of pods per replica: the leader answers requests, the workers compute."""

    def template(plan: LaunchPlan, index: str | None) -> dict[str, Any]:
        container = server(made, plan, leader=_LEADER, index=index)
        return {"metadata": _pod_metadata(made, plain=False), "spec": pod(made, container)}

    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(made, made.name),
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": made.nodes,
                "restartPolicy": Commented(
                    "a single vLLM rank cannot rejoin: all ranks restart when one ends",
                    "RecreateGroupOnPodRestart",
                ),
                "leaderTemplate": template(made.ranks[0], None),
                "workerTemplate": template(made.ranks[1], _INDEX),
            },
        },
    }


def disruption_budget(made: Deployment, *, plain: bool = False) -> dict[str, Any]:
    """A PodDisruptionBudget: draining nodes takes one pod of a pool at a time."""
    limit = Commented(
        "with one replica, a drain still stops the server: minAvailable 1 would block the drain", 1
    )
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(made, pool_name(made, plain=plain), plain=plain),
        "spec": {
            "maxUnavailable": limit,
            "unhealthyPodEvictionPolicy": Commented(
                "a pod that is not ready serves nobody, so it never blocks a drain", "AlwaysAllow"
            ),
            "selector": {"matchLabels": selector(made, plain=plain)},
        },
    }


def pod(made: Deployment, container: dict[str, Any]) -> dict[str, Any]:
    """The pod around a server."""
    spec: dict[str, Any] = {
        "enableServiceLinks": Commented(
            "a Service called vllm would set VLLM_PORT in every pod, and vLLM dies of it (vllm-project/vllm#34199)",
            False,
        ),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": Commented("server.shutdown_timeout_s and 30 s more", made.grace_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": Commented(
                "must be a user in the image's /etc/passwd: torch fails for any other uid", made.image.uid
            ),
            "runAsGroup": made.image.gid,
            "fsGroup": made.image.uid,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if not made.is_cpu:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        hardware = made.profile.hardware
        if hardware and hardware.accelerator:
            note = f"the profile is for {hardware.accelerator}: name your nodes' label of it, if they differ"
            spec["nodeSelector"] = Commented(note, {})
    staged = stagers(made)
    if staged:
        spec["initContainers"] = Commented("no pod is ready without all of its models", staged)
    return {**spec, "containers": [container], "volumes": volumes(made)}


def _pod_metadata(made: Deployment, *, plain: bool) -> dict[str, Any]:
    return {
        "labels": labels(made, plain=plain),
        "annotations": {"specserve/fingerprint": made.plan.fingerprint},
    }
