"""What a pass says of its full load: seconds of a step, tokens/s, and nothing of the end where fewer requests run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.tune.candidates import ladder
from specserve.measure.tune.observe import Observed, StepModel, observed
from specserve.measure.tune.predict import predict

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_machine import Machine, measured, prompts, texts, tune_plan

LOADS = (1, 2, 4, 8)


def request(*gaps_ms: float, start_s: float = 0.0, ttft_s: float = 0.1, tokens: int | None = None) -> Request:
    """One answer: its first token, then a chunk after each of the gaps."""
    latency_s = ttft_s + sum(gaps_ms) / 1000
    identity = f"{start_s}/{len(gaps_ms)}"
    return Request(identity, True, 5, tokens or len(gaps_ms) + 1, start_s, ttft_s, latency_s, gaps_ms)


def done(*requests: Request, load: int) -> Pass:
    lasted_s = max(each.start_s + each.latency_s for each in requests)
    return Pass(0, 0, Point("code", 0.0, load), "x", lasted_s, 0.1, requests)


def closed_loop(lengths: list[int], *, load: int, step_s: float = 0.1) -> Pass:
    """So many at once, each of the others as one ends; the first token takes a step, too."""
    slots = [0.0] * load
    found = []
    for tokens in lengths:
        slot = min(range(load), key=lambda index: slots[index])
        start_s = round(slots[slot], 6)
        found.append(request(*[step_s * 1000] * (tokens - 1), start_s=start_s, ttft_s=step_s))
        slots[slot] += tokens * step_s
    return done(*found, load=load)


def timing(passes: list[Pass]) -> Observed:
    """The passes of a server without speculation."""
    found = observed(passes, tokens=0)
    assert found is not None
    return found


@given(st.lists(st.integers(10, 60), min_size=8, max_size=30), st.integers(2, 4))
def test_the_rate_is_that_of_the_full_load_however_long_the_answers_are(
    lengths: list[int], load: int
) -> None:
    seen = observed([closed_loop(lengths, load=load)], tokens=0)
    assert seen is not None and seen.step_s == pytest.approx(0.1)
    assert seen.tokens_per_s == pytest.approx(load / 0.1, rel=0.01)


def test_requests_that_run_faster_once_they_are_few_are_taken_at_the_pace_of_the_full_load() -> None:
    whole = done(request(*[100.0] * 9, ttft_s=0.1), request(*[100.0] * 9, *[20.0] * 10, ttft_s=0.1), load=2)
    seen = observed([whole], tokens=0)
    assert seen is not None
    assert seen.step_s == pytest.approx(0.1)
    assert seen.tokens_per_s == pytest.approx(20.0)
    assert sum(seen.tpot_s) / 2 == pytest.approx(0.1, rel=0.4)


def test_chunks_while_another_request_is_in_its_prefill_are_no_steps_to_time() -> None:
    first = request(*[30.0] * 10, 130.0, *[30.0] * 20)
    second = request(*[30.0] * 10, start_s=0.4, ttft_s=0.13)
    taken = timing([done(first, second, load=2)])
    assert taken.step_s == pytest.approx(0.03)
    assert taken.step_error == pytest.approx(0.0, abs=1e-9)
    assert 2 * taken.held_up_s > 0.25


def test_a_wait_for_prefills_is_no_pace_at_which_a_request_goes_on() -> None:
    """Two begin together; the prefill of the third stops the one that still runs, which then runs alone."""
    one = request(*[100.0] * 19)
    two = request(*[100.0] * 19, 1100.0, *[100.0] * 39)
    three = request(*[100.0] * 19, start_s=2.0, ttft_s=1.1)
    taken = timing([done(one, two, three, load=2)])
    assert taken.busy_s == pytest.approx(100 * 0.1 + 2 * 1.0)


@pytest.mark.parametrize("late", [3, 5])
def test_a_machine_that_stands_still_for_some_requests_does_not_move_the_step(late: int) -> None:
    slow = [request(*[30.0] * 9, 900.0, start_s=2.0 * place) for place in range(late)]
    good = [request(*[30.0] * 10, start_s=2.0 * place) for place in range(late, 12)]
    taken = timing([done(*slow, *good, load=1)])
    assert taken.step_s == pytest.approx(0.03)


def test_the_error_of_a_step_grows_with_what_requests_differ_and_falls_with_their_number() -> None:
    def error(spread: float, count: int) -> float:
        every = [
            request(*[30.0 * (1 + spread * (place % 5 - 2))] * 10, start_s=2.0 * place)
            for place in range(count)
        ]
        taken = timing([done(*every, load=1)])
        assert taken.step_s == pytest.approx(0.03)
        return taken.step_error

    assert error(0.02, 10) == pytest.approx(1.2533 * 1.4826 * 0.02 / 10**0.5, rel=1e-6)
    assert error(0.02, 40) == pytest.approx(error(0.02, 10) / 2)
    assert error(0.04, 10) == pytest.approx(2 * error(0.02, 10))


def test_passes_of_one_load_are_taken_together() -> None:
    calm, busy = (
        done(*[request(*[gap] * 10, start_s=2.0 * place) for place in range(3)], load=1)
        for gap in (30.0, 40.0)
    )
    taken = timing([calm, busy, calm])
    assert taken.step_s == pytest.approx(0.03)
    assert taken.chunks == 90


def test_where_steps_are_not_the_same_work_a_step_is_the_mean_of_all() -> None:
    """An n-gram's: most steps found no match and take 60 ms, the others verify eight tokens in 100 ms."""
    gaps_ms = [60.0 if step % 20 < 16 else 100.0 for step in range(200)]
    pairs = tuple((3, 8) for gap in gaps_ms if gap > 60)
    made = len(gaps_ms) + sum(took for took, _ in pairs)
    one = replace(request(*gaps_ms, ttft_s=0.5, tokens=made + 1), steps=pairs)
    seen = observed([done(one, load=1)], tokens=8)
    assert seen is not None and seen.step_s == pytest.approx(0.8 * 0.06 + 0.2 * 0.1)
    assert seen.tokens_per_s == pytest.approx((made + 1) / one.latency_s)


