"""Which share of requests keeps the profile's limits of time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from specserve.measure.bench.figures import has_limits
from specserve.measure.bench.result import Point
from specserve.profile.schema import Expectation


def limits_at(expect: Iterable[Expectation], point: Point) -> Expectation | None:
    """The promise of latencies that holds at a point, the most particular one; None without any."""
    found = [
        item
        for item in expect
        if has_limits(item)
        and item.workload in (None, point.workload)
        and item.temperature in (None, point.temperature)
        and item.concurrency in (None, point.concurrency)
    ]
    return max(found, key=_particulars, default=None)


def _particulars(item: Expectation) -> int:
    return sum(value is not None for value in (item.concurrency, item.workload, item.temperature))


def share_within(
    limits: Expectation | None, *, tpots_s: Collection[float], ttfts_s: Collection[float]
) -> float | None:
    """Share of requests that keep `max_tpot_p99_ms` and `max_ttft_p99_ms`; None without such limits.

    The two are taken as independent: times per token are predicted request by request, first tokens are not.
    """
    if limits is None:
        return None
    shares = [
        sum(time_s * 1000 <= limit for time_s in times_s) / len(times_s)
        for limit, times_s in ((limits.max_tpot_p99_ms, tpots_s), (limits.max_ttft_p99_ms, ttfts_s))
        if limit is not None and times_s
    ]
    if not shares:
        return None
    return shares[0] if len(shares) == 1 else shares[0] * shares[1]
