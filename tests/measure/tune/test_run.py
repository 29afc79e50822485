"""The order of a tune: which servers run when, what is measured twice (nothing), what is left running (nothing).

Servers and load generator stand in: a machine in arithmetic answers. tests/engine/test_tune.py does it with real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.errors import Interrupted, LaunchError
from specserve.measure.bench.rundir import create, resume
from specserve.measure.tune.plan import BASELINE, CONFIRMING, EXTRA, LEAST_ROUNDS, TUNED, Candidate, Wish
from specserve.measure.tune.result import Choice
from specserve.measure.tune.run import Tune

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

from tune_world import World, arm, stand_in, wanted


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return stand_in(monkeypatch)


def tuned(world: World, folder: Path, *, fits_two: bool = True, again: bool = False) -> Tune:
    directory = resume(folder) if again else create(folder, {"kind": "tune"})
    with directory:
        tune = Tune(wanted(), directory, lambda _: None, world.stop, fits_two=fits_two)
        with tune:
            tune.measure(tune.wish.candidates, confirms=True)
            tune.confirm(arm(TUNED), launch=2)
    return tune


def test_three_servers_are_started_and_none_is_left(world: World, tmp_path: Path) -> None:
    tune = tuned(world, tmp_path / "run")
    assert world.started == [BASELINE, "draft_model", TUNED]
    assert tune.launches == 3
    assert world.most == 2
    assert world.running == []
    assert tune.is_interleaved


def test_two_servers_that_run_at_once_have_accelerators_of_their_own(world: World, tmp_path: Path) -> None:
    with create(tmp_path / "run", {"kind": "tune"}) as directory:
        tune = Tune(
            wanted(), directory, lambda _: None, world.stop, fits_two=True, slots=(("g0", "g1"), ("g2", "g3"))
        )
        with tune:
            tune.measure(tune.wish.candidates, confirms=True)
            tune.confirm(arm(TUNED), launch=2)
    assert world.devices == {BASELINE: "g2,g3", "draft_model": "g0,g1", TUNED: "g0,g1"}


def test_where_one_server_fits_they_run_one_after_another(world: World, tmp_path: Path) -> None:
    tune = tuned(world, tmp_path / "run", fits_two=False)
    assert world.started == [BASELINE, "draft_model", TUNED]
    assert world.most == 1
    assert not tune.is_interleaved
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
    tune = tuned(world, tmp_path / "run", again=True)
    assert world.running == []
    keys = [each.key for each in tune.passes]
    assert len(set(keys)) == len(keys)
    assert len(tune.passes) == world.sent
    whole = tuned(world, tmp_path / "other")
    assert sorted(map(repr, (each.key for each in whole.passes))) == sorted(map(repr, keys))


def test_a_tune_that_is_complete_starts_nothing_more(world: World, tmp_path: Path) -> None:
    tuned(world, tmp_path / "run")
    world.started.clear()
    tuned(world, tmp_path / "run", again=True)
    assert world.started == []


def test_prompts_that_choose_are_not_those_that_confirm(world: World, tmp_path: Path) -> None:
    tune = tuned(world, tmp_path / "run")
    chosen = {request.prompt for each in tune.passes if each.block < 1000 for request in each.requests}
    held_out = {request.prompt for each in tune.passes if each.block >= 5000 for request in each.requests}
    assert chosen and held_out and not chosen & held_out


def measured(world: World, folder: Path, *candidates: Candidate, wish: Wish | None = None) -> Tune:
    with create(folder, {"kind": "tune"}) as directory:
        tune = Tune(wish or wanted(), directory, lambda _: None, world.stop, fits_two=True)
        with tune:
            tune.measure(candidates or tune.wish.candidates, confirms=False)
    return tune


def others(*names: str) -> list[Candidate]:
    """The profile's own and further candidates; `-k2` are second launches of those before."""
    own = wanted().candidates[0]
    return [
        own,
        *(replace(own, name=name, arm=arm(name), is_own=False, small=name.endswith("-k2")) for name in names),
    ]


def test_a_candidate_that_does_not_start_is_left_out_and_the_others_are_measured(
    world: World, tmp_path: Path
) -> None:
    world.broken = {"big"}
    tune = measured(world, tmp_path / "run", *others("big", "ngram"))
    assert tune.failed == {"big": "out of memory"}
    assert {each.arm for each in tune.passes} == {BASELINE, "draft_model", "ngram"}
    assert world.running == []


def test_the_first_candidate_may_be_the_one_that_does_not_start(world: World, tmp_path: Path) -> None:
    world.broken = {"draft_model"}
    tune = measured(world, tmp_path / "run", *others("ngram"))
    assert tune.failed == {"draft_model": "out of memory"}
    assert {each.arm for each in tune.passes} == {BASELINE, "ngram"}


