"""A deployment for kustomize: the server itself, components to put on top, and their pods."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specserve.deploy.deployment import (
    MODELS,
    USER_NOTE,
    Artifact,
    Deployment,
    Reference,
    environment,
    literal,
    places,
    staging_script,
)
from specserve.deploy.monitoring import POOL_LABEL, alert_groups, canary_alerts, canary_analysis
from specserve.plan.launchplan import LaunchPlan, leader_at, value_at
from specserve.profile.writer import Commented, comment, yaml_text

Object = dict[str, Any]
_PROBE_PERIOD_S = 10
_POOL = "specserve/pool"
_MONITORING = "monitoring.coreos.com/v1"
_ABOUT_CANARY = (
    "The alternative `{}` beside the server, on accelerators of its own. The alerts of "
    "`canary-monitoring` say when it may replace the server.\n\nIts pods run on other nodes and "
    "mount the same claims, so your storage class must offer ReadWriteMany. The access mode of an "
    "existing claim cannot change: include this component first, or delete the claim."
)


def kubernetes(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return the manifests: the server alone, and components to put on top."""
    main = _Pool(made, "main")
    workload = "leaderworkerset.yaml" if made.nodes > 1 else "deployment.yaml"
    base = {
        "claims.yaml": list(_claims(main).values()),
        workload: [main.workload()],
        "service.yaml": [main.service()],
        "networkpolicy.yaml": [_policy(main)],
    }
    rules = main.object(_MONITORING, "PrometheusRule", {"groups": alert_groups(made.profile)})
    components = {"monitoring": {"podmonitor.yaml": main.monitor(), "prometheusrule.yaml": rules}}
    if made.canary:
        components |= _canary(main, made.canary.made, made.canary.percent)
    found = []
    for name, objects in base.items():
        documents = [yaml_text(one) for one in objects]
        found.append(Artifact(name, comment(made.head) + "---\n".join(documents)))
    about = (
        f"{_needs(made)}kubectl apply -k .\nTo add any of these, write a kustomization that lists "
        "this folder under `resources` and them under `components`:\n"
    ) + "\n".join(f"- components/{name}" for name in components)
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    text = yaml_text({**kind, "resources": sorted(base)}, head=f"{made.head}\n\n{about}")
    found.append(Artifact("kustomization.yaml", text, alone=False))
    for name, files in components.items():
        texts = {file: yaml_text(one, head=made.head) for file, one in files.items()}
        texts["kustomization.yaml"] = _component(made, name, sorted(files))
        for file, text in texts.items():
            found.append(Artifact(f"components/{name}/{file}", text, alone=False))
    return tuple(found)


def _component(made: Deployment, name: str, files: list[str]) -> str:
    """The kustomization of a component; the canary's lets other nodes mount the claims."""
    kind = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    content: Object = {**kind, "resources": files}
    head = made.head
    if made.canary and name == "canary":
        head += f"\n\n{_ABOUT_CANARY.format(made.canary.alternative)}"
        change = {"op": "replace", "path": "/spec/accessModes", "value": ["ReadWriteMany"]}
        selected = f"app.kubernetes.io/name={made.name}"
        target = {"kind": "PersistentVolumeClaim", "labelSelector": selected}
        content["patches"] = [{"target": target, "patch": json.dumps([change])}]
    return yaml_text(content, head=head)


def _canary(main: _Pool, made: Deployment, percent: int) -> dict[str, dict[str, Object]]:
    """The components of what runs beside the server, and of the routes to it."""
    pool, profiles = _Pool(made, "canary"), (main.made.profile, made.profile)
    rules = {"groups": canary_alerts(*profiles)}
    analysis = canary_analysis(*profiles)
    gateway = "assumed: name the Gateway of such requests in your own kustomization"
    shared = [
        {"name": each.name, "port": main.made.plan.port, "weight": weight}
        for each, weight in ((main, 100 - percent), (pool, percent))
    ]
    route = {
        "parentRefs": Commented(gateway, [{"name": "inference"}]),
        "rules": [{"backendRefs": shared}],
    }
    more = {of: claim for of, claim in _claims(pool).items() if of not in _claims(main)}
    return {
        "canary": {
            "deployment.yaml": pool.workload(),
            "service.yaml": pool.service(),
            **{f"claim-{of}.yaml": claim for of, claim in more.items()},
        },
        "canary-monitoring": {
            "podmonitor.yaml": pool.monitor(),
            "prometheusrule.yaml": pool.object(_MONITORING, "PrometheusRule", rules),
        },
        "routes": {
            "httproute.yaml": main.object("gateway.networking.k8s.io/v1", "HTTPRoute", route)
        },
        "canary-analysis": {
            "analysistemplate.yaml": pool.object(
                "argoproj.io/v1alpha1", "AnalysisTemplate", analysis
            )
        },
    }


