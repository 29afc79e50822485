"""The targets by name. Knows no file system and no command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from specserve.deploy.artifact import Artifact
from specserve.deploy.compose import compose
from specserve.deploy.deployment import Deployment
from specserve.deploy.kubernetes.layout import kubernetes
from specserve.deploy.observing import PROMETHEUS_URL, groups, observing
from specserve.deploy.ray import ray
from specserve.deploy.systemd import systemd


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files are to lie, and where the profile says that the server listens."""

    folder: str
    """Absolute: relative paths are seen from here."""
    host: str


def render(target: str, made: Deployment, place: Place) -> tuple[Artifact, ...]:
    """The files of a target. Raises KeyError for one that is not in TARGETS, UsageError for what it cannot do."""
    return TARGETS[target](replace(made, target=target), place)


def _compose(made: Deployment, place: Place) -> tuple[Artifact, ...]:
    files = observing(made, target=f"vllm:{made.plan.port}", prometheus_url=PROMETHEUS_URL)
    return compose(made, folder=place.folder, monitoring=files)


def _monitoring(made: Deployment, place: Place) -> tuple[Artifact, ...]:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(place.host, place.host)  # noqa: S104
    return observing(made, target=f"{host}:{made.plan.port}", prometheus_url="http://127.0.0.1:9090")


TARGETS: Mapping[str, Callable[[Deployment, Place], tuple[Artifact, ...]]] = {
    "compose": _compose,
    "kubernetes": lambda made, _place: kubernetes(made, groups=groups(made)),
    "systemd": lambda made, place: systemd(made, host=place.host),
    "ray": lambda made, _place: ray(made),
    "monitoring": _monitoring,
}
