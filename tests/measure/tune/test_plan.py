"""What a tune sends: prompts kept apart, blocks that are found again, as many as the time allows."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.plan import Block
from specserve.measure.tune.candidates import ladder
from specserve.measure.tune.choose import between
from specserve.measure.tune.plan import TUNED, TunePlan, items, split
from specserve.measure.workloads.workload import Prompt

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_machine import blocks, prompts, tune_plan

RUNGS = {1: 8, 2: 4, 3: 1, 4: 3, 5: 8, 7: 4, 8: 2, 9: 1, 10: 0}


def confirming(plan: TunePlan, held_out: tuple[Prompt, ...], *, share: float = 1.0) -> list[Block]:
    return [plan.block(number, point, held_out, share=share) for number, point in plan.confirmation()]


@given(st.integers(2, 60), st.integers(1, 60))
def test_prompts_that_choose_do_not_confirm(count: int, wanted: int) -> None:
    every = prompts(count)
    chosen, held_out = split(every, wanted)
    assert chosen and held_out
    assert not set(chosen) & set(held_out)
    assert set(chosen) | set(held_out) == set(every)
    assert len(chosen) == min(wanted, (count + 1) // 2)


def test_a_single_prompt_does_both() -> None:
    assert split(prompts(1), 5) == (prompts(1), prompts(1))


@given(st.integers(1, 20), st.integers(0, 60))
def test_every_prompt_is_sent_and_each_request_has_an_id_of_its_own(count: int, least: int) -> None:
    found = items(prompts(count), least=least)
    assert len(found) == max(count, least)
    assert len({item.id for item in found}) == len(found)
    assert {item.prompt for item in found} == set(prompts(count))


def test_blocks_have_the_same_numbers_whatever_the_budget_lets_through() -> None:
    wanted = tune_plan(rungs=RUNGS)
    chosen = {"code": prompts(12)}
    whole = blocks(wanted, wanted.launches[1], chosen)
    less = blocks(wanted, wanted.launches[1], chosen, share=0.3)
    assert [block.number for block in whole] == [block.number for block in less]
    assert len({block.number for block in whole}) == len(whole)
    assert sum(len(block.items) for block in less) < sum(len(block.items) for block in whole)


def test_a_launch_measures_each_load_and_the_batches_beside_it() -> None:
    wanted = tune_plan(rungs=RUNGS)
    launch = wanted.launches[1]
    found = blocks(wanted, launch, {"code": prompts(12)})
    loads = [block.point.concurrency or 1 for block in found]
    assert {load: launch.tokens_at(load) for load in loads} == RUNGS
    assert set(wanted.extra_loads(launch)) == set(RUNGS) - {1, 2, 4, 8}
    assert all(len(block.items) > load for block, load in zip(found, loads, strict=True))


def test_the_confirmation_visits_every_point_before_it_visits_one_again() -> None:
    wanted = tune_plan(rungs=RUNGS)
    found = confirming(wanted, prompts(13))
    first = tuple(block.point for block in found[: len(wanted.points)])
    assert first == wanted.points
    assert len({block.number for block in found}) == len(found)


def test_another_candidate_or_question_is_another_run_and_another_budget_is_not() -> None:
    one = tune_plan(rungs=RUNGS)
    assert one.digest == tune_plan(rungs=RUNGS).digest
    for other in (
        tune_plan(rungs={}),
        tune_plan(rungs=RUNGS, most_tokens=4),
        tune_plan(rungs=RUNGS, between=(3,)),
        replace(one, candidates=(replace(one.candidates[0], keys={"method": "ngram"}),)),
        replace(one, vllm="0.33.0"),
    ):
        assert one.digest != other.digest
    assert one.digest == replace(one, budget_s=60.0).digest


def test_three_launches_are_planned_and_the_confirmation_goes_before_what_is_needed() -> None:
    wanted = tune_plan(rungs=RUNGS)
    assert wanted.budget.kept == ("baseline", "draft_model", TUNED)
    assert replace(wanted, budget_s=1.0).budget.exceeded is not None


def test_what_does_not_fit_says_the_limit_and_the_least() -> None:
    wanted = tune_plan(rungs=RUNGS)
    assert wanted.budget.exceeded is None
    told = replace(wanted, budget_s=60.0).budget.exceeded
    assert told is not None
    least = re.fullmatch(r"`--budget 1m`: (\d+)m(\d+)s is the least \(a guess\)", told)
    assert least is not None
    seconds = 60.0 * int(least[1]) + int(least[2])
    assert replace(wanted, budget_s=seconds).budget.exceeded is None
    assert replace(wanted, budget_s=seconds - 1).budget.exceeded is not None


def test_the_time_of_a_tune_on_a_cpu_is_guessed_as_one_was_measured() -> None:
    """The demo on two cores: two launches, three workloads, 48 tokens an answer: 18.6 minutes."""
    loads, sizes = (1, 2, 4, 8), {"most_tokens": 8, "most_requests": 16}
    wanted = tune_plan(
        rungs=ladder(loads, **sizes),
        workloads=("code", "json", "chat"),
        between=between(loads, **sizes),
        max_tokens=48,
    )
    wanted = replace(wanted, request=replace(wanted.request, confirm=False))
    assert wanted.budget.seconds == pytest.approx(18.6 * 60, rel=0.15)
    assert replace(wanted, platform="cuda").budget.seconds < wanted.budget.seconds


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_budget_sends_less_in_each_round_of_the_confirmation_and_not_fewer_rounds(share: float) -> None:
    wanted = tune_plan(rungs=RUNGS)
    whole, less = (confirming(wanted, prompts(26), share=each) for each in (1.0, share))
    assert [block.number for block in whole] == [block.number for block in less]
    sizes = [(len(one.items), len(other.items)) for one, other in zip(whole, less, strict=True)]
    assert all(small <= large for large, small in sizes)
    assert sum(small for _, small in sizes) < 0.8 * sum(large for large, _ in sizes)
    assert all(len(block.items) >= 2 * (block.point.concurrency or 1) for block in less)
