"""A closed loop's end, where fewer and fewer requests run, has no part in its rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.driver import Pass, Request
from specserve.measure.bench.result import Point
from specserve.measure.tune.observe import steady


def request(number: int, *, start_s: float, tokens: int, step_s: float, ok: bool = True) -> Request:
    """Its first token after one step, then one in each."""
    return Request(
        id=f"p{number}", ok=ok, prompt_tokens=5, output_tokens=tokens, start_s=start_s, ttft_s=step_s,
        latency_s=step_s * tokens, chunk_gaps_ms=(step_s * 1000,) * (tokens - 1),
    )  # fmt: skip


def closed_loop(lengths: list[int], *, load: int, step_s: float = 0.1) -> Pass:
    """So many at once, each of the others as one ends."""
    slots = [0.0] * load
    found = []
    for number, tokens in enumerate(lengths):
        slot = min(range(load), key=lambda index: slots[index])
        found.append(request(number, start_s=round(slots[slot], 6), tokens=tokens, step_s=step_s))
        slots[slot] += tokens * step_s
    return Pass(0, 0, Point("code", 0.0, load), "x", max(slots), 0.1, tuple(found))


def rate(done: Pass) -> float:
    return done.output_tokens / done.duration_s


def test_one_request_that_runs_alone_at_the_end_does_not_lower_the_rate() -> None:
    whole = closed_loop([20] * 9, load=4)
    assert rate(whole) == pytest.approx(30.0)
    assert rate(steady(whole)) == pytest.approx(40.0, rel=0.01)


@given(st.lists(st.integers(10, 60), min_size=8, max_size=30), st.integers(2, 4))
def test_the_rate_is_that_of_the_full_load_however_long_the_answers_are(
    lengths: list[int], load: int
) -> None:
    whole = closed_loop(lengths, load=load)
    kept = steady(whole)
    assert kept.output_tokens == whole.output_tokens
    if kept is not whole:
        assert rate(kept) == pytest.approx(load / 0.1, rel=0.01)


def test_requests_that_run_faster_once_they_are_few_are_taken_at_the_pace_of_the_full_load() -> None:
    slow, fast = 0.1, 0.02
    gaps = (slow * 1000,) * 9 + (fast * 1000,) * 10
    first = request(1, start_s=0.0, tokens=10, step_s=slow)
    last = Request("p2", True, 5, 20, 0.0, slow, 10 * slow + 10 * fast, gaps)
    whole = Pass(0, 0, Point("code", 0.0, 2), "x", 10 * slow + 10 * fast, 0.1, (first, last))
    assert rate(steady(whole)) == pytest.approx(2 / slow)


def test_a_wait_for_prefills_is_no_pace_at_which_a_request_goes_on() -> None:
    """Two begin together; the prefill of the third stops the one that still runs, which then runs alone."""
    step_s, prefill_s = 0.1, 1.0
    one = request(1, start_s=0.0, tokens=20, step_s=step_s)
    two = Request(
        "p2", True, 5, 60, 0.0, step_s, 60 * step_s + prefill_s, (100.0,) * 19 + (1100.0,) + (100.0,) * 39
    )
    three = Request("p3", True, 5, 20, 2.0, prefill_s + step_s, prefill_s + 20 * step_s, (100.0,) * 19)
    whole = Pass(0, 0, Point("code", 0.0, 2), "x", two.latency_s, 0.1, (one, two, three))
    assert steady(whole).duration_s == pytest.approx((100 * step_s + 2 * prefill_s) / 2)


def test_one_at_a_time_has_no_such_end() -> None:
    whole = closed_loop([20, 30, 10], load=1)
    assert steady(whole) is whole


def test_a_request_that_failed_stays_what_it_was() -> None:
    whole = closed_loop([20] * 9, load=4)
    broken = request(99, start_s=0.0, tokens=2, step_s=0.1, ok=False)
    kept = steady(Pass(0, 0, whole.point, "x", whole.duration_s, 0.1, (*whole.requests, broken)))
    assert kept.requests[-1] == broken
