"""Two launches side by side: what differs, and where each value was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from specserve.diagnostics import Span
from specserve.plan.launch import launch
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.profile.schema import Profile
from specserve.profile.secrets import masked
from specserve.vllm.versions import in_range, known_versions, table


@dataclass(frozen=True, slots=True)
class Written:
    """A value and where it was written; without a place: specserve added it."""

    value: Any
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same on both sides, secrets starred out; None: it is not there."""

    key: str
    a: Written | None
    b: Written | None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what it is called, its profile, and the launch that it makes."""

    label: str
    profile: Profile
    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class LaunchComparison:
    """What differs, by kind."""

    argv: tuple[Difference, ...] = ()
    env: tuple[Difference, ...] = ()


def sides(*named: tuple[str, Profile]) -> list[Side]:
    """The launch of each by the newest version that all are for; not for this machine."""
    ranges = [in_range(profile.vllm or "") or known_versions() for _, profile in named]
    common = [version for version in ranges[0] if all(version in known for known in ranges)]
    machines = [profile.hardware.accelerator for _, profile in named if profile.hardware]
    found = []
    for (label, profile), known in zip(named, ranges, strict=True):
        version = (common or list(known))[-1]
        # a command names no hardware: it is for the machine of the other side
        own = [profile.hardware.accelerator] if profile.hardware else machines
        platform = "cpu" if "cpu" in own else "cuda"
        plan = launch(profile, table=table(version), platform=platform, version=version)
        found.append(Side(label, profile, plan))
    return found


def compare(a: Side, b: Side) -> LaunchComparison:
    """The launches of two sides, key by key, in the order of the first."""
    return LaunchComparison(argv=differences(_argv(a), _argv(b)), env=differences(_env(a), _env(b)))


def differences(a: Mapping[str, Written], b: Mapping[str, Written]) -> tuple[Difference, ...]:
    """The keys whose values are not the same; places do not count, and True is not 1."""

    def shown(key: str, written: Written | None) -> Written | None:
        return written and replace(written, value=masked(key, written.value))

    def value(written: Written | None) -> Any:
        return written and (isinstance(written.value, bool), written.value)

    return tuple(
        Difference(key, shown(key, a.get(key)), shown(key, b.get(key)))
        for key in dict.fromkeys([*a, *b])
        if value(a.get(key)) != value(b.get(key))
    )


def _flat(
    key: str, value: Any, *, spans: Mapping[str, Span], path: str
) -> Iterator[tuple[str, Written]]:
    """The leaves of nested mappings with dotted keys, each at its place or that of its holder."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _flat(f"{key}.{name}", item, spans=spans, path=f"{path}.{name}")
        return
    while path and path not in spans:
        path = path.rpartition(".")[0]
    yield key, Written(value, spans.get(path))


def _argv(side: Side) -> dict[str, Written]:
    """The flags; of a JSON value each key by itself, as vLLM takes them too: `--x.method`.

    A flag without a value is on; `--no-x` is `--x`, off.
    """
    found: dict[str, Written] = {}
    for origin in side.plan.origins:
        if origin.key in side.plan.env:
            continue
        key, value = origin.key, cast(Any, origin.value)
        if not value and key.startswith("--"):
            key, value = f"--{key[2:].removeprefix('no-')}", not key.startswith("--no-")
        elif value.startswith("{"):
            with suppress(ValueError):
                value = json.loads(value)
        path, spans = (origin.span.path, side.profile.spans) if origin.span else ("", {})
        found |= dict(_flat(key, value, spans=spans, path=path))
    return found


def _env(side: Side) -> dict[str, Written]:
    spans = {origin.key: origin.span for origin in side.plan.origins}
    return {
        name: Written(f"${value.name}" if isinstance(value, FromEnv) else value, spans.get(name))
        for name, value in side.plan.env.items()
    }
