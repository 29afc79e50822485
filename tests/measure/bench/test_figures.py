"""Figures of a variant, against sums done by hand."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.measure.bench.summary import break_even, figures, invalid_reason, token_samples
from specserve.metrics.counters import Acceptance
from tests.measure.bench.making import made, request


def test_throughput_is_all_tokens_over_all_seconds() -> None:
    found = figures(
        [made("a", 0, request(tokens=30), duration_s=2.0), made("a", 1, request(tokens=10), duration_s=3.0)]
    )
    assert found is not None
    assert (found.output_tokens, found.output_tokens_per_s, found.blocks, found.requests) == (40, 8.0, 2, 2)


def test_a_request_that_failed_counts_in_nothing_but_its_own_figure() -> None:
    found = figures([made("a", 0, request(tokens=10), request("p2", error="boom"), duration_s=1.0)])
    assert found is not None
    assert (found.requests, found.failed_requests, found.output_tokens_per_s) == (1, 1, 10.0)


def test_a_cell_whose_requests_fail_or_whose_client_is_busy_is_invalid() -> None:
    good = made("a", 0, request())
    assert invalid_reason([good]) is None
    failed = invalid_reason([made("a", 0, request(), request("p2", error="status 500"))])
    assert failed == "1 of 2 requests failed: status 500"
    busy = invalid_reason([dataclasses.replace(good, client_cpu=0.93)] * 3)
    assert busy is not None and "busy for 93%" in busy


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=20), st.floats(0.1, 100))
def test_the_shares_of_a_pass_add_up_to_its_time(latencies: list[float], seconds: float) -> None:
    requests = [request(f"p{index}", latency_s=latency) for index, latency in enumerate(latencies)]
    dealt = token_samples([made("a", 0, *requests, duration_s=seconds)])
    assert sum(item.cost for item in dealt) == pytest.approx(seconds)
    assert sum(item.amount for item in dealt) == 11 * len(latencies)


def test_break_even_is_where_the_longer_step_is_paid_for() -> None:
    # 100 steps, 3 tokens each, and twice as fast: a step takes 1.5 of a plain one
    assert break_even(Acceptance(100, 400, 200), output_tokens=300, speedup=2.0) == pytest.approx(1.5)
    # n-grams: half of the steps have a draft, 3 tokens in those and 1 in the others, and no gain at all
    half = break_even(Acceptance(50, 200, 100), output_tokens=200, speedup=1.0)
    assert half == pytest.approx(3.0)
    assert break_even(Acceptance(0, 0, 0), output_tokens=10, speedup=1.0) is None
    assert break_even(None, output_tokens=10, speedup=1.0) is None
    # faster than one token per accepted one: the machine was busy, and no step gives less than a token
    assert break_even(Acceptance(100, 400, 200), output_tokens=300, speedup=4.0) == 1.0


@settings(deadline=None)
@given(st.integers(1, 1000), st.floats(1, 5), st.floats(0.2, 5))
def test_what_is_measured_lies_above_break_even_where_it_is_faster(
    drafts: int, accepted: float, speedup: float
) -> None:
    acceptance = Acceptance(drafts, drafts * 5, int(drafts * accepted))
    tokens = drafts + acceptance.accepted_tokens
    even = break_even(acceptance, output_tokens=tokens, speedup=speedup)
    length = acceptance.mean_acceptance_length
    assert even is not None and length is not None
    assert (length > even) == (speedup > 1) or speedup == pytest.approx(1) or length == pytest.approx(even)
