"""A deployment for kustomize: the server itself, and components to put on top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserve.deploy.deployment import Artifact, Deployment
from specserve.deploy.monitoring import alert_groups, canary_alerts
from specserve.deploy.pods import FINGERPRINT, pod, server
from specserve.deploy.pools import HEADER, PLAIN, POOL_LABEL, analysis, http_route, running_metric, selector
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.writer import Commented, yaml_text

SHARED_MODE = "ReadWriteMany"
"""The access mode of a claim that pods on several nodes mount."""
QUEUE = "vllm_num_requests_waiting"
RUNNING = "vllm_num_requests_running"
_POOL = "specserve/pool"
_GB = 1e9
_UNKNOWN_BYTES = 200e9
_ADDS_PODS = ("autoscaling", "plain-pool", "canary")
_ADAPTER = """\
needs the metric in the cluster's custom metrics, such as by a rule of prometheus-adapter:
- seriesQuery: 'vllm:num_requests_waiting{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: vllm_num_requests_waiting}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"""
_TEXTS = {
    "plain-pool": (
        "The same server without speculation, for clients that send parameters that speculation refuses "
        "(min_p, logit_bias), and for load at which speculation no longer pays."
    ),
    "canary": (
        "The alternative `{alternative}` beside the server, on accelerators of its own. `specserve watch --against` "
        "says when it may replace the server."
    ),
    "routes": (
        "One address for all pools, by the Gateway API. Requests with the header "
        f"`{HEADER}: {PLAIN}` are answered without speculation."
    ),
    "canary-analysis": "For Argo Rollouts: the canary's figures over those of the main pool.",
}
_SHARED = (
    "This component adds pods on other nodes, and they mount the same claims, so your storage class must "
    "offer ReadWriteMany. The access mode of an existing claim cannot change: include this component from "
    "the start, or delete the claim first."
)
Object = dict[str, Any]


def kubernetes(made: Deployment) -> tuple[Artifact, ...]:
    """Returns the manifests: the server alone, and components to put on top."""
    main = _Pool(made, made.plan, "main")
    several = made.nodes > 1
    claims = list(_claims(made, main))
    base = {
        "claims.yaml": claims,
        "leaderworkerset.yaml" if several else "deployment.yaml": [
            main.group() if several else main.deployment()
        ],
        "service.yaml": [main.service()],
        "networkpolicy.yaml": [_policy(made, main)],
        "poddisruptionbudget.yaml": [main.disruption_budget()],
    }
    rule = main.object("monitoring.coreos.com/v1", "PrometheusRule", {"groups": alert_groups(made.profile)})
    components: dict[str, dict[str, Object]] = {
        "monitoring": {"podmonitor.yaml": main.monitor(), "prometheusrule.yaml": rule},
        "autoscaling": {"autoscaler.yaml": main.autoscaler()},
    }
    components |= _more_pools(made)
    found = []
    for name, objects in base.items():
        documents = (yaml_text(each, head="" if at else made.head) for at, each in enumerate(objects))
        found += [Artifact(name, "---\n".join(documents))] if objects else []
    wanted = "\n".join(f"- components/{name}" for name in components)
    head = (
        f"{made.head}\n\nkubectl apply -k .\nTo add any of these, write a kustomization that lists this folder under "
        f"`resources` and them under `components`:\n{wanted}"
    )
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(name for name, objects in base.items() if objects),
    }
    found.append(Artifact("kustomization.yaml", yaml_text(content, head=head), alone=False))
    for name, files in components.items():
        found += _component(made, name, files, is_shared=not several)
    return tuple(found)


def _more_pools(made: Deployment) -> dict[str, dict[str, Object]]:
    """What runs beside the server if it was asked for, and the routes to it."""
    pools = {}
    if made.has_plain_pool and made.plain:
        pools["plain-pool"] = _Pool(made, made.plain, "plain")
    if made.canary:
        pools["canary"] = _Pool(made.canary.made, made.canary.made.plan, "canary")
    found: dict[str, dict[str, Object]] = {}
    for name, pool in pools.items():
        found[name] = {
            "deployment.yaml": pool.deployment(),
            "service.yaml": pool.service(),
            "poddisruptionbudget.yaml": pool.disruption_budget(),
        }
        found[f"{name}-monitoring"] = {"podmonitor.yaml": pool.monitor()}
    main = _Pool(made, made.plan, "main")
    if pools:
        route = main.object("gateway.networking.k8s.io/v1", "HTTPRoute", http_route(made))
        found["routes"] = {"httproute.yaml": route}
    if made.canary:
        groups = canary_alerts(
            made.profile.name, canary=selector(made, "canary"), other=selector(made, "main")
        )
        rules = main.object(
            "monitoring.coreos.com/v1", "PrometheusRule", {"groups": groups}, name=f"{made.name}-canary"
        )
        found["canary-monitoring"]["prometheusrule.yaml"] = rules
        template = main.object(
            "argoproj.io/v1alpha1", "AnalysisTemplate", analysis(made), name=f"{made.name}-canary"
        )
        found["canary-analysis"] = {"analysistemplate.yaml": template}
    return found


