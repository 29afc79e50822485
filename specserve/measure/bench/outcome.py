"""Everything that a run measured as one result, with the profile's promises held against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specserve.measure.bench.arms import BASELINE, PROFILE, Arm
from specserve.measure.bench.driver import Pass, Request
from specserve.measure.bench.figures import (
    compared,
    figures,
    invalid,
    invalid_reason,
    rate_shares,
    speedup,
    step_shares,
    stops_paying,
)
from specserve.measure.bench.result import Cell, Interval, Point, Promise, Result, Verdict, WorkloadInfo
from specserve.measure.bench.schedule import seeded
from specserve.measure.statistics import Estimate, interval, point, rate
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
    """None where a cell that it rests on counts for nothing."""
    if not _is_valid(own):
        return None
    if key == "min_speedup":
        theirs = [each for each in passes if each.point == place and each.arm == against]
        if against is None or not _is_valid(theirs):
            return None
        return _interval(speedup(passes, arm=arm, against=against, at=place))
    if key == "min_mean_acceptance_length":
        return _interval(rate(step_shares(own)))
    if key == "min_acceptance_rate":
        return _interval(rate(rate_shares(own)))
    return tail(own, _ttft_s if key == "max_ttft_p99_ms" else _tpot_s, at=0.99)


def _is_valid(passes: Sequence[Pass]) -> bool:
    return bool(passes) and invalid(passes) is None


def _interval(estimate: Estimate | None) -> Interval | None:
    return None if estimate is None else interval(estimate)


def _ttft_s(request: Request) -> float | None:
    return request.ttft_s


def _tpot_s(request: Request) -> float | None:
    return request.tpot_s


def tail(
    passes: Sequence[Pass], value: Callable[[Request], float | None], *, at: float, seed: int = 1
) -> Interval | None:
    """A quantile over requests in milliseconds, with an interval that few requests make wide.

    Blocks are drawn anew and requests in them; beyond that the bounds are those of order statistics, which know
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
    count = len(values)
    below, low, high = 0.0, values[0], math.inf
    for rank in range(count):
        # so many values lie below the quantile: binomial
        term = math.exp(
            math.lgamma(count + 1)
            - math.lgamma(rank + 1)
            - math.lgamma(count - rank + 1)
            + rank * math.log(at)
            + (count - rank) * math.log1p(-at)
        )
        below += term
        if below <= 0.025:
            low = values[rank]
        if below >= 0.975:
            high = values[rank]
            break
    return low, high


_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Basis:
    """What a result is made of beside the passes."""

    name: str
    profile: Profile | None
    """Whose promises are held against it; None where the first arm is a URL."""
    arms: tuple[Arm, ...]
    points: tuple[Point, ...]
    promised_at: tuple[Point, ...]
    """The point of each of the profile's promises."""
    launches: int
    created: str
    duration_s: float
    workloads: tuple[WorkloadInfo, ...]
    versions: Mapping[str, str]
    host: Mapping[str, str]
    settings: Mapping[str, str]
    notes: Sequence[str] = ()
    is_complete: bool = True
    price_per_gpu_hour: float | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    """By arm, what a server at a URL serves."""


def outcome(basis: Basis, passes: Sequence[Pass]) -> Result:
    """The result; the first arm is the one that the others are compared with."""
    names = [arm.name for arm in basis.arms]
    limit = limits(basis.profile, basis.promised_at)
    cells: dict[tuple[str, Point], Cell] = {}
    for at in basis.points:
        for arm in basis.arms:
            own = [each for each in passes if each.point == at and each.arm == arm.name]
            price = _price_per_hour(basis, arm)
            found = figures(own, limits=limit.get(at), price_per_hour=price) if own else None
            cells[arm.name, at] = Cell(arm.name, at, found, invalid_reason(own))
    comparisons = tuple(
        compared(cells, passes, arm=name, against=names[0], at=point)
        for point in basis.points
        for name in names[1:]
        if cells[name, point].figures is not None
    )
    infos = [replace(arm.info, model=arm.model or basis.models.get(arm.name, "")) for arm in basis.arms]
    return Result(
        name=basis.name,
        fingerprint=_fingerprint(basis),
        created=basis.created,
        duration_s=basis.duration_s,
        versions=basis.versions,
        host=basis.host,
        launches=basis.launches,
        arms=tuple(infos),
        workloads=basis.workloads,
        cells=tuple(cells.values()),
        comparisons=comparisons,
        promises=_promises(basis, passes),
        stops_paying=stops_paying(comparisons),
        notes=(
            *basis.notes,
            *cut_answers(passes),
            *equal_texts(basis, passes),
            *_crowded(basis),
            *_unpriced(basis),
        ),
        is_complete=basis.is_complete,
        settings=basis.settings,
    )


def _promises(basis: Basis, passes: Sequence[Pass]) -> tuple[Promise, ...]:
    if basis.profile is None:
        return ()
    own, first = _own(basis.profile), basis.arms[0]
    against = first.name if first.is_baseline and first.name != own else None
    return promises(basis.profile, passes, at=basis.promised_at, arm=own, against=against)


def _fingerprint(basis: Basis) -> str | None:
    """Of the profile; None where the first arm is a URL."""
    own = _own(basis.profile) if basis.profile is not None else basis.arms[0].name
    return next((arm.plan.fingerprint for arm in basis.arms if arm.name == own and arm.plan), None)


def _own(profile: Profile) -> str:
    """The arm that the profile itself is: where it does not speculate, the one without speculation."""
    return PROFILE if profile.speculation is not None else BASELINE


def equal_texts(basis: Basis, passes: Sequence[Pass]) -> list[str]:
    """How many greedy answers of each arm are those of the first: speculation must not change them."""
    told = []
    against = basis.arms[0].name
    for arm in basis.arms[1:]:
        mine, theirs = (_texts(passes, name) for name in (arm.name, against))
        both = mine.keys() & theirs.keys()
        if both:
            same = sum(mine[key] == theirs[key] for key in both)
            told.append(
                f"`{arm.name}` gave {same} of {len(both)} greedy answers word for word as `{against}` did; a few "
                "that differ are rounding, `specserve verify` judges it"
                if same < len(both)
                else f"`{arm.name}` gave all {len(both)} greedy answers word for word as `{against}` did"
            )
    return told


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
    told = []
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
            told.append(f"{name}: {share:.0%} of the answers were cut off at their max_tokens")
    return told


def _crowded(basis: Basis) -> list[str]:
    """Arms whose answers depend on what they were asked before."""
    return [
        f"`{arm.name}` remembers answers (suffix decoding), and prompts recur in a launch: "
        "this is the acceptance of traffic that repeats itself"
        for arm in basis.arms
        if arm.is_suffix
    ]


def _price_per_hour(basis: Basis, arm: Arm) -> float | None:
    """Of all accelerators that the arm takes; None without a price, and for a server of others."""
    if basis.price_per_gpu_hour is None or arm.plan is None:
        return None
    return basis.price_per_gpu_hour * arm.ranks


def _unpriced(basis: Basis) -> list[str]:
    """Arms without a price, though one is given."""
    if basis.price_per_gpu_hour is None:
        return []
    return [
        f"`{arm.name}` has no price: how many accelerators a server takes that ran already is not known"
        for arm in basis.arms
        if arm.plan is None
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
