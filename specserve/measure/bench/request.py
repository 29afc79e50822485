"""What is asked of a benchmark, and the points and prompts that it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import UsageError
from specserve.measure.values import numbers, whole_numbers

if TYPE_CHECKING:
    from specserve.measure.bench.result import Point
    from specserve.profile.schema import Profile


def points_of(
    asked: BenchRequest, profile: Profile | None, *, defaults: tuple[tuple[str, ...], tuple[int, ...]]
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
    cache = asked.prefix_cache != "off"
    usual = promised_points(
        expect, workload=named[0], concurrency=(concurrency or (1,))[0], temperature=temperatures[0]
    )
    # without a cache a promise is held against what is measured without it: nothing else is there to judge it by
    promised = tuple(replace(point, prefix_cache=cache) for point in usual)
    is_open = not (asked.workloads or asked_loads or rates or asked.temperature)
    if promised and is_open and not asked.quick:
        return tuple(dict.fromkeys(promised)), promised
    every = points(named, concurrency=concurrency, rates=rates, temperatures=temperatures, caches=(cache,))
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


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What the command line says, as `run.json` keeps it."""

    profile: str | None = None
    quick: bool = False
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    request_rate: str | None = None
    temperature: str | None = None
    alternatives: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    blocks: int | None = None
    restarts: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    prompts: int | None = None
    prefix_cache: str = "profile"
    seed: int = 0
    ignore_eos: bool = False
    gpu_hour_price: float | None = None
    include_prompts: bool = False
    settings: tuple[str, ...] = ()
    devices: str | None = None
    api_key_env: str | None = None
    check: bool = True
    locked: bool = False
    use_lock: bool = True


def with_places(asked: BenchRequest) -> BenchRequest:
    """With absolute names of files, and the URLs of detached servers: the run may be resumed from elsewhere.

    Raises UsageError for stdin.
    """
    from specserve.serve.detached.registry import find_server, names

    if asked.profile == "-" or "-" in asked.workloads:
        raise UsageError("a benchmark is not read from stdin: it could not be resumed", hint="name a file")

    servers = names()

    def placed(text: str) -> str:
        name, equals, rest = text.rpartition("=")
        path = Path(rest)
        if path.is_file():
            return f"{name}{equals}{path.absolute()}"
        return f"{name}{equals}{find_server(None, rest, None)[0]}" if rest in servers else text

    assert asked.profile is not None
    return replace(
        asked,
        profile=placed(asked.profile),
        workloads=tuple(
            str(Path(each).absolute()) if Path(each).is_file() else each for each in asked.workloads
        ),
        others=tuple(map(placed, asked.others)),
    )
