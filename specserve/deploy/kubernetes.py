"""A deployment for kustomize: the server itself, and components to put on top."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specserve.deploy.deployment import Artifact, Deployment
from specserve.deploy.monitoring import POOL_LABEL, alert_groups, canary_alerts, canary_analysis
from specserve.deploy.pods import FINGERPRINT, pod, server
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.writer import Commented, yaml_text

SHARED_MODE = "ReadWriteMany"
"""The access mode of a claim that pods on several nodes mount."""
_POOL = "specserve/pool"
_ADDS_PODS = ("autoscaling", "canary")
_ADAPTER = """\
must be a custom metric of the cluster, such as by this rule of prometheus-adapter:
- seriesQuery: '{__name__=~"^vllm:num_requests_waiting$",namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {matches: "^vllm:(.*)$", as: "vllm_${1}"}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"""
_TEXTS = {
    "canary": (
        "The alternative `{alternative}` beside the server, on accelerators of its own. The alerts of "
        "`canary-monitoring` say when it may replace the server."
    ),
    "routes": "One address for the server and its canary, by the Gateway API.",
    "canary-analysis": "For Argo Rollouts: the canary's figures over those of the main pool.",
}
_SHARED = (
    "This component adds pods on other nodes, and they mount the same claims, so your storage class must "
    "offer ReadWriteMany. The access mode of an existing claim cannot change: include this component from "
    "the start, or delete the claim first."
)
Object = dict[str, Any]


