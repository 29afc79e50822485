"""A profile's promises held against what was measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from specserve.measure.bench.figures import invalid, rate_shares, step_shares
from specserve.measure.bench.records import Pass, Request
from specserve.measure.bench.result import Interval, Point, Promise
from specserve.measure.bench.schedule import seeded
from specserve.measure.bench.speedups import speedup
from specserve.measure.statistics import Estimate, point, rate
from specserve.measure.verdict import interval
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