def test_where_no_candidate_starts_there_is_nothing_to_say(world: World, tmp_path: Path) -> None:
    world.broken = {"draft_model", "ngram"}
    with pytest.raises(LaunchError, match="out of memory"):
        measured(world, tmp_path / "run", *others("draft_model-k2", "ngram"))
    assert world.started == [BASELINE, "draft_model", "ngram"]


def test_the_second_launch_of_a_candidate_that_does_not_start_is_not_made(
    world: World, tmp_path: Path
) -> None:
    world.broken = {"big"}
    tune = measured(world, tmp_path / "run", *others("big", "big-k2"))
    assert world.started == [BASELINE, "draft_model", "big"]
    assert set(tune.failed) == {"big"}


def test_a_candidate_whose_second_launch_fails_is_known_by_its_first(world: World, tmp_path: Path) -> None:
    world.broken = {"draft_model-k2"}
    tune = measured(world, tmp_path / "run", *others("draft_model-k2"))
    assert set(tune.failed) == {"draft_model-k2"}
    assert {each.arm for each in tune.passes} == {BASELINE, "draft_model"}


def late(*, between: Sequence[int] = (3, 4)) -> Wish:
    """A budget that is used up before the first prompt."""
    return replace(wanted(), budget_s=0.0, between=tuple(between))


def test_the_fewest_prompts_that_were_sent_are_kept_for_the_result(world: World, tmp_path: Path) -> None:
    tune = measured(world, tmp_path / "run", wish=late())
    assert tune.least_share == 0.5  # two of four: fewer tell nothing
    with resume(tmp_path / "run") as directory:
        again = Tune(wanted(), directory, lambda _: None, world.stop, fits_two=True)
        again.measure(again.wish.candidates, confirms=False)
    assert again.least_share == 0.5


def test_all_prompts_are_all_prompts(world: World, tmp_path: Path) -> None:
    assert measured(world, tmp_path / "run").least_share == 1.0


def test_what_was_left_for_the_budget_starts_no_server_while_the_budget_is_used_up(
    world: World, tmp_path: Path
) -> None:
    tune = measured(world, tmp_path / "run", wish=late())
    assert not [each for each in tune.passes if each.block >= EXTRA]
    world.started.clear()
    with resume(tmp_path / "run") as directory:
        again = Tune(late(), directory, lambda _: None, world.stop, fits_two=True)
        again.measure(again.wish.candidates, confirms=False)
    assert world.started == []


def test_a_confirmation_that_the_budget_broke_off_starts_no_server_again(
    world: World, tmp_path: Path
) -> None:
    for _ in range(2):
        folder = tmp_path / "run"
        with resume(folder) if folder.exists() else create(folder, {"kind": "tune"}) as directory:
            tune = Tune(late(), directory, lambda _: None, world.stop, fits_two=True)
            with tune:
                tune.measure(tune.wish.candidates, confirms=True)
                tune.confirm(arm(TUNED), launch=2)
    assert world.started == [BASELINE, "draft_model", TUNED]
    assert len([each for each in tune.passes if each.launch == 2]) == 2 * LEAST_ROUNDS * len(
        tune.wish.points()
    )


def test_a_budget_keeps_time_for_two_rounds_of_the_confirmation(world: World, tmp_path: Path) -> None:
    wish = replace(wanted(), budget_s=1000.0)
    with (
        create(tmp_path / "run", {"kind": "tune"}) as directory,
        Tune(wish, directory, lambda _: None, world.stop, fits_two=True) as tune,
    ):
        tune.measure(wish.candidates, confirms=True)
        after_s = tune.left_s()
        tune._confirms = True
        kept_s = tune.confirmation_s()
        before_s = tune.left_s()
        tune.confirm(arm(TUNED), launch=2)
    least = [each for each in tune.passes if each.launch == 2 and each.block < CONFIRMING + 1000]
    assert len(least) == 2 * LEAST_ROUNDS * len(wish.points())
    assert kept_s >= 0.9 * sum(each.duration_s for each in least)
    assert after_s is not None and before_s is not None
    assert after_s - before_s == pytest.approx(kept_s, abs=1.0)


def test_another_choice_is_confirmed_by_a_launch_of_its_own(world: World, tmp_path: Path) -> None:
    first = Choice(True, "", "draft_model", {"num_speculative_tokens": 4})
    second = replace(first, speculation={"num_speculative_tokens": 2})
    with create(tmp_path / "run", {"kind": "tune"}) as directory:
        tune = Tune(wanted(), directory, lambda _: None, world.stop, fits_two=True)
        assert tune.launch_of(first, first=2) == 2
        assert tune.launch_of(second, first=2) == 3
        assert tune.launch_of(first, first=2) == 2
