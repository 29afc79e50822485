"""The points of a benchmark from options, promises and defaults. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.cli.lists import numbers, whole_numbers
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.cli.benchprepare import Asked
    from specserve.measure.bench.result import Point
    from specserve.profile.schema import Profile

_CACHES = {"profile": (True,), "off": (False,), "both": (True, False)}


def points_of(
    asked: Asked, profile: Profile | None, *, defaults: tuple[tuple[str, ...], tuple[int, ...]]
) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """What is measured, and the point of each promise. Options win; without any, what is promised is measured.

    Raises UsageError for a list that is none.
    """
    from specserve.measure.bench.schedule import points, promised_points

    workloads, loads = defaults
    expect = profile.expect if profile is not None else ()
    named = tuple(sources(asked.workloads)) or workloads
    temperatures = numbers(asked.temperature, "--temperature", least=0.0, most=2.0) or (0.0,)
    rates = numbers(asked.request_rate, "--request-rate", least=0.001, most=100_000.0)
    asked_loads = whole_numbers(asked.concurrency, "--concurrency", least=1, most=4096)
    concurrency = asked_loads or (() if rates else ((1,) if asked.quick else loads))
    caches = _CACHES[asked.prefix_cache]
    usual = promised_points(
        expect, workload=named[0], concurrency=(concurrency or (1,))[0], temperature=temperatures[0]
    )
    # without a cache a promise is held against what is measured without it: nothing else is there to judge it by
    promised = tuple(replace(point, prefix_cache=caches[0]) for point in usual)
    is_open = not (asked.workloads or asked_loads or rates or asked.temperature)
    if promised and is_open and not asked.quick:
        each = (replace(point, prefix_cache=cache) for cache in caches for point in promised)
        return tuple(dict.fromkeys(each)), promised
    every = points(named, concurrency=concurrency, rates=rates, temperatures=temperatures, caches=caches)
    return every, promised


def prompts_of(
    names: Iterable[str], sources: Mapping[str, str], *, limit: int | None = None
) -> dict[str, int]:
    """How many prompts each workload has. Raises UsageError, FactError for one that is none: before any launch."""
    from specserve.measure.workloads.load import load

    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = len(load(sources.get(name, name), limit=limit).prompts)
        except UsageError as error:
            if name not in sources:
                error.hint = (
                    f"`expect` names it: `-w {name}.jsonl` gives its prompts, `-w chat` measures others"
                )
            raise
    return found


def sources(workloads: Sequence[str]) -> dict[str, str]:
    """What each is to be loaded from, by its name: that of a file is its stem. Raises UsageError for a name twice."""
    from specserve.measure.workloads.load import name_of

    found: dict[str, str] = {}
    for text in workloads:
        name = name_of(Path(text)) if "/" in text or Path(text).is_file() else text
        if found.setdefault(name, text) != text:
            raise UsageError(f"two workloads are called `{name}`", hint="rename one of the files")
    return found
