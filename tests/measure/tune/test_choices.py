"""Time budget, ladder, intervals: what holds whatever was measured."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specserve.errors import UsageError
from specserve.measure import values
from specserve.measure.tune import choose, plan
from specserve.measure.tune.candidates import ladder, ladder_obstacle
from specserve.measure.tune.choose import ranges, schedule_obstacle
from specserve.measure.tune.observe import Steps
from specserve.measure.tune.predict import length_interval
from tests.measure.tune.making import problems

wanted = st.lists(
    st.builds(
        plan.LaunchCost, st.text(min_size=1, max_size=3), st.floats(0, 100), st.floats(0, 600), st.booleans()
    ),
    max_size=8,
    unique_by=lambda each: each.name,
)


@given(wanted, st.none() | st.floats(0, 3000))
def test_a_plan_keeps_its_budget_or_says_that_it_cannot(
    launches: list[plan.LaunchCost], seconds: float | None
) -> None:
    found = plan.fit_budget(launches, budget_s=seconds)
    names = [each.name for each in launches]
    assert set(found.kept) | {name for name, _ in found.left_out} == set(names)
    assert [name for name in names if name in found.kept] == list(found.kept)
    assert all(each.name in found.kept for each in launches if each.is_needed)
    assert plan.LEAST_SHARE <= found.share <= 1.0
    if found.exceeded is None:
        assert seconds is None or found.seconds <= seconds + 1e-6


def test_with_time_enough_nothing_is_left_out() -> None:
    launches = [plan.LaunchCost("plain", 20, 60, is_needed=True), plan.LaunchCost("ngram", 20, 60)]
    found = plan.fit_budget(launches, budget_s=1000)
    assert (found.kept, found.left_out, found.share) == (("plain", "ngram"), (), 1.0)


def test_what_is_least_needed_goes_first_with_the_reason() -> None:
    launches = [plan.LaunchCost("plain", 20, 60, is_needed=True), plan.LaunchCost("ngram", 20, 60)]
    assert plan.fit_budget(launches, budget_s=40).left_out == (("ngram", "--budget 40s"),)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (45, "45s"), (1200, "20m"), (5400, "1h30m"), (61, "1m1s")]
)
def test_a_duration_reads_as_it_is_typed(seconds: float, text: str) -> None:
    assert plan.duration(seconds) == text
    assert values.seconds(text, option="--budget", least_s=0.0) == seconds


@pytest.mark.parametrize("text", ["", "m", "30s2m", "2m 30s", "5x"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        values.seconds(text, option="--budget", least_s=0.0)


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True), st.integers(1, 12), st.integers(1, 128)
)
def test_a_ladder_is_a_schedule_that_vllm_takes(loads: list[int], most: int, requests: int) -> None:
    loads = [load for load in loads if load <= requests]
    assume(loads)
    found = ladder(loads, most_tokens=most, most_requests=requests)
    assert set(loads) <= set(found)
    assert list(found) == sorted(found)
    drafting = {batch: tokens for batch, tokens in found.items() if tokens}
    assert all(1 <= tokens <= most for tokens in drafting.values())
    assert max(found) <= requests
    assert len(found) - len(drafting) == (max(drafting) < requests)
    assert found[min(loads)] == most
    assert len(drafting) <= len(loads) + 7
    rows = ranges(found)
    assert problems(rows, loads=[]) == []
    looked_up = {batch: tokens for first, last, tokens in rows for batch in range(first, last + 1)}
    assert {batch: looked_up[batch] for batch in found} == found


@pytest.mark.parametrize(
    ("method", "runner", "more", "reason"),
    [
        ("draft_model", "v1", {}, None),
        ("ngram", "v1", {}, None),
        ("eagle3", "v2", {}, None),
        ("draft_model", "v2", {}, "whatever the schedule says"),
        ("ngram", "v2", {}, "whatever the schedule says"),
        ("eagle3", "v2", {"engines": 2}, "data parallelism"),
        ("suffix", "v1", {}, "no schedule"),
        ("draft_model", "v1", {"uses_graphs": True}, "CUDA graphs"),
        ("eagle3", "v2", {"uses_graphs": True}, None),
    ],
)
def test_where_several_k_can_be_measured_in_one_launch(
    method: str, runner: str, more: dict[str, Any], reason: str | None
) -> None:
    found = ladder_obstacle(method, runner, **more)
    assert found is None if reason is None else reason in (found or "")


def test_a_draft_model_on_v2_saves_no_drafting_by_a_schedule() -> None:
    assert schedule_obstacle("draft_model", "v2") is not None
    assert schedule_obstacle("draft_model", "v1") is None
    assert "eagle3" in choose.FOLLOWS_ON_V2


def uneven_requests(count: int) -> list[Steps]:
    """Of some requests nearly all is accepted, of others nearly nothing; a few are very long."""
    draw = random.Random(4)
    found = []
    for index in range(count):
        chance, steps = draw.choice((0.2, 0.9)), 400 if index % 10 == 0 else 40
        took = []
        for _ in range(steps):
            here = 0
            while here < 5 and draw.random() < chance:
                here += 1
            took.append(here)
        found.append(Steps(tuple(took), (5,) * steps))
    return found


def test_intervals_by_request_are_wider_than_if_steps_were_independent() -> None:
    requests = uneven_requests(100)
    steps = [took + 1 for each in requests for took in each.accepted]
    mean = sum(steps) / len(steps)
    spread = (sum((value - mean) ** 2 for value in steps) / len(steps)) ** 0.5
    independent = 1.96 * spread / len(steps) ** 0.5
    found = length_interval(requests, tokens=5, draws=400)
    assert found is not None
    assert (found.high - found.low) / 2 > 1.5 * independent


def test_copies_of_one_prompt_tell_no_more_than_one_answer_to_it() -> None:
    requests = [replace(each, prompt=str(index)) for index, each in enumerate(uneven_requests(12))]
    once = length_interval(requests, tokens=5, draws=400)
    assert once is not None
    assert length_interval(requests * 20, tokens=5, draws=400) == once


@given(st.integers(1, 5))
def test_an_interval_holds_its_value_and_is_the_same_each_time(tokens: int) -> None:
    requests = uneven_requests(12)
    found = length_interval(requests, tokens=tokens, draws=100)
    assert found is not None
    assert found.low <= found.value <= found.high
    assert found == length_interval(requests, tokens=tokens, draws=100)


def test_one_request_says_nothing_of_others() -> None:
    found = length_interval([Steps((1, 2), (3, 3))], tokens=3)
    assert found is not None
    assert found.high == float("inf")
    assert length_interval([], tokens=3) is None
