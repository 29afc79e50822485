"""Steps on the calm machine: neighbours only make them longer, and prefills are none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.driver import Pass
from specserve.measure.bench.result import Point
from specserve.measure.tune.observe import calm_step_s, parts, shared_steps_s, stretches_s
from tests.measure.bench.making import request

STEP_S = 0.06
PREFILL_S = 0.5


def done(
    mood: Callable[[int], float], *, steps: int = 120, launch: int = 0, workload: str = "code", load: int = 1
) -> Pass:
    """As many requests at once as the load is, each step as long as the mood makes it."""
    gaps_ms = tuple(1000 * STEP_S * mood(step) for step in range(steps))
    took_s = PREFILL_S + sum(gaps_ms) / 1000
    one = replace(request(tokens=steps + 1, ttft_s=PREFILL_S, latency_s=took_s), chunk_gaps_ms=gaps_ms)
    every = tuple(replace(one, id=str(number)) for number in range(load))
    return Pass(launch, 0, Point(workload, 0.0, load), "x", took_s, 0.1, every)


def beside_neighbours(seed: int, *, calm: float = 0.1) -> Callable[[int], float]:
    """Now and then calm, for eight steps at a time; else up to half as slow again."""
    rng = random.Random(seed)
    moods = [1.0 if rng.random() < calm else rng.uniform(1.05, 1.5) for _ in range(60)]
    return lambda step: moods[step // 8]


@given(st.integers(0, 100))
def test_a_few_calm_moments_tell_the_step(seed: int) -> None:
    passes = [done(beside_neighbours(seed + 1000 * number), steps=240) for number in range(4)]
    assert calm_step_s(passes) == pytest.approx(STEP_S, rel=0.06)


def test_on_a_machine_of_its_own_the_calm_step_is_the_usual_one() -> None:
    rng = random.Random(1)
    alone = done(lambda _: rng.gauss(1.0, 0.02))
    part = parts(alone)
    assert part is not None
    assert calm_step_s([alone]) == pytest.approx(part.step_s, rel=0.03)


def test_a_chunk_that_is_read_late_makes_no_quick_step() -> None:
    late = done(lambda step: {10: 1.6, 11: 0.4}.get(step, 1.0))
    assert calm_step_s([late]) == pytest.approx(STEP_S, rel=0.01)


def test_a_moment_in_which_the_machine_stood_still_is_no_step() -> None:
    still = done(lambda step: 12.0 if step == 30 else 1.0)
    part = parts(still)
    assert part is not None
    assert part.step_s == pytest.approx(STEP_S)
    assert part.held_up_s == pytest.approx(PREFILL_S + 11 * STEP_S)


@given(st.integers(1, 8), st.floats(1.0, 1.5))
def test_a_pass_is_its_steps_and_what_held_them_up(load: int, mood: float) -> None:
    measured = done(lambda _: mood, load=load)
    part = parts(measured)
    assert part is not None
    assert part.steps == 120 * load
    assert part.held_up_s == pytest.approx(load * PREFILL_S, rel=1e-6)
    assert part.whole_s(part.step_s) == pytest.approx(load * measured.duration_s)
    assert part.whole_s(STEP_S) == pytest.approx(load * (PREFILL_S + 120 * STEP_S), rel=1e-6)


def test_quick_steps_are_taken_in_longer_stretches() -> None:
    assert len(stretches_s(done(lambda _: 1.0, steps=400))) == 400 // 4
    assert len(stretches_s(done(lambda _: 0.1, steps=400))) == 400 // 42


def test_too_few_steps_tell_nothing() -> None:
    assert calm_step_s([done(lambda _: 1.0, steps=7)]) is None
    assert calm_step_s([]) is None
    assert parts(done(lambda _: 1.0, steps=0)) is None


def test_workloads_share_their_calm_moments_only_beside_neighbours() -> None:
    short, long = done(lambda _: 1.0), done(lambda _: 1.2, workload="long")
    assert shared_steps_s([short, long]) == {}
    chances = {"code": 0.0, "json": 0.0, "chat": 0.3}
    shaken = [
        done(beside_neighbours(seed, calm=calm), workload=name, steps=240)
        for seed, (name, calm) in enumerate(chances.items())
    ]
    assert shared_steps_s(shaken) == {(0, 0.0, 1): pytest.approx(STEP_S)}
    alone_s = calm_step_s(shaken[:2])
    assert alone_s is not None and alone_s > 1.04 * STEP_S


def test_launches_and_loads_share_nothing() -> None:
    passes = [
        done(beside_neighbours(seed), launch=launch, load=load, steps=240)
        for seed, (launch, load) in enumerate(((0, 1), (1, 1), (1, 4)))
    ]
    assert set(shared_steps_s(passes)) == {(0, 0.0, 1), (1, 0.0, 1), (1, 0.0, 4)}