def kubernetes(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return the manifests: the server alone, and components to put on top."""
    main = _Pool(made, made.plan, "main")
    claims = _claims(main)
    base = {
        **({"claims.yaml": list(claims.values())} if claims else {}),
        "leaderworkerset.yaml" if made.nodes > 1 else "deployment.yaml": [main.workload()],
        "service.yaml": [main.service()],
        "networkpolicy.yaml": [_policy(main)],
        "poddisruptionbudget.yaml": [main.disruption_budget()],
    }
    rule = main.object("monitoring.coreos.com/v1", "PrometheusRule", {"groups": alert_groups(made.profile)})
    components = {
        "monitoring": {"podmonitor.yaml": main.monitor(), "prometheusrule.yaml": rule},
        "autoscaling": {"autoscaler.yaml": _autoscaler(main)},
        **_more_pools(main),
    }
    found = []
    for name, objects in base.items():
        documents = (yaml_text(each, head="" if at else made.head) for at, each in enumerate(objects))
        found.append(Artifact(name, "---\n".join(documents)))
    wanted = "\n".join(f"- components/{name}" for name in components)
    about = (
        "kubectl apply -k .\nTo add any of these, write a kustomization that lists this folder under `resources` and "
        f"them under `components`:\n{wanted}"
    )
    content = {**_kustomize("Kustomization", "v1beta1"), "resources": sorted(base)}
    text = yaml_text(content, head=f"{made.head}\n\n{about}")
    found.append(Artifact("kustomization.yaml", text, alone=False))
    for name, files in components.items():
        texts = {file: yaml_text(one, head=made.head) for file, one in files.items()}
        texts["kustomization.yaml"] = _component(made, name, sorted(files))
        found += [Artifact(f"components/{name}/{file}", text, alone=False) for file, text in texts.items()]
    return tuple(found)


def _kustomize(kind: str, version: str) -> Object:
    return {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind}


def _component(made: Deployment, name: str, files: list[str]) -> str:
    """The kustomization of a component; one that adds pods lets the claims be mounted on several nodes."""
    content = {**_kustomize("Component", "v1alpha1"), "resources": files}
    text = _TEXTS.get(name, "").format(alternative=made.canary.alternative if made.canary else "")
    head = [made.head, *([text] if text else [])]
    if name in _ADDS_PODS and made.nodes == 1:
        head.append(_SHARED)
        change = json.dumps([{"op": "replace", "path": "/spec/accessModes", "value": [SHARED_MODE]}])
        selected = f"app.kubernetes.io/name={made.name}"
        target = {"kind": "PersistentVolumeClaim", "labelSelector": selected}
        content["patches"] = [{"target": target, "patch": change}]
    return yaml_text(content, head="\n\n".join(head))


def _more_pools(main: _Pool) -> dict[str, dict[str, Object]]:
    """What runs beside the server if it was asked for, and the routes to it."""
    made, claims = main.made, _claims(main)
    if made.canary is None:
        return {}
    pool = _Pool(made.canary.made, made.canary.made.plan, "canary")
    canary = made.canary.made.profile
    alerts = {"groups": canary_alerts(made.profile, canary)}
    analysis = canary_analysis(made.profile, canary)
    route = main.object("gateway.networking.k8s.io/v1", "HTTPRoute", _route(made))

    def about_canary(api: str, kind: str, spec: Object) -> dict[str, Object]:
        one = main.object(api, kind, spec, name=f"{made.name}-canary")
        return {f"{kind.lower()}.yaml": one}

    return {
        "canary": {
            "deployment.yaml": pool.workload(),
            "service.yaml": pool.service(),
            "poddisruptionbudget.yaml": pool.disruption_budget(),
            **{f"claim-{of}.yaml": claim for of, claim in _claims(pool).items() if of not in claims},
        },
        "canary-monitoring": {
            "podmonitor.yaml": pool.monitor(),
            **about_canary("monitoring.coreos.com/v1", "PrometheusRule", alerts),
        },
        "routes": {"httproute.yaml": route},
        "canary-analysis": about_canary("argoproj.io/v1alpha1", "AnalysisTemplate", analysis),
    }


@dataclass(frozen=True, slots=True)
class _Pool:
    """Pods of one launch: the profile's (`main`), or an alternative's (`canary`)."""

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

    @property
    def owner(self) -> dict[str, str]:
        """What starts its pods: a group of them per replica if the server spans several nodes."""
        if self.made.nodes > 1:
            return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        return {"apiVersion": "apps/v1", "kind": "Deployment"}

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

    def workload(self) -> Object:
        if self.made.nodes > 1:  # the leader answers requests, the workers compute
            ranks, leader = self.made.ranks, "$(LWS_LEADER_ADDRESS)"
            together = "a single vLLM rank cannot rejoin: all ranks restart when one ends"
            template = {
                "size": self.made.nodes,
                "restartPolicy": Commented(together, "RecreateGroupOnPodRestart"),
                "leaderTemplate": self.template(ranks[0], leader=leader),
                "workerTemplate": self.template(ranks[1], leader=leader, index="$(LWS_WORKER_INDEX)"),
            }
            group = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
            return self.object(self.owner["apiVersion"], self.owner["kind"], group)
        strategy = Commented(
            "the old pod stops before the new one starts, because a cluster seldom has the accelerators twice; "
            "if yours does, set maxSurge 1 and maxUnavailable 0 in your own kustomization",
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        )
        waited_s = self.made.download_s + self.made.start_limit_s + 1800
        deadline = (
            f"{'the download at 100 MB/s, ' if self.made.downloads else ''}the start, and 30 minutes more"
        )
        spec = {
            "replicas": 1 if self.made.is_cpu else Commented("each replica takes GPUs of its own", 1),
            "selector": {"matchLabels": self.selector},
            "strategy": strategy,
            "progressDeadlineSeconds": Commented(deadline, waited_s),
            "template": self.template(self.plan),
        }
        return self.object(self.owner["apiVersion"], self.owner["kind"], spec)

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

    def monitor(self) -> Object:
        """Prometheus reads every pod of a pool that answers."""
        endpoint: Object = {"port": "http", "path": "/metrics", "interval": "15s"}
        if self.made.scheme == "https":
            endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
        if self.kind == "canary" or self.made.canary:
            endpoint["relabelings"] = [{"targetLabel": POOL_LABEL, "replacement": self.kind}]
        spec = {"selector": {"matchLabels": self.selector}, "podMetricsEndpoints": [endpoint]}
        return self.object("monitoring.coreos.com/v1", "PodMonitor", spec)


def _autoscaler(pool: _Pool) -> Object:
    """More replicas while requests wait."""

    def metric(name: str, average: str) -> Object:
        target = {"type": "AverageValue", "averageValue": average}
        return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}

    def one_per(seconds: int, *, settled_s: int) -> Object:
        policy = {"type": "Pods", "value": 1, "periodSeconds": seconds}
        return {"stabilizationWindowSeconds": settled_s, "policies": [policy]}

    waiting = metric("vllm_num_requests_waiting", "4")
    metrics: list[Any] = [
        Commented("assumed: another replica from 4 waiting requests per replica on", waiting)
    ]
    up = one_per(min(1800, pool.made.start_limit_s), settled_s=60)
    spec = {
        "scaleTargetRef": {**pool.owner, "name": pool.name},
        "minReplicas": 1,
        "maxReplicas": Commented("an example: set it to as many as your accelerators can hold", 2),
        "metrics": Commented(_ADAPTER, metrics),
        "behavior": {
            "scaleUp": Commented("one at a time: a replica helps only once it has started", up),
            "scaleDown": one_per(600, settled_s=900),
        },
    }
    return pool.object("autoscaling/v2", "HorizontalPodAutoscaler", spec)


def _policy(pool: _Pool) -> Object:
    """Requests reach the port of the server, and nothing else of a pod; ranks reach each other."""
    mine = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": pool.made.name}}}
    sources = Commented(
        "every pod of this namespace; add Prometheus' namespace and others in your own kustomization",
        [{"podSelector": {}}],
    )
    rules: list[Any] = [{"from": sources, "ports": [{"port": "http"}]}]
    if pool.made.nodes > 1:
        text = "the ranks among themselves, on ports that torch and NCCL choose, without a key: only they may connect"
        rules.append(Commented(text, {"from": [mine]}))
    spec = {**mine, "policyTypes": ["Ingress"], "ingress": rules}
    return pool.object("networking.k8s.io/v1", "NetworkPolicy", spec)


def _claims(pool: _Pool) -> dict[str, Object]:
    """Where downloads (`cache`) and the profile's own models (`models`) lie."""
    made, sizes = pool.made, {}
    mode = Commented(
        f"one pod at a time; the components that add pods on other nodes set {SHARED_MODE}", ["ReadWriteOnce"]
    )
    if made.nodes > 1:
        mode = Commented("the pods run on several nodes", [SHARED_MODE])
    if made.downloads:
        size = f"{max(10, -int(-1.5 * made.weights_bytes // 1e9))}G"
        sizes["cache"] = Commented(f"{made.weights_basis}, plus half as much again", size)
    if made.mounts:
        sizes["models"] = Commented(f"must hold {made.mounted}: copy them there once", "50Gi")
    specs = {
        name: {"accessModes": mode, "resources": {"requests": {"storage": size}}}
        for name, size in sizes.items()
    }
    claims = {}
    for name, spec in specs.items():
        claims[name] = pool.object("v1", "PersistentVolumeClaim", spec, name=f"{made.name}-{name}")
        claims[name]["metadata"]["labels"]["app.kubernetes.io/component"] = "storage"
    return claims


def _route(made: Deployment) -> Object:
    """The `spec` of an HTTPRoute (Gateway API v1): requests are shared by weight."""
    names = (made.name, f"{made.name}-canary")
    shared = [
        {"name": name, "port": made.plan.port, "weight": share}
        for name, share in zip(names, made.shares, strict=True)
    ]
    gateway = "assumed: name the Gateway that such requests come through in your own kustomization"
    return {
        "parentRefs": Commented(gateway, [{"name": "inference"}]),
        "rules": [{"backendRefs": shared}],
    }
