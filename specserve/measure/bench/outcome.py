"""Everything that a run measured as one result, with the profile's promises held against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from specserve.measure.bench.arms import BASELINE, PROFILE, Arm
from specserve.measure.bench.driver import Pass, Request
from specserve.measure.bench.figures import (
    compared,
    figures,
    invalid_reason,
    rate_shares,
    speedup,
    step_shares,
    stops_paying,
)
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Cell, Interval, Point, Promise, Result, Verdict
from specserve.measure.bench.schedule import seeded
from specserve.measure.statistics import LogEstimate, interval, point, rate, scipy
from specserve.profile.schema import Expectation, Profile

_RESAMPLES = 1000
_KEYS = (
    "min_speedup",
    "min_mean_acceptance_length",
    "min_acceptance_rate",
    "max_ttft_p99_ms",
    "max_tpot_p99_ms",
)


def promises(
    profile: Profile, passes: Sequence[Pass], *, at: Sequence[Point], arm: str, against: str | None
) -> tuple[Promise, ...]:
    """Each limit of each promise at the point that it is for; `at`: those points, in the order of `expect`."""
    found = []
    for index, (expectation, place) in enumerate(zip(profile.expect, at, strict=True)):
        own = [each for each in passes if each.point == place and each.arm == arm]
        for key in _KEYS:
            promised = getattr(expectation, key)
            if promised is None:
                continue
            measured = _measured(key, own, passes, place=place, arm=arm, against=against)
            span = profile.span(f"expect[{index}].{key}")
            where = f"{span.file}:{span.line}" if span.line else span.file
            found.append(Promise(place, key, float(promised), measured, kept(key, promised, measured), where))
    return tuple(found)


def limits(profile: Profile | None, at: Sequence[Point]) -> dict[Point, Expectation]:
    """By point, what limits its requests: of several promises at one point the strictest limit of each kind."""
    found: dict[Point, Expectation] = {}
    for place, promise in zip(at, profile.expect if profile is not None else (), strict=True):
        found[place] = _stricter(found[place], promise) if place in found else promise
    return found


def _stricter(one: Expectation, other: Expectation) -> Expectation:
    """The first promise with the limits of both."""
    merged = {}
    for key in _KEYS:
        values = [value for value in (getattr(one, key), getattr(other, key)) if value is not None]
        strictest = min(values, default=None) if key.startswith("max_") else max(values, default=None)
        merged[key] = strictest
    return replace(one, **merged)


def kept(key: str, promised: float, measured: Interval | None) -> bool | None:
    """Whether the whole interval keeps, or the whole interval misses; None between."""
    if measured is None:
        return None
    low, high = measured.low, measured.high
    if key.startswith("max_"):
        return True if high <= promised else False if low > promised else None
    return True if low >= promised else False if high < promised else None


def _measured(
    key: str, own: Sequence[Pass], passes: Sequence[Pass], *, place: Point, arm: str, against: str | None
) -> Interval | None:
    """None if a cell that it rests on counts for nothing."""
    if invalid_reason(own) is not None:
        return None
    if key == "min_speedup":
        theirs = [each for each in passes if each.point == place and each.arm == against]
        if against is None or invalid_reason(theirs) is not None:
            return None
        return _interval(speedup(passes, arm=arm, against=against, at=place))
    if key == "min_mean_acceptance_length":
        return _interval(rate(step_shares(own)))
    if key == "min_acceptance_rate":
        return _interval(rate(rate_shares(own)))
    return tail(own, attrgetter("ttft_s" if key == "max_ttft_p99_ms" else "tpot_s"), at=0.99)


def _interval(estimate: LogEstimate | None) -> Interval | None:
    return None if estimate is None else interval(estimate)


def tail(
    passes: Sequence[Pass], value: Callable[[Request], float | None], *, at: float, seed: int = 1
) -> Interval | None:
    """A quantile over requests in milliseconds, with an interval that few requests make wide.

    Blocks are drawn again and requests in them; beyond that the bounds are those of order statistics, which know
    that the slowest of 50 requests says little of the slowest hundredth: with fewer than 370 P99 has no upper bound.
    """
    groups = [
        [found * 1000 for request in each.requests if request.ok and (found := value(request)) is not None]
        for each in passes
    ]
    groups = [group for group in groups if group]
    values = sorted(item for group in groups for item in group)
    if not values:
        return None
    rng = seeded(f"tail {seed}")
    drawn = []
    for _ in range(_RESAMPLES):
        sample = [
            item for group in rng.choices(groups, k=len(groups)) for item in rng.choices(group, k=len(group))
        ]
        drawn.append(point(sample, at))
    low, high = order_bounds(values, at)
    return Interval(point(values, at), min(low, point(drawn, 0.025)), max(high, point(drawn, 0.975)))


def order_bounds(values: Sequence[float], at: float) -> tuple[float, float]:
    """Order statistics between which a quantile lies with 95 %, whatever the distribution; sorted values in."""
    special, count = scipy("special"), len(values)
    # by rank: the chance that no more values lie below the quantile
    below = [float(special.bdtr(rank, count, at)) for rank in range(count)]
    low = max(
        (value for value, share in zip(values, below, strict=True) if share <= 0.025), default=values[0]
    )
    high = (value for value, share in zip(values, below, strict=True) if share >= 0.975)
    return low, next(high, math.inf)


_MOSTLY = 0.5


def outcome(plan: BenchPlan, passes: Sequence[Pass], *, about: Result) -> Result:
    """`about`, which has no figures yet, with what the passes say of the plan's points, arms and promises."""
    names = [arm.name for arm in plan.arms]
    limit = limits(plan.profile, plan.promised_at)
    cells: dict[tuple[str, Point], Cell] = {}
    for at in plan.points:
        for name in names:
            own = [each for each in passes if each.point == at and each.arm == name]
            found = figures(own, limits=limit.get(at)) if own else None
            cells[name, at] = Cell(name, at, found, invalid_reason(own))
    comparisons = tuple(
        compared(cells, passes, arm=name, against=names[0], at=point)
        for point in plan.points
        for name in names[1:]
        if cells[name, point].figures is not None
    )
    return replace(
        about,
        fingerprint=_fingerprint(plan),
        cells=tuple(cells.values()),
        comparisons=comparisons,
        promises=_promises(plan, passes),
        stops_paying=stops_paying(comparisons),
        notes=(*about.notes, *cut_answers(passes), *equal_texts(names, passes), *_remembering(plan.arms)),
    )


