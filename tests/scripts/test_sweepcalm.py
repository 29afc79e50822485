"""Every server of a sweep on the calm machine: what neighbours took is given back, and what a prefill took is not."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.measure.bench.arms import BASELINE

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import sweepcalm
from sweep_machine import GAINS, STEP_S, Sweep


def test_a_step_is_that_of_the_calm_moments_whichever_group_had_them() -> None:
    machine = Sweep()
    known = sweepcalm.calm(sweepcalm.taken(machine.blocks(12)))
    assert known.step_s[BASELINE, (0.0, 1)] == pytest.approx(STEP_S, rel=0.03)
    assert known.step_s["k4", (0.0, 1)] == pytest.approx(machine.step_s(4), rel=0.03)


@pytest.mark.parametrize("load", [1, 4])
def test_prefills_are_taken_from_all_servers_and_a_draft_makes_them_longer(load: int) -> None:
    machine = Sweep(prefill_s=0.8, draft_prefill=1.2, load=load)
    known = sweepcalm.calm(sweepcalm.taken(machine.blocks(12)))
    assert known.prefills == pytest.approx(1.2, rel=0.05)
    for group in (0, 1):
        name = machine.point(group).workload
        assert known.held_up_s[name] == pytest.approx(0.8 * load, rel=0.1)
        assert known.held_up_with_s("k3", name) == pytest.approx(known.held_up_s[name] * known.prefills)


def test_no_draft_makes_a_prefill_shorter() -> None:
    known = sweepcalm.calm(sweepcalm.taken(Sweep(prefill_s=0.8, draft_prefill=0.7).blocks(4)))
    assert known.prefills == 1.0


@pytest.mark.parametrize("load", [1, 4])
def test_rates_are_those_of_the_calm_machine(load: int) -> None:
    machine = Sweep(prefill_s=0.8, draft_prefill=1.1, load=load)
    held = sweepcalm.taken(machine.blocks(16))
    (found,) = sweepcalm.rates(held, sweepcalm.calm(held)).values()
    for tokens in GAINS:
        gain = found[f"k{tokens}"] / found[BASELINE]
        assert gain == pytest.approx(machine.speedup(tokens), rel=0.04)
    assert found[BASELINE] == pytest.approx(load * 96 / (0.8 + 96 * STEP_S), rel=0.05)


def test_steps_that_were_counted_at_one_load_are_as_many_at_another() -> None:
    one, four = (Sweep(load=load, calm=1.0, noise=0.0) for load in (1, 4))
    steps = Sweep(load=4, calm=1.0, noise=0.0, workload="steps")
    passes = one.blocks(2) + [done for done in four.blocks(2) if done.arm != "k1"] + steps.blocks(2)
    held = sweepcalm.taken(passes)
    found = sweepcalm.rates(held, sweepcalm.calm(held))["code", 0.0, 4]
    assert found["k1"] / found[BASELINE] == pytest.approx(four.speedup(1), rel=1e-6)


def test_passes_too_short_to_time_a_step_are_left_out() -> None:
    assert sweepcalm.taken([]) == []
    short = [done for done in Sweep().blocks(1) if done.arm == "k8"]
    (one,) = short[0].requests
    cut = replace(short[0], requests=(replace(one, chunk_gaps_ms=one.chunk_gaps_ms[:3]),))
    assert sweepcalm.taken([cut]) == []
