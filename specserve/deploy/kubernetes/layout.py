"""The files of a deployment for kustomize: the server itself, and components to put on top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specserve.deploy.artifact import Artifact
from specserve.deploy.deployment import Deployment
from specserve.deploy.kubernetes.network import SHARED_MODE, claims, policy, service
from specserve.deploy.kubernetes.operators import autoscaler, pod_monitor, prometheus_rule
from specserve.deploy.kubernetes.workload import disruption_budget, workload
from specserve.deploy.yamltext import yaml_text

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


def kubernetes(made: Deployment, *, groups: list[Any]) -> tuple[Artifact, ...]:
    """The manifests. `groups`: the groups of alert rules, as Prometheus reads them."""
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
            "prometheusrule.yaml": prometheus_rule(made, groups),
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
