"""The order of a tune: which servers run when, what is measured twice (nothing), what is left running (nothing).

Servers and load generator stand in: a machine in arithmetic answers. tests/engine/test_tune.py does it with real ones.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.errors import Interrupted, LaunchError
from specserve.measure import servers as subject
from specserve.measure.bench.rundir import Doing, OnNews, Passed, create, resume
from specserve.measure.bench.variants import Fit
from specserve.measure.tune.choose import Choice
from specserve.measure.tune.plan import (
    BASELINE,
    CONFIRMING,
    EXTRA,
    LEAST_ROUNDS,
    TUNED,
    TunePlan,
    TuneRequest,
)
from specserve.measure.tune.run import Tune

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

from tune_world import World, arm, plan_of, stand_in


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return stand_in(monkeypatch)


NUMBER = 7
"""Of the launch that confirms."""


def tuned(world: World, folder: Path, plan: TunePlan | None = None, **content: object) -> Tune:
    run = resume(folder) if folder.exists() else create(folder, {"kind": "tune", **content})
    with run as directory, Tune(plan or plan_of(), directory, lambda _: None, world.stop) as tune:
        tune.measure()
        tune.confirm(arm(TUNED), number=NUMBER)
    return tune


def test_three_servers_are_started_and_none_is_left(world: World, tmp_path: Path) -> None:
    tune = tuned(world, tmp_path / "run")
    assert world.started == [BASELINE, "draft_model", TUNED]
    assert tune.launches == 3
    assert world.most == 2
    assert world.running == []
    assert {each.arm for each in tune.passes if each.launch == NUMBER} == {BASELINE, TUNED}


def test_two_servers_that_run_at_once_have_accelerators_of_their_own(world: World, tmp_path: Path) -> None:
    tuned(world, tmp_path / "run", plan_of(room=Fit(2, "", (("g0", "g1"), ("g2", "g3")))))
    assert world.devices == {BASELINE: "g2,g3", "draft_model": "g0,g1", TUNED: "g0,g1"}


def test_where_one_server_fits_they_run_one_after_another(world: World, tmp_path: Path) -> None:
    tune = tuned(world, tmp_path / "run", plan_of(at_once=1))
    assert world.started == [BASELINE, "draft_model", TUNED]
    assert world.most == 1
    held_out = [each for each in tune.passes if each.block >= 5000]
    assert {each.arm for each in held_out} == {BASELINE, TUNED}


@pytest.mark.parametrize("after", [0, 1, 3, 6, 9, 14])
def test_an_interrupted_tune_ends_its_servers_and_measures_nothing_twice(
    world: World, tmp_path: Path, after: int
) -> None:
    world.interrupt_after = after
    with pytest.raises(Interrupted):
        tuned(world, tmp_path / "run")
    assert world.running == []
    world.interrupt_after = None
    tune = tuned(world, tmp_path / "run")
    assert world.running == []
    keys = [each.key for each in tune.passes]
    assert len(set(keys)) == len(keys)
    assert len(tune.passes) == world.sent
    whole = tuned(world, tmp_path / "other")
    assert sorted(map(repr, (each.key for each in whole.passes))) == sorted(map(repr, keys))


def test_a_tune_that_is_complete_starts_nothing_more(world: World, tmp_path: Path) -> None:
    tuned(world, tmp_path / "run")
    world.started.clear()
    tuned(world, tmp_path / "run")
    assert world.started == []


def test_prompts_that_choose_are_not_those_that_confirm(world: World, tmp_path: Path) -> None:
    tune = tuned(world, tmp_path / "run")
    chosen = {request.prompt for each in tune.passes if each.block < 1000 for request in each.requests}
    held_out = {request.prompt for each in tune.passes if each.block >= 5000 for request in each.requests}
    assert chosen and held_out and not chosen & held_out


def measured(
    world: World, folder: Path, plan: TunePlan, on_news: OnNews = lambda _: None, **content: object
) -> Tune:
    plan = replace(plan, request=TuneRequest("p.yaml", confirm=False))
    run = create(folder, {"kind": "tune", **content})
    with run as directory, Tune(plan, directory, on_news, world.stop) as tune:
        tune.measure()
    return tune


def test_a_candidate_that_does_not_start_is_left_out_and_the_others_are_measured(
    world: World, tmp_path: Path
) -> None:
    world.broken = {"big"}
    tune = measured(world, tmp_path / "run", plan_of("draft_model", "big", "ngram"))
    assert tune.failed == {"big": "out of memory"}
    assert {each.arm for each in tune.passes} == {BASELINE, "draft_model", "ngram"}
    assert world.running == []


def test_the_first_candidate_may_be_the_one_that_does_not_start(world: World, tmp_path: Path) -> None:
    world.broken = {"draft_model"}
    tune = measured(world, tmp_path / "run", plan_of("draft_model", "ngram"))
    assert tune.failed == {"draft_model": "out of memory"}
    assert {each.arm for each in tune.passes} == {BASELINE, "ngram"}


def test_where_no_candidate_starts_there_is_nothing_to_say(world: World, tmp_path: Path) -> None:
    world.broken = {"draft_model", "ngram"}
    with pytest.raises(LaunchError, match="out of memory"):
        measured(world, tmp_path / "run", plan_of("draft_model+2", "ngram"))
    assert world.started == [BASELINE, "draft_model", "ngram"]


def test_the_second_launch_of_a_candidate_that_does_not_start_is_not_made(
    world: World, tmp_path: Path
) -> None:
    world.broken = {"big"}
    tune = measured(world, tmp_path / "run", plan_of("draft_model", "big+2"))
    assert world.started == [BASELINE, "draft_model", "big"]
    assert set(tune.failed) == {"big"}


def test_a_candidate_whose_second_launch_fails_is_known_by_its_first(world: World, tmp_path: Path) -> None:
    world.broken = {"draft_model-k2"}
    tune = measured(world, tmp_path / "run", plan_of("draft_model+2"))
    assert set(tune.failed) == {"draft_model-k2"}
    assert {each.arm for each in tune.passes} == {BASELINE, "draft_model"}


def late() -> TunePlan:
    """A tune with a budget. A run that has spent more before is late from its first prompt on."""
    return plan_of(between=(3, 4), budget_s=3600.0)


def test_the_fewest_prompts_that_were_sent_are_told(world: World, tmp_path: Path) -> None:
    tune = measured(world, tmp_path / "run", late(), spent_s=1e9)
    few = "to stay within the budget, some measurements sent only 50% of a workload's prompts"
    assert few in tune.budget_notes()  # two of four: fewer tell nothing
    with (
        resume(tmp_path / "run") as directory,
        Tune(plan_of(), directory, lambda _: None, world.stop) as again,
    ):
        again.measure()
    assert few in again.budget_notes()


def test_progress_shows_how_long_a_start_takes_and_no_more_time_than_the_budget_leaves(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=10)  # every pass seems to take that long
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    news: list[object] = []
    measured(world, tmp_path / "run", plan_of(between=(3, 4), budget_s=40.0), news.append)
    assert Doing("starting draft_model: starting the engine, 70s so far") in news
    left_s = [each.left_s for each in news if isinstance(each, Passed)]
    assert len(left_s) > 5 and 30 < max(left_s) <= 40


def test_without_a_budget_there_is_nothing_to_tell_of_it(world: World, tmp_path: Path) -> None:
    assert measured(world, tmp_path / "run", plan_of()).budget_notes() == []


def test_what_was_left_for_the_budget_starts_no_server_while_the_budget_is_used_up(
    world: World, tmp_path: Path
) -> None:
    tune = measured(world, tmp_path / "run", late(), spent_s=1e9)
    assert not [each for each in tune.passes if each.block >= EXTRA]
    sent, planned = len(tune.passes), sum(len(tune.plan.passes(each)) for each in tune.plan.launches)
    assert tune.budget_notes()[0].startswith(
        f"the budget of 1h was used up after {sent} of {planned} measurements: the prediction rests on these alone"
    )
    world.started.clear()
    with resume(tmp_path / "run") as directory:
        Tune(tune.plan, directory, lambda _: None, world.stop).measure()
    assert world.started == []


def test_a_confirmation_that_the_budget_broke_off_starts_no_server_again(
    world: World, tmp_path: Path
) -> None:
    for _ in range(2):
        tune = tuned(world, tmp_path / "run", late(), spent_s=1e9)
    assert world.started == [BASELINE, "draft_model", TUNED]
    confirming = [each for each in tune.passes if each.launch == NUMBER]
    assert len(confirming) == 2 * LEAST_ROUNDS * len(tune.plan.points)


def test_a_budget_keeps_time_for_two_rounds_of_the_confirmation(world: World, tmp_path: Path) -> None:
    plan = late()
    with (
        create(tmp_path / "run", {"kind": "tune"}) as directory,
        Tune(plan, directory, lambda _: None, world.stop) as tune,
    ):
        tune.measure()
        after_s = tune.left_s()
        tune._confirms = True
        kept_s = tune.confirmation_s()
        before_s = tune.left_s()
        tune.confirm(arm(TUNED), number=NUMBER)
    least = [each for each in tune.passes if each.launch == NUMBER and each.block < CONFIRMING + 1000]
    assert len(least) == 2 * LEAST_ROUNDS * len(plan.points)
    assert kept_s >= 0.9 * sum(each.duration_s for each in least)
    assert after_s is not None and before_s is not None
    assert after_s - before_s == pytest.approx(kept_s, abs=1.0)


def test_another_choice_is_confirmed_by_a_launch_of_its_own(world: World, tmp_path: Path) -> None:
    first = Choice(True, "", "draft_model", {"num_speculative_tokens": 4})
    second = replace(first, speculation={"num_speculative_tokens": 2})
    with create(tmp_path / "run", {"kind": "tune"}) as directory:
        tune = Tune(plan_of(), directory, lambda _: None, world.stop)
        numbers = [tune.confirmation_number(each) for each in (first, second, first)]
    assert numbers[0] == numbers[2] != numbers[1]
    assert min(numbers) >= len(tune.plan.launches)
