"""Which classes of a model's config.json the judged vLLM versions know. Knows no rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specserve.checks.modelfields import Config, architectures
from specserve.checks.rule import Context
from specserve.checks.versions import judged
from specserve.vllm.registry import ModelClass, Registry, registry


def registries(ctx: Context) -> Iterator[tuple[str, Registry]]:
    """The registry of each judged version."""
    for version in judged(ctx):
        yield version, registry(version)


def versions_where(ctx: Context, holds: Callable[[Registry], bool]) -> list[str]:
    """The judged versions for which this holds."""
    return [version for version, known in registries(ctx) if holds(known)]


def class_of(config: Config, known: Registry) -> tuple[str, ModelClass] | None:
    """The first class of a config.json that a version knows, which is the one it takes."""
    for name in architectures(config):
        if name in known.classes:
            return name, known.classes[name]
    return None
