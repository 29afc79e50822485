"""How the pods are reached, by whom, and where their models lie."""

from __future__ import annotations

from typing import Any

from specserve.deploy.deployment import Deployment
from specserve.deploy.kubernetes.workload import metadata, pool_name, selector
from specserve.deploy.yamltext import Note

SHARED_MODE = "ReadWriteMany"
"""The access mode of a claim that pods on several nodes mount."""
_GB = 1e9
_UNKNOWN_BYTES = 200e9


def service(made: Deployment, *, plain: bool = False) -> dict[str, Any]:
    """One address inside of the cluster."""
    found = selector(made, plain=plain)
    if made.nodes > 1:
        found |= {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    name = pool_name(made, plain=plain)
    port = {"name": "http", "port": made.plan.port, "targetPort": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(made, name, plain=plain),
        "spec": {"type": "ClusterIP", "selector": found, "ports": [port]},
    }


def policy(made: Deployment) -> dict[str, Any]:
    """Requests reach the port of the server, and nothing else of a pod; ranks reach each other."""
    mine = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": made.name}}}
    http: dict[str, Any] = {
        "from": Note(
            "every pod of this namespace; name others, or Prometheus' namespace, here", [{"podSelector": {}}]
        ),
        "ports": [{"port": "http"}],
    }
    rules: list[Any] = [http]
    if made.nodes > 1:
        text = (
            "the ranks among themselves, on ports that torch and NCCL choose: without a key, so nobody else"
        )
        rules.append(Note(text, {"from": [mine]}))
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(made, made.name),
        "spec": {**mine, "policyTypes": ["Ingress"], "ingress": rules},
    }


def claims(made: Deployment) -> list[dict[str, Any]]:
    """Where downloads and the profile's own models lie."""
    found = []
    if made.nodes > 1:
        mode = Note("the pods run on several nodes", [SHARED_MODE])
    else:
        mode = Note(
            f"one pod at a time; the components that add pods on other nodes set {SHARED_MODE}",
            ["ReadWriteOnce"],
        )
    if made.downloads:
        found.append(_claim(made, f"{made.name}-cache", mode=mode, size=_cache_size(made)))
    if made.mounts:
        names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
        size = Note(f"must hold {names}: copy them there once", "50Gi")
        found.append(_claim(made, f"{made.name}-models", mode=mode, size=size))
    return found


def _cache_size(made: Deployment) -> Note:
    size = next((size for size in (made.weights_bytes, made.memory_bytes) if size), _UNKNOWN_BYTES)
    basis = (
        "weights by the lock, and half as much"
        if made.weights_bytes
        else "assumed: target and draft together"
    )
    return Note(basis, f"{max(10, -int(-1.5 * size // _GB))}G")


def _claim(made: Deployment, name: str, *, mode: Note, size: Note) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(made, name),
        "spec": {"accessModes": mode, "resources": {"requests": {"storage": size}}},
    }