def _promises(plan: BenchPlan, passes: Sequence[Pass]) -> tuple[Promise, ...]:
    if plan.profile is None:
        return ()
    own, first = _own(plan.profile), plan.arms[0]
    against = first.name if first.is_baseline and first.name != own else None
    return promises(plan.profile, passes, at=plan.promised_at, arm=own, against=against)


def _fingerprint(plan: BenchPlan) -> str | None:
    """Of the profile; None if the first arm is a URL."""
    own = _own(plan.profile) if plan.profile is not None else plan.arms[0].name
    return next((arm.plan.fingerprint for arm in plan.arms if arm.name == own and arm.plan), None)


def _own(profile: Profile) -> str:
    """The arm that the profile itself is: if it does not speculate, the one without speculation."""
    return PROFILE if profile.speculation is not None else BASELINE


def equal_texts(arms: Sequence[str], passes: Sequence[Pass]) -> list[str]:
    """How many greedy answers of each arm are those of the first: speculation must not change them."""
    found = []
    against = arms[0]
    for arm in arms[1:]:
        mine, theirs = (_texts(passes, name) for name in (arm, against))
        both = mine.keys() & theirs.keys()
        if both:
            same = sum(mine[key] == theirs[key] for key in both)
            found.append(
                f"`{arm}` gave {same} of {len(both)} greedy answers word for word as `{against}` did; a few "
                "that differ are rounding, `specserve verify` judges it"
                if same < len(both)
                else f"`{arm}` gave all {len(both)} greedy answers word for word as `{against}` did"
            )
    return found


def _texts(passes: Sequence[Pass], arm: str) -> dict[tuple[str, str, float, bool], str]:
    """The greedy answers of an arm, by what was asked under which load."""
    return {
        (each.point.workload, request.prompt, float(each.point.concurrency or 0), each.point.prefix_cache): (
            request.text_sha256
        )
        for each in passes
        if each.arm == arm and each.point.temperature == 0
        for request in each.requests
        if request.ok
    }


def cut_answers(passes: Sequence[Pass]) -> list[str]:
    """Workloads most of whose answers never came to their end."""
    found = []
    for name in dict.fromkeys(each.point.workload for each in passes):
        ends = [
            request.finish_reason
            for each in passes
            if each.point.workload == name
            for request in each.requests
            if request.ok
        ]
        share = sum(end == "length" for end in ends) / len(ends) if ends else 0.0
        if share > _MOSTLY:
            found.append(f"{name}: {share:.0%} of the answers were cut off at their max_tokens")
    return found


def _remembering(arms: Sequence[Arm]) -> list[str]:
    """Arms whose answers depend on what they were asked before."""
    return [
        f"`{arm.name}` remembers answers (suffix decoding), and prompts recur in a launch: "
        "this is the acceptance of traffic that repeats itself"
        for arm in arms
        if arm.is_suffix
    ]


def is_missed(result: Result) -> bool:
    """Whether the whole interval of some promise misses it."""
    return any(promise.kept is False for promise in result.promises)


def is_open(result: Result) -> bool:
    """Whether anything is not decided, for `--strict`."""
    return (
        not result.is_complete
        or any(promise.kept is None for promise in result.promises)
        or any(item.verdict is Verdict.INCONCLUSIVE for item in result.comparisons)
    )
