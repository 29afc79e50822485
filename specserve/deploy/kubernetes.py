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
_TEXTS = {
    "canary": (
        "The alternative `{alternative}` beside the server, on accelerators of its own. The alerts "
        "of `canary-monitoring` say when it may replace the server.\n\nIts pods run on other nodes "
        "and mount the same claims, so your storage class must offer ReadWriteMany. The access "
        "mode of an existing claim cannot change: include this component from the start, or delete "
        "the claim first."
    ),
    "routes": "One address for the server and its canary, by the Gateway API.",
    "canary-analysis": "For Argo Rollouts: what the canary loses against the main pool.",
}
Object = dict[str, Any]


def kubernetes(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return the manifests: the server alone, and components to put on top."""
    main = _Pool(made, made.plan, "main")
    base = {
        "claims.yaml": list(_claims(main).values()),
        "leaderworkerset.yaml" if made.nodes > 1 else "deployment.yaml": [main.workload()],
        "service.yaml": [main.service()],
        "networkpolicy.yaml": [_policy(main)],
    }
    rule = main.object(
        "monitoring.coreos.com/v1", "PrometheusRule", {"groups": alert_groups(made.profile)}
    )
    components = {
        "monitoring": {"podmonitor.yaml": main.monitor(), "prometheusrule.yaml": rule},
        **_canary(main),
    }
    found = []
    for name, objects in base.items():
        documents = (
            yaml_text(each, head="" if at else made.head) for at, each in enumerate(objects)
        )
        found.append(Artifact(name, "---\n".join(documents)))
    wanted = "\n".join(f"- components/{name}" for name in components)
    about = (
        f"{_needs(made)}kubectl apply -k .\nTo add any of these, write a kustomization that lists "
        f"this folder under `resources` and them under `components`:\n{wanted}"
    )
    content = {**_kustomize("Kustomization", "v1beta1"), "resources": sorted(base)}
    text = yaml_text(content, head=f"{made.head}\n\n{about}")
    found.append(Artifact("kustomization.yaml", text, alone=False))
    for name, files in components.items():
        texts = {file: yaml_text(one, head=made.head) for file, one in files.items()}
        texts["kustomization.yaml"] = _component(made, name, sorted(files))
        found += [
            Artifact(f"components/{name}/{file}", text, alone=False) for file, text in texts.items()
        ]
    return tuple(found)


def _kustomize(kind: str, version: str) -> Object:
    return {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind}


def _component(made: Deployment, name: str, files: list[str]) -> str:
    """The kustomization of a component; the canary's lets other nodes mount the claims."""
    content = {**_kustomize("Component", "v1alpha1"), "resources": files}
    text = _TEXTS.get(name, "").format(alternative=made.canary.alternative if made.canary else "")
    if name == "canary":
        change = json.dumps(
            [{"op": "replace", "path": "/spec/accessModes", "value": [SHARED_MODE]}]
        )
        selected = f"app.kubernetes.io/name={made.name}"
        target = {"kind": "PersistentVolumeClaim", "labelSelector": selected}
        content["patches"] = [{"target": target, "patch": change}]
    return yaml_text(content, head="\n\n".join(filter(None, (made.head, text))))


def _canary(main: _Pool) -> dict[str, dict[str, Object]]:
    """What runs beside the server if it was asked for, and the routes to it."""
    made = main.made
    if made.canary is None:
        return {}
    pool = _Pool(made.canary.made, made.canary.made.plan, "canary")
    profiles = (made.profile, pool.made.profile)
    rules = pool.object(
        "monitoring.coreos.com/v1", "PrometheusRule", {"groups": canary_alerts(*profiles)}
    )
    analysis = pool.object("argoproj.io/v1alpha1", "AnalysisTemplate", canary_analysis(*profiles))
    route = main.object("gateway.networking.k8s.io/v1", "HTTPRoute", _route(made))
    more = {of: claim for of, claim in _claims(pool).items() if of not in _claims(main)}
    return {
        "canary": {
            "deployment.yaml": pool.workload(),
            "service.yaml": pool.service(),
            **{f"claim-{of}.yaml": claim for of, claim in more.items()},
        },
        "canary-monitoring": {"podmonitor.yaml": pool.monitor(), "prometheusrule.yaml": rules},
        "routes": {"httproute.yaml": route},
        "canary-analysis": {"analysistemplate.yaml": analysis},
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

    def object(self, api: str, kind: str, spec: Object) -> Object:
        """An object with name, labels and the fingerprint."""
        annotations = {
            FINGERPRINT: self.made.plan.fingerprint,
            "specserve/profile": self.made.profile.name,
        }
        labels = {**self.made.labels, _POOL: self.kind}
        metadata = {"name": self.name, "labels": labels, "annotations": annotations}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

    def template(
        self, plan: LaunchPlan, *, leader: str | None = None, index: str | None = None
    ) -> Object:
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
                "workerTemplate": self.template(
                    ranks[1], leader=leader, index="$(LWS_WORKER_INDEX)"
                ),
            }
            group = {
                "replicas": 1,
                "startupPolicy": "LeaderCreated",
                "leaderWorkerTemplate": template,
            }
            return self.object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", group)
        strategy = Commented(
            "the old pod stops before the new one starts: a cluster seldom has the accelerators "
            "twice; if yours does, set maxSurge 1 and maxUnavailable 0 in your own kustomization",
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        )
        waited_s = self.made.download_s + self.made.start_limit_s + 1800
        deadline = "the download at 100 MB/s, the start, and 30 minutes more"
        spec = {
            "replicas": 1
            if self.made.is_cpu
            else Commented("each replica takes GPUs of its own", 1),
            "selector": {"matchLabels": self.selector},
            "strategy": strategy,
            "progressDeadlineSeconds": Commented(deadline, waited_s),
            "template": self.template(self.plan),
        }
        return self.object("apps/v1", "Deployment", spec)

    def service(self) -> Object:
        """One address inside of the cluster."""
        found = self.selector
        if self.made.nodes > 1:
            found |= {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
        port = {"name": "http", "port": self.made.plan.port, "targetPort": "http"}
        return self.object(
            "v1", "Service", {"type": "ClusterIP", "selector": found, "ports": [port]}
        )

    def monitor(self) -> Object:
        """Prometheus reads every pod of a pool that answers."""
        endpoint: Object = {"port": "http", "path": "/metrics", "interval": "15s"}
        if self.made.scheme == "https":
            endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
        if self.kind == "canary" or self.made.canary:
            endpoint["relabelings"] = [{"targetLabel": POOL_LABEL, "replacement": self.kind}]
        spec = {"selector": {"matchLabels": self.selector}, "podMetricsEndpoints": [endpoint]}
        return self.object("monitoring.coreos.com/v1", "PodMonitor", spec)


def _policy(pool: _Pool) -> Object:
    """Requests reach the port of the server, and nothing else of a pod; ranks reach each other."""
    mine = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": pool.made.name}}}
    sources = Commented(
        "every pod of this namespace; add others, such as Prometheus', in your own kustomization",
        [{"podSelector": {}}],
    )
    rules: list[Any] = [{"from": sources, "ports": [{"port": "http"}]}]
    if pool.made.nodes > 1:
        text = "the ranks among themselves, on ports that torch and NCCL choose, without a key"
        rules.append(Commented(text, {"from": [mine]}))
    spec = {**mine, "policyTypes": ["Ingress"], "ingress": rules}
    return pool.object("networking.k8s.io/v1", "NetworkPolicy", spec)


def _claims(pool: _Pool) -> dict[str, Object]:
    """Where downloads and what vLLM compiles (`cache`), and the profile's own models lie."""
    made = pool.made
    mode = Commented(
        f"one pod at a time; the component `canary` sets {SHARED_MODE}", ["ReadWriteOnce"]
    )
    if made.nodes > 1:
        mode = Commented("the pods run on several nodes", [SHARED_MODE])
    room, size = "for what vLLM, torch and Triton compile", "10G"
    if made.downloads:
        room = f"{made.weights_basis}, plus half as much again"
        size = f"{max(10, -int(-1.5 * made.weights_bytes // 1e9))}G"
    sizes = {"cache": Commented(room, size)}
    if made.mounts:
        sizes["models"] = Commented(f"must hold {made.mounted}: copy them there once", "50Gi")
    claims = {}
    for name, storage in sizes.items():
        spec = {"accessModes": mode, "resources": {"requests": {"storage": storage}}}
        claims[name] = pool.object("v1", "PersistentVolumeClaim", spec)
        claims[name]["metadata"]["name"] = f"{made.name}-{name}"
        claims[name]["metadata"]["labels"]["app.kubernetes.io/component"] = "storage"
    return claims


def _route(made: Deployment) -> Object:
    """The `spec` of an HTTPRoute (Gateway API v1): requests are shared by weight."""
    percent = made.canary.percent if made.canary else 0
    shared = [
        {"name": made.name, "port": made.plan.port, "weight": 100 - percent},
        {"name": f"{made.name}-canary", "port": made.plan.port, "weight": percent},
    ]
    gateway = "assumed: name the Gateway of such requests in your own kustomization"
    return {
        "parentRefs": Commented(gateway, [{"name": "inference"}]),
        "rules": [{"backendRefs": shared}],
    }


def _needs(made: Deployment) -> str:
    """What must be there before, as lines of a comment."""
    found = [] if made.is_cpu else ["NVIDIA's device plugin"]
    found += ["LeaderWorkerSet's controller"] if made.nodes > 1 else []
    found += [f"the Secret {made.name}-api-key"] if made.has_key else []
    found += [f"{made.mounted} in the claim {made.name}-models"] if made.mounts else []
    found += ["the Secret huggingface, for gated models"] if made.downloads else []
    return f"Needs {'; '.join(found)}.\n" if found else ""
