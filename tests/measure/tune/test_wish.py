"""What a tune sends: prompts kept apart, blocks that are found again, as many as the time allows."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.tune.plan import TUNED, cells, confirming, fitted, items, ladder_of, split
from specserve.measure.tune.schedule import Situation, between

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_machine import prompts, wish

RUNGS = {1: 8, 2: 4, 3: 1, 4: 3, 5: 8, 7: 4, 8: 2, 9: 1, 10: 0}


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
    wanted = wish(rungs=RUNGS)
    chosen = {"code": prompts(12)}
    whole = cells(wanted, chosen, candidate=wanted.candidates[0])
    less = cells(wanted, chosen, candidate=wanted.candidates[0], share=0.3)
    assert [cell.block.number for cell in whole] == [cell.block.number for cell in less]
    assert len({cell.block.number for cell in whole}) == len(whole)
    assert sum(len(cell.block.items) for cell in less) < sum(len(cell.block.items) for cell in whole)


def test_a_launch_measures_each_load_and_the_batches_beside_it() -> None:
    wanted = wish(rungs=RUNGS)
    found = cells(wanted, {"code": prompts(12)}, candidate=wanted.candidates[0])
    assert {cell.block.point.concurrency: cell.tokens for cell in found} == RUNGS
    assert {cell.block.point.concurrency for cell in found if cell.is_extra} == set(RUNGS) - {1, 2, 4, 8}
    assert all(len(cell.block.items) > (cell.block.point.concurrency or 1) for cell in found)


def test_the_confirmation_visits_every_point_before_it_visits_one_again() -> None:
    wanted = wish(rungs=RUNGS)
    blocks = confirming(wanted, {"code": prompts(13)})
    first = [block.point for block in blocks[: len(wanted.points())]]
    assert first == wanted.points()
    assert len({block.number for block in blocks}) == len(blocks)


def test_another_candidate_or_question_is_another_run_and_another_budget_is_not() -> None:
    one = wish(rungs=RUNGS)
    assert one.digest == wish(rungs=RUNGS).digest
    for other in (
        wish(rungs={}),
        wish(rungs=RUNGS, most_tokens=4),
        replace(one, between=(3,)),
        replace(one, candidates=(replace(one.candidates[0], keys={"method": "ngram"}),)),
        replace(one, vllm="0.33.0"),
    ):
        assert one.digest != other.digest
    assert one.digest == replace(one, budget_s=60.0).digest


def test_three_launches_are_planned_and_the_confirmation_goes_before_what_is_needed() -> None:
    wanted = wish(rungs=RUNGS)
    assert fitted(wanted).kept == ("baseline", "draft_model", TUNED)
    assert not fitted(replace(wanted, budget_s=1.0)).fits


def test_what_does_not_fit_says_the_limit_and_the_least() -> None:
    wanted = wish(rungs=RUNGS)
    assert fitted(wanted).exceeded is None
    told = fitted(replace(wanted, budget_s=60.0)).exceeded
    assert told is not None
    least = re.fullmatch(r"`--budget 1m`: (\d+)m(\d+)s is the least \(a guess\)", told)
    assert least is not None
    seconds = 60.0 * int(least[1]) + int(least[2])
    assert fitted(replace(wanted, budget_s=seconds)).fits
    assert not fitted(replace(wanted, budget_s=seconds - 1)).fits


def test_the_time_of_a_tune_on_a_cpu_is_guessed_as_one_was_measured() -> None:
    """The demo on two cores: two launches, three workloads, 48 tokens an answer: 18.6 minutes."""
    rungs, _ = ladder_of(
        Situation("draft_model", "v1", "cpu"), loads=(1, 2, 4, 8), most_tokens=8, most_requests=16
    )
    workloads = ("code", "json", "chat")
    whole = between((1, 2, 4, 8), most_tokens=8, most_requests=16)
    wanted = replace(wish(rungs=rungs, workloads=workloads), max_tokens=48, between=whole)
    assert fitted(wanted, confirms=False).seconds == pytest.approx(18.6 * 60, rel=0.15)
    on_cuda = fitted(replace(wanted, platform="cuda"), confirms=False).seconds
    assert on_cuda < fitted(wanted, confirms=False).seconds


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_budget_sends_less_in_each_round_of_the_confirmation_and_not_fewer_rounds(share: float) -> None:
    wanted = wish(rungs=RUNGS)
    held_out = {"code": prompts(26)}
    whole, less = (confirming(wanted, held_out, share=each) for each in (1.0, share))
    assert [block.number for block in whole] == [block.number for block in less]
    sizes = [(len(one.items), len(other.items)) for one, other in zip(whole, less, strict=True)]
    assert all(small <= large for large, small in sizes)
    assert sum(small for _, small in sizes) < 0.8 * sum(large for large, _ in sizes)
    assert all(len(block.items) >= 2 * (block.point.concurrency or 1) for block in less)
