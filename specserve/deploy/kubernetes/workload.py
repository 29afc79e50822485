"""What runs the pods: a Deployment, or a LeaderWorkerSet where one server spans several nodes."""

from __future__ import annotations

from typing import Any

from specserve.deploy.deployment import Deployment
from specserve.deploy.kubernetes.container import server, stagers, volumes
from specserve.deploy.yamltext import Note
from specserve.plan.launchplan import LaunchPlan

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
            "replicas": Note("each replica takes GPUs of its own", 1) if not made.is_cpu else 1,
            "selector": {"matchLabels": selector(made, plain=plain)},
            "strategy": Note(
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
                "restartPolicy": Note(
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
    limit = Note("with one replica, a drain still stops the server: minAvailable 1 would block the drain", 1)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(made, pool_name(made, plain=plain), plain=plain),
        "spec": {
            "maxUnavailable": limit,
            "unhealthyPodEvictionPolicy": Note(
                "a pod that is not ready serves nobody, so it never blocks a drain", "AlwaysAllow"
            ),
            "selector": {"matchLabels": selector(made, plain=plain)},
        },
    }


def pod(made: Deployment, container: dict[str, Any]) -> dict[str, Any]:
    """The pod around a server."""
    spec: dict[str, Any] = {
        "enableServiceLinks": Note(
            "a Service called vllm would set VLLM_PORT in every pod, and vLLM dies of it (vllm-project/vllm#34199)",
            False,
        ),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": Note("server.shutdown_timeout_s and 30 s more", made.grace_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": Note(
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
            spec["nodeSelector"] = Note(note, {})
    staged = stagers(made)
    if staged:
        spec["initContainers"] = Note("no pod is ready without all of its models", staged)
    return {**spec, "containers": [container], "volumes": volumes(made)}


def _pod_metadata(made: Deployment, *, plain: bool) -> dict[str, Any]:
    return {
        "labels": labels(made, plain=plain),
        "annotations": {"specserve/fingerprint": made.plan.fingerprint},
    }
