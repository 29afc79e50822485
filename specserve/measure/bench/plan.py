"""A benchmark before it starts: what the command line asks; its variants, points and launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import (
    BenchRequest,
    Variant,
    plan_variants,
    side_by_side,
)
from specserve.measure.values import numbers, seconds, whole_numbers
from specserve.measure.workloads.load import load, name_of

if TYPE_CHECKING:
    from specserve.profile.schema import Profile

BUDGET = "30m"
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}
_BLOCKS, _CPU_TOKENS = 8, 64
_QUICK_BLOCKS, _QUICK_PROMPTS, _QUICK_TOKENS = 6, 18, 48


@dataclass(frozen=True, slots=True)
class Session:
    """Variants that run at the same time, so that their blocks take turns."""

    launch: int
    """Number of the launch; blocks of two variants are compared if they have the same one."""
    variants: tuple[str, ...]


def sessions(variants: Sequence[Variant], *, launches: int, together: bool) -> tuple[Session, ...]:
    """Return the launches in order: together, or each alone in the order A B B A.

    The order is reversed from launch to launch: a steady drift of the machine cancels, and so does
    what the server gains that is started last.
    """
    names = tuple(variant.name for variant in variants)
    found = list[Session]()
    for launch in range(launches):
        order = names[::-1] if launch % 2 else names
        every = [order] if together else [(name,) for name in order]
        found += [Session(launch, each) for each in every]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What a benchmark measures."""

    variants: tuple[Variant, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    blocks: int
    """Blocks of each point in a round; each launch has one round, or more until all is decided."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    budget_s: float = 1800.0
    """Time for measuring; launches come on top. Blocks that would begin later are left out."""
    request: BenchRequest = field(default_factory=BenchRequest)
    profile: Profile | None = None
    together: bool = False
    """Whether the servers run side by side."""
    prompts: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The profile's, or the first variant's."""
        return self.profile.name if self.profile is not None else self.variants[0].name

    @property
    def launches(self) -> int:
        """Launches of each variant."""
        return sum(self.variants[-1].name in each.variants for each in self.sessions)

    @property
    def platform(self) -> str | None:
        """`cpu` or `cuda` if any variant is started here."""
        return next((each.plan.platform for each in self.variants if each.plan is not None), None)


def plan_bench(
    request: BenchRequest, *, notices: Notices, starts: bool = True, together: bool | None = None
) -> BenchPlan:
    """Plan a command. `starts`: models, memory and machine are checked, too.

    `together`: whether the servers of the run that is resumed ran at the same time. Raises
    ProfileError, CheckFailed, UsageError.
    """
    if request.profile == "-" or "-" in request.workloads:
        why = "`bench` cannot read from stdin because the run could not be resumed"
        raise UsageError(why, hint="name a file")
    profile, variants = plan_variants(request, starts=starts, notices=notices)
    if together is None:
        together = side_by_side(variants)
    platform = next((each.plan.platform for each in variants if each.plan is not None), "cuda")
    points = points_of(request, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    if request.launches and not any(each.plan is not None for each in variants):
        raise UsageError("`--launches` cannot start servers again that bench did not start")
    is_started = any(each.plan is not None for each in variants)
    launches = request.launches or (2 if is_started and not request.quick else 1)
    files = sources(request.workloads)
    limit = _QUICK_PROMPTS if request.quick else None
    tokens = _QUICK_TOKENS if request.quick else _CPU_TOKENS if platform == "cpu" else None
    return BenchPlan(
        variants=variants,
        sessions=sessions(variants, launches=launches, together=together),
        points=points,
        blocks=_QUICK_BLOCKS if request.quick else _BLOCKS,
        sources=files,
        max_tokens=request.max_tokens or tokens,
        limit=limit,
        budget_s=seconds(request.budget or BUDGET, option="--budget", least_s=5.0),
        request=request,
        profile=profile,
        together=together,
        prompts=prompts_of((point.workload for point in points), files, limit=limit),
    )


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
