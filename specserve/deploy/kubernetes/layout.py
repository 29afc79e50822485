"""The files of a deployment for kustomize: the server itself, and components to put on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.deploy.artifact import Artifact
from specserve.deploy.deployment import Deployment
from specserve.deploy.kubernetes.network import claims, policy, service
from specserve.deploy.kubernetes.operators import autoscaler, pod_monitor, prometheus_rule
from specserve.deploy.kubernetes.workload import workload
from specserve.deploy.yamltext import yaml_text

_COMPONENT = "kustomize.config.k8s.io/v1alpha1"
_PLAIN = """\
The same server without speculation, for clients that send what speculation does not take (min_p, logit_bias), and for
load at which speculation no longer pays. Send those to its Service; nothing is routed here."""


def kubernetes(made: Deployment, *, groups: list[Any]) -> tuple[Artifact, ...]:
    """The manifests. `groups`: the groups of alert rules, as Prometheus reads them."""
    several = made.nodes > 1
    objects: dict[str, list[dict[str, Any]]] = {
        "claims.yaml": claims(made),
        f"{'leaderworkerset' if several else 'deployment'}.yaml": [workload(made)],
        "service.yaml": [service(made)],
        "networkpolicy.yaml": [policy(made)],
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
    """Applies the server alone; what else there is, it says."""
    wanted = "\n".join(f"- components/{name}" for name in components)
    head = (
        f"{made.head}\n\nkubectl apply -k .\nMore, from a kustomization of your own that has this folder among its "
        f"`resources`, under `components`:\n{wanted}"
    )
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(base),
    }
    return yaml_text(content, head=head)


def _component(made: Deployment, name: str, files: Mapping[str, dict[str, Any]]) -> list[Artifact]:
    folder = f"components/{name}"
    content = {"apiVersion": _COMPONENT, "kind": "Component", "resources": sorted(files)}
    head = f"{made.head}\n\n{_PLAIN}" if name == "plain-pool" else made.head
    return [
        *(
            Artifact(f"{folder}/{file}", yaml_text(one, head=made.head), alone=False)
            for file, one in files.items()
        ),
        Artifact(f"{folder}/kustomization.yaml", yaml_text(content, head=head), alone=False),
    ]
