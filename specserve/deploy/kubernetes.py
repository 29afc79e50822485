"""A deployment for kustomize: the server itself, and components to put on top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specserve.deploy.deployment import Artifact, Deployment
from specserve.deploy.monitoring import alert_groups
from specserve.deploy.pods import disruption_budget, metadata, pool_name, selector, workload
from specserve.profile.writer import Commented, yaml_text

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
        "from": Commented(
            "every pod of this namespace; name others, or Prometheus' namespace, here", [{"podSelector": {}}]
        ),
        "ports": [{"port": "http"}],
    }
    rules: list[Any] = [http]
    if made.nodes > 1:
        text = (
            "the ranks among themselves, on ports that torch and NCCL choose: without a key, so nobody else"
        )
        rules.append(Commented(text, {"from": [mine]}))
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
        mode = Commented("the pods run on several nodes", [SHARED_MODE])
    else:
        mode = Commented(
            f"one pod at a time; the components that add pods on other nodes set {SHARED_MODE}",
            ["ReadWriteOnce"],
        )
    if made.downloads:
        found.append(_claim(made, f"{made.name}-cache", mode=mode, size=_cache_size(made)))
    if made.mounts:
        names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
        size = Commented(f"must hold {names}: copy them there once", "50Gi")
        found.append(_claim(made, f"{made.name}-models", mode=mode, size=size))
    return found


def _cache_size(made: Deployment) -> Commented:
    size = next((size for size in (made.weights_bytes, made.memory_bytes) if size), _UNKNOWN_BYTES)
    basis = (
        "weights by the lock, and half as much"
        if made.weights_bytes
        else "assumed: target and draft together"
    )
    return Commented(basis, f"{max(10, -int(-1.5 * size // _GB))}G")


def _claim(made: Deployment, name: str, *, mode: Commented, size: Commented) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(made, name),
        "spec": {"accessModes": mode, "resources": {"requests": {"storage": size}}},
    }


QUEUE = "vllm_num_requests_waiting"
_ADAPTER = """\
needs the metric in the cluster's custom metrics, such as by a rule of prometheus-adapter:
- seriesQuery: 'vllm:num_requests_waiting{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: vllm_num_requests_waiting}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"""


def autoscaler(made: Deployment, *, plain: bool = False) -> dict[str, Any]:
    """More replicas while requests wait."""
    several = made.nodes > 1
    target = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1" if several else "apps/v1",
        "kind": "LeaderWorkerSet" if several else "Deployment",
        "name": pool_name(made, plain=plain),
    }
    metric = {
        "type": "Pods",
        "pods": {"metric": {"name": QUEUE}, "target": {"type": "AverageValue", "averageValue": "4"}},
    }
    start = made.start_limit_s
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(made, pool_name(made, plain=plain), plain=plain),
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": Commented("as many as there are accelerators for", 2),
            "metrics": Commented(_ADAPTER, [metric]),
            "behavior": {
                "scaleUp": Commented(
                    "one at a time: a replica helps only once it has started",
                    {
                        "stabilizationWindowSeconds": 60,
                        "policies": [{"type": "Pods", "value": 1, "periodSeconds": min(1800, start)}],
                    },
                ),
                "scaleDown": {
                    "stabilizationWindowSeconds": 900,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}],
                },
            },
        },
    }


def pod_monitor(made: Deployment, *, plain: bool = False) -> dict[str, Any]:
    """Prometheus reads every pod of a pool that answers."""
    endpoint: dict[str, Any] = {"port": "http", "path": "/metrics", "interval": "15s"}
    if made.scheme == "https":
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    if plain:
        renamed = {
            "sourceLabels": ["model_name"],
            "targetLabel": "model_name",
            "regex": "(.+)",
            "replacement": "$1 (plain)",
        }
        text = "the alerts on speculation are for the other pool"
        endpoint["metricRelabelings"] = Commented(text, [renamed])
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(made, pool_name(made, plain=plain), plain=plain),
        "spec": {
            "selector": {"matchLabels": selector(made, plain=plain)},
            "podMetricsEndpoints": [endpoint],
        },
    }


