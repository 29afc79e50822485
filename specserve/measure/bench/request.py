"""What the command line asks of a benchmark: profiles, workloads, loads, and where they lie."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import UsageError
from specserve.measure.bench.result import Point
from specserve.measure.values import numbers, whole_numbers
from specserve.measure.workloads.load import load, name_of

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,40})=(.+)", re.S)


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of the command line, as `run.json` keeps them."""

    profile: str | None = None
    quick: bool = False
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    temperature: str | None = None
    alternatives: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    launches: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    settings: tuple[str, ...] = ()


def named(text: str) -> tuple[str | None, str]:
    """Return label and place of `[LABEL=]PROFILE|URL|NAME`; a file with a `=` needs no label."""
    match = None if Path(text).is_file() else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def points_of(
    request: BenchRequest, *, defaults: tuple[tuple[str, ...], tuple[int, ...]]
) -> tuple[Point, ...]:
    """Return what is measured. `defaults`: workloads and concurrencies.

    Raises UsageError for what is no list of numbers.
    """
    workloads = tuple(sources(request.workloads)) or defaults[0]
    temperatures = numbers(request.temperature, "--temperature", least=0.0, most=2.0) or (0.0,)
    given = whole_numbers(request.concurrency, "--concurrency", least=1, most=4096)
    loads = given or ((1,) if request.quick else defaults[1])
    return tuple(itertools.starmap(Point, itertools.product(workloads, temperatures, loads)))


def prompts_of(
    names: Iterable[str], sources: Mapping[str, str], *, limit: int | None = None
) -> dict[str, int]:
    """Return how many prompts each workload has. Raises UsageError, FactError if it is none."""
    return {
        name: len(load(sources.get(name, name), limit=limit).prompts)
        for name in dict.fromkeys(names)
    }


def sources(workloads: Sequence[str]) -> dict[str, str]:
    """Return what each is loaded from, by its name. Raises UsageError for a name twice."""
    found: dict[str, str] = {}
    for text in workloads:
        name = name_of(Path(text)) if "/" in text or Path(text).is_file() else text
        if found.setdefault(name, text) != text:
            raise UsageError(f"two workloads are named `{name}`", hint="rename one of the files")
    return found
