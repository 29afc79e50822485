"""Passes on the calm machine: what neighbours took is given back, and what a prefill took is not."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Point
from tests.measure.bench.making import request

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import sweepcalm

CALM_MS = 60.0
STEPS = 40
PREFILL_S = 0.5


def done(block: int, mood: float, *, arm: str = "k4", prefill_s: float = PREFILL_S) -> Pass:
    """One request of 40 steps, all of them longer by the machine's mood."""
    gaps = (CALM_MS * mood,) * STEPS
    took_s = prefill_s + sum(gaps) / 1000
    one = replace(request(tokens=101, ttft_s=prefill_s, latency_s=took_s), chunk_gaps_ms=gaps)
    return Pass(
        launch=0,
        block=block,
        point=Point("code.1.0", 0.0, 1),
        arm=arm,
        duration_s=took_s,
        client_cpu=0.1,
        requests=(one,),
    )


def moods(count: int) -> list[float]:
    """A quarter of the time the machine is calm."""
    rng = random.Random(0)
    return [rng.uniform(1.0, 1.4) if number % 4 else 1.0 for number in range(count)]


def test_what_neighbours_took_is_given_back() -> None:
    found = sweepcalm.calm([done(block, mood) for block, mood in enumerate(moods(20))])
    for each in found:
        assert each.duration_s == pytest.approx(PREFILL_S + STEPS * CALM_MS / 1000, rel=1e-6)


def test_a_first_token_that_came_late_stays_late() -> None:
    passes = [done(0, 1.0), done(1, 1.0, prefill_s=PREFILL_S + 0.3)]
    early, late = sweepcalm.calm(passes)
    assert late.duration_s - early.duration_s == pytest.approx(0.3)


def test_a_step_that_waited_for_a_prefill_is_no_mood() -> None:
    passes = [done(block, 1.0) for block in range(3)]
    (one,) = passes[0].requests
    waited = replace(
        one, latency_s=one.latency_s + 1.0, chunk_gaps_ms=(*one.chunk_gaps_ms[:-1], CALM_MS + 1000)
    )
    passes[0] = replace(passes[0], duration_s=passes[0].duration_s + 1.0, requests=(waited,))
    found = sweepcalm.calm(passes)
    assert found[0].duration_s - found[1].duration_s == pytest.approx(1.0)


def test_each_server_has_its_own_calm_step() -> None:
    passes = [done(0, 1.0), done(0, 1.5, arm="baseline")]
    assert [each.duration_s for each in sweepcalm.calm(passes)] == pytest.approx(
        [each.duration_s for each in passes]
    )


def test_the_calm_step_is_the_less_in_doubt_the_more_passes_there_are() -> None:
    def doubt(count: int) -> float:
        (found,) = sweepcalm.doubts([done(block, mood) for block, mood in enumerate(moods(count))]).values()
        return found

    assert doubt(80) < doubt(6)
    assert sweepcalm.doubts([done(block, 1.0) for block in range(5)]) == {("k4", 0.0, 1): 0.0}