def prometheus_rule(made: Deployment) -> dict[str, Any]:
    """The alerts, for the operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(made, made.name),
        "spec": {"groups": alert_groups(made.profile)},
    }


_COMPONENT = "kustomize.config.k8s.io/v1alpha1"
_ADDS_PODS = ("autoscaling", "plain-pool")
_PLAIN = (
    "The same server without speculation, for clients that send parameters that speculation refuses "
    "(min_p, logit_bias), and for load at which speculation no longer pays. Send those requests to its "
    "Service; this component routes nothing."
)
_SHARED = (
    "This component adds pods on other nodes, and they mount the same claims, so your storage class must "
    "offer ReadWriteMany. The access mode of an existing claim cannot change: include this component from "
    "the start, or delete the claim first."
)


def kubernetes(made: Deployment) -> tuple[Artifact, ...]:
    """The manifests: the server alone, and components to put on top."""
    several = made.nodes > 1
    objects: dict[str, list[dict[str, Any]]] = {
        "claims.yaml": claims(made),
        f"{'leaderworkerset' if several else 'deployment'}.yaml": [workload(made)],
        "service.yaml": [service(made)],
        "networkpolicy.yaml": [policy(made)],
        "poddisruptionbudget.yaml": [disruption_budget(made)],
    }
    base = {name: documents for name, documents in objects.items() if documents}
    components = {
        "monitoring": {
            "podmonitor.yaml": pod_monitor(made),
            "prometheusrule.yaml": prometheus_rule(made),
        },
        "autoscaling": {"autoscaler.yaml": autoscaler(made)},
    }
    if made.plain and not several:
        components["plain-pool"] = {
            "deployment.yaml": workload(made, plain=True),
            "service.yaml": service(made, plain=True),
            "poddisruptionbudget.yaml": disruption_budget(made, plain=True),
        }
        components["plain-pool-monitoring"] = {"podmonitor.yaml": pod_monitor(made, plain=True)}
    return (
        *(Artifact(name, _documents(made, documents)) for name, documents in base.items()),
        Artifact("kustomization.yaml", _kustomization(made, base, list(components)), alone=False),
        *(one for name, files in components.items() for one in _component(made, name, files)),
    )


def _documents(made: Deployment, documents: list[dict[str, Any]]) -> str:
    return "---\n".join(
        yaml_text(document, head="" if index else made.head) for index, document in enumerate(documents)
    )


def _kustomization(made: Deployment, base: Mapping[str, Any], components: list[str]) -> str:
    """The kustomization of the server alone; its head lists the components."""
    wanted = "\n".join(f"- components/{name}" for name in components)
    head = (
        f"{made.head}\n\nkubectl apply -k .\nTo add any of these, write a kustomization that lists this folder under "
        f"`resources` and them under `components`:\n{wanted}"
    )
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(base),
    }
    return yaml_text(content, head=head)


def _component(made: Deployment, name: str, files: Mapping[str, dict[str, Any]]) -> list[Artifact]:
    folder = f"components/{name}"
    content: dict[str, Any] = {"apiVersion": _COMPONENT, "kind": "Component", "resources": sorted(files)}
    head = f"{made.head}\n\n{_PLAIN}" if name == "plain-pool" else made.head
    if name in _ADDS_PODS and made.nodes == 1 and claims(made):
        head = f"{head}\n\n{_SHARED}"
        content["patches"] = [_shared_claims(made)]
    return [
        *(
            Artifact(f"{folder}/{file}", yaml_text(one, head=made.head), alone=False)
            for file, one in files.items()
        ),
        Artifact(f"{folder}/kustomization.yaml", yaml_text(content, head=head), alone=False),
    ]


def _shared_claims(made: Deployment) -> dict[str, Any]:
    """A patch of kustomize: pods on several nodes may mount the claims."""
    change = json.dumps([{"op": "replace", "path": "/spec/accessModes", "value": [SHARED_MODE]}])
    selected = f"app.kubernetes.io/name={made.name}"
    return {"target": {"kind": "PersistentVolumeClaim", "labelSelector": selected}, "patch": change}
