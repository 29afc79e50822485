"""What a pass says of its load: in calm steps, of the K of that load, and with nothing that was never sent."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.measure.bench.driver import Pass
from specserve.measure.bench.result import Point
from specserve.measure.tune.assemble import known_of, plain_of
from specserve.measure.tune.observe import observed
from specserve.measure.tune.plan import Wish, ladder_of
from specserve.measure.tune.predict import Measured, plain_rows
from specserve.measure.tune.schedule import Situation
from specserve.measure.tune.steptime import StepModel
from specserve.profile.schema import Expectation
from tests.measure.bench.making import request

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_machine import Machine, measured, prompts, texts, wish

TRUTH = StepModel(0.02, 0.003, 16.0, 0.002, 0.001, 0.0025, 0.0003)
LOADS = (1, 2, 4, 8)


def tuned(*, slow: float = 1.0, chance: float = 0.7) -> tuple[Wish, list[Pass]]:
    """Calm for two seconds in ten, else `slow`."""
    rungs, _ = ladder_of(Situation("draft_model", "v1", "cpu"), loads=LOADS, most_tokens=8, most_requests=16)
    wanted, chosen = wish(rungs=rungs), {"code": prompts(24)}
    machine = Machine(TRUTH, texts(prompts=chosen["code"], chance=chance))
    mood = replace(machine, mood=lambda launch, now_s: 1.0 if now_s % 10 < 2 else slow)
    return wanted, measured(mood, wanted, chosen)


@pytest.mark.parametrize("slow", [1.0, 1.4])
def test_what_was_measured_of_a_k_is_what_was_predicted_of_it(slow: float) -> None:
    wanted, passes = tuned(slow=slow)
    found = known_of(wanted, passes, wanted.candidates[0], launches=[1])
    both = [row for row in found.rows if row.measured_tokens_per_s and row.measured_tpot_ms]
    assert len(both) == len(LOADS)
    for row in both:
        assert row.tokens_per_s == pytest.approx(row.measured_tokens_per_s, rel=0.06)
        assert row.tpot_ms == pytest.approx(row.measured_tpot_ms, rel=0.10)


@pytest.mark.parametrize("load", LOADS)
def test_a_time_per_token_is_that_of_the_calm_machine(load: int) -> None:
    calm, shaken = (plain_of(*tuned(slow=slow))["code/0"][load] for slow in (1.0, 1.4))
    assert statistics.fmean(shaken.tpot_s) == pytest.approx(statistics.fmean(calm.tpot_s), rel=0.08)
    assert shaken.slowed > 0.2 > calm.slowed


def test_limits_are_kept_or_not_on_the_calm_machine_on_both_sides() -> None:
    calm_ms = statistics.fmean(plain_of(*tuned())["code/0"][1].tpot_s) * 1000
    limits = {1: Expectation(max_tpot_p99_ms=calm_ms * 1.1)}
    (row,) = plain_rows(Measured("", {1: plain_of(*tuned(slow=1.4))["code/0"][1]}, (), limits=limits))
    assert row.within_limits == row.plain_within_limits == 1.0


def looked_up(*, steps: int, misses: int) -> Pass:
    """An n-gram's: most steps found no match and take 60 ms, the others verify eight tokens in 100 ms."""
    gaps_ms = tuple(60.0 if step % steps < misses else 100.0 for step in range(steps * 10))
    pairs = tuple((3, 8) for gap in gaps_ms if gap > 60)
    made = len(gaps_ms) + sum(took for took, _ in pairs)
    took_s = 0.5 + sum(gaps_ms) / 1000
    one = replace(request(tokens=made + 1, ttft_s=0.5, latency_s=took_s), chunk_gaps_ms=gaps_ms, steps=pairs)
    return Pass(1, 0, Point("code", 0.0, 1), "x", took_s, 0.1, (one,))


def test_where_steps_are_not_the_same_work_a_step_is_the_mean_of_all() -> None:
    done = looked_up(steps=20, misses=16)
    seen = observed([done], tokens=8, is_even=False)
    assert seen is not None and seen.step_s is not None
    assert seen.step_s == pytest.approx(0.8 * 0.06 + 0.2 * 0.1)
    assert seen.tokens_per_s == pytest.approx(done.requests[0].output_tokens / done.duration_s)


def test_an_end_with_fewer_requests_and_another_k_does_not_count_for_the_full_load() -> None:
    accepted = ((2, 2),) * 30 + ((8, 8),) * 10  # a schedule has more tokens for the one that is left over
    tokens = 1 + sum(took + 1 for took, _ in accepted)
    one = replace(
        request(tokens=tokens, ttft_s=0.0, latency_s=4.0), chunk_gaps_ms=(100.0,) * 40, steps=accepted
    )
    seen = observed([Pass(1, 0, Point("code", 0.0, 1), "x", 4.0, 0.1, (one,))], tokens=2)
    assert seen is not None
    assert seen.tokens_per_s == pytest.approx(tokens / 6.0)  # 60 steps of three tokens