def test_an_end_with_fewer_requests_and_another_k_does_not_count_for_the_full_load() -> None:
    accepted = ((2, 2),) * 30 + ((8, 8),) * 10  # a schedule has more tokens for the one that is left over
    tokens = 1 + sum(took + 1 for took, _ in accepted)
    one = replace(request(*[100.0] * 40, ttft_s=0.0, tokens=tokens), steps=accepted)
    seen = observed([done(one, load=1)], tokens=2)
    assert seen is not None
    assert seen.tokens_per_s == pytest.approx(tokens / 6.0)  # 60 steps of three tokens


def test_a_pass_of_which_nothing_came_whole_says_nothing() -> None:
    assert observed([done(replace(request(1.0), ok=False), load=1)], tokens=0) is None


def test_chunks_that_came_all_together_time_no_step() -> None:
    seen = observed([done(request(*[0.0] * 9, ttft_s=0.1), load=1)], tokens=0)
    assert seen is not None and seen.step_s is None


def test_a_request_that_failed_has_no_part_in_it() -> None:
    good = closed_loop([20] * 9, load=4)
    broken = replace(good, requests=(*good.requests, replace(request(900.0), ok=False)))
    assert observed([broken], tokens=0) == observed([good], tokens=0)


def test_what_was_measured_of_a_k_is_what_was_predicted_of_it() -> None:
    truth = StepModel(0.02, 0.003, ((16, 0.002),), 0.001, 0.0025, 0.0003)
    plan = tune_plan(rungs=ladder(LOADS, most_tokens=8, most_requests=16))
    chosen = {"code": prompts(24)}
    machine = Machine(truth, texts(prompts=chosen["code"], chance=0.7))
    found = predict(plan, measured(machine, plan, chosen), plan.candidates[0])
    both = [
        (row.predicted, row.measured)
        for row in found.rows
        if row.measured.output_tokens_per_s and row.measured.tpot_ms
    ]
    assert len(both) == len(LOADS)
    for predicted, seen in both:
        assert predicted.output_tokens_per_s == pytest.approx(seen.output_tokens_per_s, rel=0.06)
        assert predicted.tpot_ms == pytest.approx(seen.tpot_ms, rel=0.10)
