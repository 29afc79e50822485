"""Two launches side by side: what differs, and where each value was written. Reads no file and no model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from specserve.diagnostics import Span
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.profile.schema import Hardware, Profile, keys_of
from specserve.profile.secrets import masked
from specserve.vllm.arguments import jsonable

_BESIDES = ("vllm", "hardware", "expect", "alternatives")
"""Sections of a profile that a launch does not show."""
_BESIDES_SERVER = ("stall_timeout_s", "shutdown_timeout_s")


@dataclass(frozen=True, slots=True)
class Written:
    """A value and where it was written; without a place: specserve added it, or a file says it that has no lines."""

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
    ignored: tuple[str, ...] = ()
    """What is not compared of a command, because vLLM does not have it."""


@dataclass(frozen=True, slots=True)
class LaunchComparison:
    """What differs, by kind."""

    argv: tuple[Difference, ...] = ()
    env: tuple[Difference, ...] = ()
    profile: tuple[Difference, ...] = ()
    """What a launch does not show: version range, hardware, promises, alternatives, time limits."""

    @property
    def count(self) -> int:
        """How many differences there are."""
        return len(self.argv) + len(self.env) + len(self.profile)


def compare(a: Side, b: Side) -> LaunchComparison:
    """The launches and the profiles of two sides, key by key, in the order of the first."""
    return LaunchComparison(
        argv=differences(_argv(a), _argv(b)),
        env=differences(_env(a), _env(b)),
        profile=differences(_besides(a), _besides(b)),
    )


def differences(a: Mapping[str, Written], b: Mapping[str, Written]) -> tuple[Difference, ...]:
    """The keys whose values are not the same; places do not count."""
    return tuple(
        Difference(key, _shown(key, a.get(key)), _shown(key, b.get(key)))
        for key in dict.fromkeys([*a, *b])
        if _value(a.get(key)) != _value(b.get(key))
    )


def _shown(key: str, written: Written | None) -> Written | None:
    return written and replace(written, value=masked(key, written.value))


def _value(written: Written | None) -> tuple[str, Any] | None:
    """A value that equals no other type's: True is not 1, but 1.0 is."""
    if written is None:
        return None
    return ("flag" if isinstance(written.value, bool) else "", written.value)


def flat(key: str, value: Any, *, spans: Mapping[str, Span], path: str) -> Iterator[tuple[str, Written]]:
    """The leaves of nested mappings with dotted keys, each at its own place, or at that of what holds it."""
    parts = [(f".{name}", item) for name, item in value.items()] if isinstance(value, Mapping) else []
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        parts = [(f"[{number}]", item) for number, item in enumerate(value)]
    if parts:
        for part, item in parts:
            yield from flat(f"{key}{part}", item, spans=spans, path=f"{path}{part}")
        return
    place = path
    while place and place not in spans:
        place = place.rpartition(".")[0]
    yield key, Written(value, spans.get(place))


def _argv(side: Side) -> dict[str, Written]:
    """The flags; of a JSON value each key by itself, as vLLM takes them too: `--speculative-config.method`.

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
        found |= dict(flat(key, value, spans=spans, path=path))
    return found


def _env(side: Side) -> dict[str, Written]:
    spans = {origin.key: origin.span for origin in side.plan.origins if origin.key in side.plan.env}
    return {
        name: Written(f"${value.name}" if isinstance(value, FromEnv) else value, spans.get(name))
        for name, value in side.plan.env.items()
    }


def _besides(side: Side) -> dict[str, Written]:
    """The rest of the profile by dotted path, as far as it says something."""
    profile = side.profile
    found: dict[str, Written] = {}
    for name in _BESIDES:
        value = jsonable(getattr(profile, name))
        if name == "alternatives":
            value = {variant: jsonable(block.keys) for variant, block in profile.alternatives.items()}
        if name == "hardware" and value:
            defaults = keys_of(Hardware)
            value = {key: item for key, item in value.items() if item != defaults[key].default}
        found |= dict(flat(name, _said(value), spans=profile.spans, path=name))
    for name in _BESIDES_SERVER:
        path = f"server.{name}"
        found |= dict(flat(path, getattr(profile.server, name), spans=profile.spans, path=path))
    return {key: written for key, written in found.items() if written.value not in (None, {}, [])}


def _said(value: Any) -> Any:
    """Without the keys that nobody wrote."""
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return [_said(item) for item in value] if isinstance(value, list) else value
