"""Which share of requests keeps the profile's limits, and what that does to a choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.result import Point
from specserve.measure.statistics import Estimate
from specserve.measure.tune.choose import speedups
from specserve.measure.tune.predict import Predicted, Row, limits_at, share_within
from specserve.profile.schema import Expectation

TIMES = st.lists(st.floats(0.001, 10.0), max_size=30)


def limits(*, tpot_ms: float | None = None, ttft_ms: float | None = None) -> Expectation:
    """A promise about the workload `code` with these limits."""
    return Expectation(workload="code", max_tpot_p99_ms=tpot_ms, max_ttft_p99_ms=ttft_ms)


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (None, None),
        (limits(), None),
        (limits(tpot_ms=20.0), 0.5),
        (limits(ttft_ms=300.0), 0.75),
        (limits(tpot_ms=20.0, ttft_ms=300.0), 0.375),
        (limits(tpot_ms=1.0, ttft_ms=300.0), 0.0),
    ],
)
def test_both_limits_count_where_they_are_given(limit: Expectation | None, share: float | None) -> None:
    assert share_within(limit, tpots_s=[0.01, 0.03], ttfts_s=[0.1, 0.2, 0.3, 0.4]) == share


def test_all_promises_of_latencies_that_match_hold_at_a_point() -> None:
    everywhere = Expectation(max_tpot_p99_ms=50.0, max_ttft_p99_ms=800.0)
    alone = Expectation(workload="code", concurrency=1, max_tpot_p99_ms=20.0)
    faster = Expectation(workload="code", concurrency=8, min_speedup=1.2)
    expect = [everywhere, alone, faster]
    both = limits_at(expect, Point("code", 0.0, 1))
    assert both is not None and (both.max_tpot_p99_ms, both.max_ttft_p99_ms) == (20, 800)
    for point in (Point("code", 0.0, 8), Point("chat", 0.7, 1)):
        found = limits_at(expect, point)
        assert found is not None and found.max_tpot_p99_ms == 50
    assert limits_at([faster], Point("code", 0.0, 8)) is None


def test_what_was_not_measured_is_not_judged() -> None:
    assert share_within(limits(tpot_ms=20.0), tpots_s=[], ttfts_s=[0.1]) is None


@given(times=TIMES.filter(bool), limit=st.floats(1.0, 10_000.0), more=st.floats(0.0, 5_000.0))
def test_a_wider_limit_never_lets_fewer_through(times: list[float], limit: float, more: float) -> None:
    shares = [share_within(limits(tpot_ms=at), tpots_s=times, ttfts_s=[]) for at in (limit, limit + more)]
    assert shares[0] is not None and shares[1] is not None
    assert 0.0 <= shares[0] <= shares[1] <= 1.0


def row(*, within: float | None, plain: float | None, speedup: float = 2.0) -> Row:
    """One K at one load."""
    found = Predicted(10.0, 15.0, 60.0, Estimate(speedup, 1.9, 2.1), within, plain)
    length = Estimate(3.0, 2.9, 3.1)
    return Row("draft_model", "code", 0.0, 1, 4, length, "measured", 1.5, 30.0, "measured", found)


@pytest.mark.parametrize(
    ("within", "plain", "goodput"),
    [(0.5, 1.0, 1.0), (1.0, 0.5, 4.0), (1.0, 1.0, 2.0), (0.0, 0.0, 2.0), (None, None, 2.0)],
)
def test_goodput_is_compared_with_that_of_the_server_without_speculation(
    within: float | None, plain: float | None, goodput: float
) -> None:
    found = speedups([row(within=within, plain=plain)], objective="goodput")
    assert found[1][4] == pytest.approx(goodput)
    assert speedups([row(within=within, plain=plain)], objective="throughput")[1][4] == pytest.approx(2.0)