def _component(
    made: Deployment, name: str, files: Mapping[str, Object], *, is_shared: bool
) -> list[Artifact]:
    """`is_shared`: pods that it adds mount claims which the server alone has for itself."""
    content: Object = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "resources": sorted(files),
    }
    text = _TEXTS.get(name, "").format(alternative=made.canary.alternative if made.canary else "")
    head = f"{made.head}\n\n{text}" if text else made.head
    if name in _ADDS_PODS and is_shared:
        head = f"{head}\n\n{_SHARED}"
        change = json.dumps([{"op": "replace", "path": "/spec/accessModes", "value": [SHARED_MODE]}])
        selected = f"app.kubernetes.io/name={made.name}"
        target = {"kind": "PersistentVolumeClaim", "labelSelector": selected}
        content["patches"] = [{"target": target, "patch": change}]
    texts = {file: yaml_text(one, head=made.head) for file, one in files.items()}
    texts["kustomization.yaml"] = yaml_text(content, head=head)
    return [Artifact(f"components/{name}/{file}", text, alone=False) for file, text in texts.items()]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Pods of one launch: the profile's (`main`), an alternative's (`canary`), or without speculation (`plain`)."""

    made: Deployment
    plan: LaunchPlan
    kind: str

    @property
    def name(self) -> str:
        return self.made.name if self.kind == "main" else f"{self.made.name}-{self.kind}"

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which its pods are found; they never change."""
        return {"app.kubernetes.io/name": self.made.name, _POOL: self.kind}

    def object(self, api: str, kind: str, spec: Object, *, name: str = "") -> Object:
        """An object with name, labels and the fingerprint. `name`: default that of the pool."""
        annotations = {FINGERPRINT: self.made.plan.fingerprint, "specserve/profile": self.made.profile.name}
        labels = {**self.made.labels, _POOL: self.kind}
        metadata = {"name": name or self.name, "labels": labels, "annotations": annotations}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

    def template(self, plan: LaunchPlan, *, leader: str | None = None, index: str | None = None) -> Object:
        metadata = {
            "labels": {**self.made.labels, _POOL: self.kind},
            "annotations": {FINGERPRINT: self.made.plan.fingerprint},
        }
        container = server(self.made, plan, leader=leader, index=index)
        return {"metadata": metadata, "spec": pod(self.made, container)}

    def deployment(self) -> Object:
        strategy = Commented(
            "the old pod stops before the new one starts, because a cluster seldom has the accelerators twice; "
            "if yours does, set maxSurge 1 and maxUnavailable 0",
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        )
        spec = {
            "replicas": 1 if self.made.is_cpu else Commented("each replica takes GPUs of its own", 1),
            "selector": {"matchLabels": self.selector},
            "strategy": strategy,
            "progressDeadlineSeconds": self.made.start_limit_s + 1800,
            "template": self.template(self.plan),
        }
        return self.object("apps/v1", "Deployment", spec)

    def group(self) -> Object:
        """One group of pods per replica, over several nodes: the leader answers requests, the workers compute."""
        ranks, leader = self.made.ranks, "$(LWS_LEADER_ADDRESS)"
        together = "a single vLLM rank cannot rejoin: all ranks restart when one ends"
        template = {
            "size": self.made.nodes,
            "restartPolicy": Commented(together, "RecreateGroupOnPodRestart"),
            "leaderTemplate": self.template(ranks[0], leader=leader),
            "workerTemplate": self.template(ranks[1], leader=leader, index="$(LWS_WORKER_INDEX)"),
        }
        spec = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
        return self.object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)

    def service(self) -> Object:
        """One address inside of the cluster."""
        found = self.selector
        if self.made.nodes > 1:
            found |= {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
        port = {"name": "http", "port": self.made.plan.port, "targetPort": "http"}
        return self.object("v1", "Service", {"type": "ClusterIP", "selector": found, "ports": [port]})

    def disruption_budget(self) -> Object:
        """Draining nodes takes one pod of a pool at a time."""
        drain = "with one replica, a drain still stops the server: minAvailable 1 would block the drain"
        unhealthy = "a pod that is not ready serves nobody, so it never blocks a drain"
        spec = {
            "maxUnavailable": Commented(drain, 1),
            "unhealthyPodEvictionPolicy": Commented(unhealthy, "AlwaysAllow"),
            "selector": {"matchLabels": self.selector},
        }
        return self.object("policy/v1", "PodDisruptionBudget", spec)

    def autoscaler(self) -> Object:
        """More replicas while requests wait."""
        several = self.made.nodes > 1
        average = {"type": "AverageValue", "averageValue": "4"}
        metrics: list[Any] = [{"type": "Pods", "pods": {"metric": {"name": QUEUE}, "target": average}}]
        if self.made.has_plain_pool:
            metrics.append(running_metric(self.made, RUNNING))

        def one_per(seconds: int, *, settled_s: int) -> Object:
            policy = {"type": "Pods", "value": 1, "periodSeconds": seconds}
            return {"stabilizationWindowSeconds": settled_s, "policies": [policy]}

        up = one_per(min(1800, self.made.start_limit_s), settled_s=60)
        spec = {
            "scaleTargetRef": {
                "apiVersion": "leaderworkerset.x-k8s.io/v1" if several else "apps/v1",
                "kind": "LeaderWorkerSet" if several else "Deployment",
                "name": self.name,
            },
            "minReplicas": 1,
            "maxReplicas": Commented("as many as there are accelerators for", 2),
            "metrics": Commented(_ADAPTER, metrics),
            "behavior": {
                "scaleUp": Commented("one at a time: a replica helps only once it has started", up),
                "scaleDown": one_per(600, settled_s=900),
            },
        }
        return self.object("autoscaling/v2", "HorizontalPodAutoscaler", spec)

    def monitor(self) -> Object:
        """Prometheus reads every pod of a pool that answers."""
        endpoint: Object = {"port": "http", "path": "/metrics", "interval": "15s"}
        if self.made.scheme == "https":
            endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
        if self.kind == "canary" or self.made.canary:
            endpoint["relabelings"] = [{"targetLabel": POOL_LABEL, "replacement": self.kind}]
        if self.kind == "plain":
            name = {"sourceLabels": ["model_name"], "targetLabel": "model_name"}
            renamed = {**name, "regex": "(.+)", "replacement": "$1 (plain)"}
            text = "the alerts on speculation are for the other pools"
            endpoint["metricRelabelings"] = Commented(text, [renamed])
        spec = {"selector": {"matchLabels": self.selector}, "podMetricsEndpoints": [endpoint]}
        return self.object("monitoring.coreos.com/v1", "PodMonitor", spec)


def _policy(made: Deployment, pool: _Pool) -> Object:
    """Requests reach the port of the server, and nothing else of a pod; ranks reach each other."""
    mine = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": made.name}}}
    sources = Commented(
        "every pod of this namespace; name others, or Prometheus' namespace, here", [{"podSelector": {}}]
    )
    rules: list[Any] = [{"from": sources, "ports": [{"port": "http"}]}]
    if made.nodes > 1:
        text = "the ranks among themselves, on ports that torch and NCCL choose, without a key: only they may connect"
        rules.append(Commented(text, {"from": [mine]}))
    spec = {**mine, "policyTypes": ["Ingress"], "ingress": rules}
    return pool.object("networking.k8s.io/v1", "NetworkPolicy", spec)


def _claims(made: Deployment, pool: _Pool) -> list[Object]:
    """Where downloads and the profile's own models lie."""
    mode = Commented(
        f"one pod at a time; the components that add pods on other nodes set {SHARED_MODE}", ["ReadWriteOnce"]
    )
    if made.nodes > 1:
        mode = Commented("the pods run on several nodes", [SHARED_MODE])
    sizes = {}
    if made.downloads:
        size_bytes = made.weights_bytes or made.memory_bytes or _UNKNOWN_BYTES
        basis = "assumed: target and draft together"
        if made.weights_bytes:
            basis = "weights by the lock, and half as much"
        sizes["cache"] = Commented(basis, f"{max(10, -int(-1.5 * size_bytes // _GB))}G")
    if made.mounts:
        names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
        sizes["models"] = Commented(f"must hold {names}: copy them there once", "50Gi")
    found = []
    for name, size in sizes.items():
        spec = {"accessModes": mode, "resources": {"requests": {"storage": size}}}
        found.append(pool.object("v1", "PersistentVolumeClaim", spec, name=f"{made.name}-{name}"))
    return found