@dataclass(frozen=True, slots=True)
class _Pool:
    """Pods of one launch: the profile's (`main`), or an alternative's (`canary`)."""

    made: Deployment
    kind: str

    @property
    def name(self) -> str:
        return self.made.name if self.kind == "main" else f"{self.made.name}-{self.kind}"

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which its pods are found; they never change."""
        return {"app.kubernetes.io/name": self.made.name, _POOL: self.kind}

    @property
    def labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": self.made.name,
            "app.kubernetes.io/version": self.made.plan.vllm,
            "app.kubernetes.io/managed-by": "specserve",
            "specserve/fingerprint": self.made.plan.fingerprint[:16],
            _POOL: self.kind,
        }

    def object(self, api: str, kind: str, spec: Object) -> Object:
        metadata = {"name": self.name, "labels": self.labels}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

    def template(self, plan: LaunchPlan, **references: str) -> Object:
        return {"metadata": {"labels": self.labels}, "spec": _pod(self.made, plan, **references)}

    def workload(self) -> Object:
        made = self.made
        if made.nodes > 1:  # the leader answers requests, the workers compute
            together = "a single vLLM rank cannot rejoin: all ranks restart when one ends"
            leader = "$(LWS_LEADER_ADDRESS)"
            worker = self.template(made.ranks[1], leader=leader, index="$(LWS_WORKER_INDEX)")
            group = {
                "size": made.nodes,
                "restartPolicy": Commented(together, "RecreateGroupOnPodRestart"),
                "leaderTemplate": self.template(made.ranks[0], leader=leader),
                "workerTemplate": worker,
            }
            spec = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": group}
            return self.object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
        one = (
            "the old pod stops before the new one starts: a cluster seldom has the accelerators "
            "twice; if yours does, set maxSurge 1 and maxUnavailable 0 in your own kustomization"
        )
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
        limit_s = (made.read_s if made.downloads else 0) + made.start_limit_s + 1800
        deadline = "the download at 100 MB/s, the start, and 30 minutes more"
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": self.selector},
            "strategy": Commented(one, rolling),
            "progressDeadlineSeconds": Commented(deadline, limit_s),
            "template": self.template(made.plan),
        }
        return self.object("apps/v1", "Deployment", spec)

    def service(self) -> Object:
        """One address inside of the cluster."""
        found = self.selector
        if self.made.nodes > 1:
            found |= {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
        ports = [{"name": "http", "port": self.made.plan.port, "targetPort": "http"}]
        spec = {"type": "ClusterIP", "selector": found, "ports": ports}
        return self.object("v1", "Service", spec)

    def monitor(self) -> Object:
        """Prometheus reads every pod of a pool that answers."""
        endpoint: Object = {"port": "http", "path": "/metrics", "interval": "15s"}
        if self.made.scheme == "https":
            endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
        if self.kind == "canary" or self.made.canary:
            endpoint["relabelings"] = [{"targetLabel": POOL_LABEL, "replacement": self.kind}]
        spec = {"selector": {"matchLabels": self.selector}, "podMetricsEndpoints": [endpoint]}
        return self.object(_MONITORING, "PodMonitor", spec)


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
    mode = Commented("one pod at a time; the component `canary` changes it", ["ReadWriteOnce"])
    if made.nodes > 1:
        mode = Commented("the pods run on several nodes", ["ReadWriteMany"])
    room, size = "for what vLLM, torch and Triton compile", "10G"
    needed = f"{max(10, -int(-1.5 * made.weights_bytes // 1e9))}G"
    if made.downloads:
        room, size = f"{made.weights_basis}, plus half as much again", needed
    sizes = {"cache": Commented(room, size)}
    if made.mounts:
        size = needed if "HF_HUB_CACHE" in made.variables else "50Gi"
        sizes["models"] = Commented(f"must hold {made.mounted}: copy them there once", size)
    claims = {}
    for name, storage in sizes.items():
        spec = {"accessModes": mode, "resources": {"requests": {"storage": storage}}}
        claims[name] = pool.object("v1", "PersistentVolumeClaim", spec)
        claims[name]["metadata"]["name"] = f"{made.name}-{name}"
        claims[name]["metadata"]["labels"]["app.kubernetes.io/component"] = "storage"
    return claims


def _needs(made: Deployment) -> str:
    """What must be there before, as lines of a comment."""
    found = [] if made.is_cpu else ["NVIDIA's device plugin"]
    found += ["LeaderWorkerSet's controller"] if made.nodes > 1 else []
    found += [f"the Secret {made.name}-api-key"] if made.secrets else []
    found += [f"{made.mounted} in the claim {made.name}-models"] if made.mounts else []
    found += ["the Secret huggingface, for gated models"] if made.downloads else []
    return f"Needs {'; '.join(found)}.\n" if found else ""


def _pod(
    made: Deployment, plan: LaunchPlan, *, leader: str | None = None, index: str | None = None
) -> Object:
    """The `spec` of a pod that serves a plan.

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
