"""The parts of a sweep's passes: what slows all servers of a block moves no speedup, and a prefill is no step."""

import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.measure.bench.variants import BASELINE

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import sweepsteps
from sweep_machine import GAINS, Sweep


def test_a_step_is_compared_with_the_plain_one_of_its_block_however_slow_the_machine_was() -> None:
    machine = Sweep()
    known = sweepsteps.medians(sweepsteps.taken(machine.blocks(12)))
    for tokens in GAINS:
        relative = known.step_s[f"k{tokens}", (0.0, 1)] / known.step_s[BASELINE, (0.0, 1)]
        assert relative == pytest.approx(machine.step_s(tokens) / machine.step_s(0), rel=0.04)


@pytest.mark.parametrize("load", [1, 4])
def test_prefills_are_taken_from_all_servers_and_a_draft_makes_them_longer(load: int) -> None:
    machine = Sweep(prefill_s=0.8, draft_prefill=1.2, load=load, calm=1.0)
    known = sweepsteps.medians(sweepsteps.taken(machine.blocks(12)))
    assert known.prefills == pytest.approx(1.2, rel=0.05)
    for group in (0, 1):
        name = machine.point(group).workload
        assert known.held_up_s[name] == pytest.approx(0.8 * load, rel=0.1)
        assert known.held_up_with_s("k3", name) == pytest.approx(known.held_up_s[name] * known.prefills)


def test_no_draft_makes_a_prefill_shorter() -> None:
    known = sweepsteps.medians(sweepsteps.taken(Sweep(prefill_s=0.8, draft_prefill=0.7).blocks(4)))
    assert known.prefills == 1.0


@pytest.mark.parametrize("load", [1, 4])
def test_speedups_are_those_of_the_machine_without_neighbours(load: int) -> None:
    machine = Sweep(prefill_s=0.8, draft_prefill=1.1, load=load)
    held = sweepsteps.taken(machine.blocks(16))
    (found,) = sweepsteps.rates(held, sweepsteps.medians(held)).values()
    off = [found[f"k{tokens}"] / found[BASELINE] / machine.speedup(tokens) - 1 for tokens in GAINS]
    assert max(map(abs, off)) < 0.06
    assert abs(statistics.median(off)) < 0.03


def test_steps_that_were_counted_at_one_load_are_as_many_at_another() -> None:
    one, four = (Sweep(load=load, calm=1.0, noise=0.0) for load in (1, 4))
    steps = Sweep(load=4, calm=1.0, noise=0.0, workload="steps")
    passes = one.blocks(2) + [done for done in four.blocks(2) if done.arm != "k1"] + steps.blocks(2)
    held = sweepsteps.taken(passes)
    found = sweepsteps.rates(held, sweepsteps.medians(held))["code", 0.0, 4]
    assert found["k1"] / found[BASELINE] == pytest.approx(four.speedup(1), rel=1e-6)


def test_passes_without_a_step_or_without_the_server_they_are_compared_with_are_left_out() -> None:
    assert sweepsteps.taken([]) == []
    passes = Sweep().blocks(1)
    plain = next(done for done in passes if done.arm == BASELINE)
    assert sweepsteps.taken([done for done in passes if done is not plain]) == []
    (one,) = plain.requests
    cut = replace(plain, requests=(replace(one, chunk_gaps_ms=()),))
    assert sweepsteps.taken([cut]) == []
