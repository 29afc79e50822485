"""Two launches side by side: what differs, and where each value was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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


def sides(*named: tuple[str, Profile]) -> list[Side]:
    """The launch of each by the newest version that all are for; not for this machine."""
    ranges = [in_range(profile.vllm or "") or known_versions() for _, profile in named]
    common = [version for version in ranges[0] if all(version in known for known in ranges)]
    found = []
    for (label, profile), known in zip(named, ranges, strict=True):
        version, hardware = (common or known)[-1], profile.hardware
        platform = "cpu" if hardware and hardware.accelerator == "cpu" else "cuda"
        plan = launch(profile, table=table(version), platform=platform, version=version)
        found.append(Side(label, profile, plan))
    return found


def compare(a: Side, b: Side) -> dict[str, list[Difference]]:
    """What differs in `argv` and `env`, in the order of the first; True is not 1."""
    found: dict[str, list[Difference]] = {"argv": [], "env": []}
    for part, differences in found.items():
        ours, theirs = (dict(_leaves(side, is_env=part == "env")) for side in (a, b))
        for key in {**ours, **theirs}:
            one, other = ours.get(key), theirs.get(key)
            kinds = [each and (isinstance(each.value, bool), each.value) for each in (one, other)]
            if kinds[0] != kinds[1]:
                shown = (
                    each and Written(masked(key, each.value), each.span) for each in (one, other)
                )
                differences.append(Difference(key, *shown))
    return found


def _leaves(side: Side, *, is_env: bool) -> Iterator[tuple[str, Written]]:
    """The flags, or the variables. Of JSON each key by itself, as vLLM takes them: `--x.method`.

    A flag without a value is on; `--no-x` is `--x`, off.
    """
    for origin in side.plan.origins:
        key, value, span = origin.key, origin.value, origin.span
        if (key in side.plan.env) is not is_env:
            continue
        if isinstance(value, FromEnv):
            value = f"${value.name}"
        elif not value and key.startswith("--"):
            key, value = f"--{key[2:].removeprefix('no-')}", not key.startswith("--no-")
        elif value.startswith("{") and not is_env:
            with suppress(ValueError):
                value = json.loads(value)
        yield from _flat(key, value, span, side.profile)


def _flat(
    key: str, value: Any, span: Span | None, profile: Profile
) -> Iterator[tuple[str, Written]]:
    """The leaves of nested mappings with dotted keys, each at its place or that of its holder."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            place = span and profile.spans.get(f"{span.path}.{name}", span)
            yield from _flat(f"{key}.{name}", item, place, profile)
    else:
        yield key, Written(value, span)
