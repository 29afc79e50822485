"""Objects for what many clusters have beside Kubernetes: the Prometheus operator, and a metric to scale by."""

from __future__ import annotations

from typing import Any

from specserve.deploy.deployment import Deployment
from specserve.deploy.kubernetes.workload import metadata, pool_name, selector
from specserve.deploy.yamltext import Note

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
            "maxReplicas": Note("as many as there are accelerators for", 2),
            "metrics": Note(_ADAPTER, [metric]),
            "behavior": {
                "scaleUp": Note(
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
        endpoint["metricRelabelings"] = Note(text, [renamed])
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(made, pool_name(made, plain=plain), plain=plain),
        "spec": {
            "selector": {"matchLabels": selector(made, plain=plain)},
            "podMetricsEndpoints": [endpoint],
        },
    }


def prometheus_rule(made: Deployment, groups: list[Any]) -> dict[str, Any]:
    """The alerts, for the operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(made, made.name),
        "spec": {"groups": groups},
    }
