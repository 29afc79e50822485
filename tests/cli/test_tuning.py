"""A tune as a command, servers standing in: a complete one is told again, an unconfirmed choice is not written."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.tune import run
from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.measure.bench.rundir import create
from specserve.measure.tune.earlier import EarlierRun
from specserve.measure.tune.plan import BASELINE, TUNED, TunePlan, TuneRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from tune_world import World, arm, plan_of, stand_in

PROFILE = """\
target: {model: big}
speculation: {method: draft_model, model: small, num_speculative_tokens: 8}
"""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("specserve.measure.tune.run.chosen_arm", lambda *_, **__: arm(TUNED))
    return stand_in(monkeypatch)


@pytest.fixture
def asked(tmp_path: Path) -> TuneRequest:
    file = tmp_path / "p.yaml"
    file.write_text(PROFILE, encoding="utf-8")
    return TuneRequest(str(file))


@pytest.fixture
def command(asked: TuneRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    return Command(asked, monkeypatch, tmp_path / "run")


class Command:
    """`specserve tune` with another plan than the profile's, and its run in one folder."""

    def __init__(self, asked: TuneRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked, self.folder = asked, folder
        self._monkeypatch = monkeypatch

    def __call__(self, plan: TunePlan | None = None, *, write: bool = False, **asked: Any) -> None:
        plan = replace(plan or plan_of(), request=replace(self.asked, **asked))
        there = EarlierRun(self.folder, self.content) if self.folder.exists() else None
        self._monkeypatch.setattr("specserve.measure.tune.candidates.plan_tune", lambda *_, **__: plan)
        self._monkeypatch.setattr("specserve.measure.tune.earlier.find_run", lambda *_: there)
        run(plan.request, output=str(self.folder), dry_run=False, write=write, as_json=True)

    def late(self, *names: str) -> None:
        """Run with a budget that is used up before the first prompt, though its plan fitted."""
        began = create(self.folder, {"kind": "tune", "created": "2026-11-24", "spent_s": 1e9})
        with began:
            pass
        self(plan_of(*names, between=(3, 4), budget_s=3600.0), budget="1h")

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return found

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        return found


def test_a_complete_run_is_told_again_word_for_word_and_nothing_is_started(
    world: World, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    world.broken = {"ngram"}
    command.late("draft_model", "ngram")
    before, run = command.result, command.content
    first = capsys.readouterr()
    assert "already" not in first.err
    assert "the budget of 1h was used up after" in first.err
    assert before["launches"] == 3
    assert any("before the choice could be confirmed" in note for note in before["notes"])
    assert any("only 50% of a workload's prompts" in note for note in before["notes"])
    assert [each["left_out"] for each in before["candidates"] if each["name"] == "ngram"] == ["out of memory"]
    world.started.clear()
    for _ in range(2):
        command(plan_of("draft_model", "ngram", between=(3, 4), budget_s=3600.0), budget="1h")
        again = capsys.readouterr()
        assert "; use `-o` with another folder to measure again" in again.err
        assert again.out == first.out
    assert world.started == []
    assert command.result == before
    assert command.content == run


def test_a_complete_run_that_is_given_more_time_measures_what_is_missing(
    world: World, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.late()
    assert not command.result["confirmed"]
    sent = world.sent
    command(plan_of(between=(3, 4), budget_s=2e9), budget="100d")
    assert "; use `-o` with another folder to start over" in capsys.readouterr().err
    assert len(command.result["confirmed"]) == len(plan_of().points)
    assert world.sent > sent
    assert any("only 50%" in note for note in command.result["notes"])


def test_a_choice_that_could_not_be_confirmed_is_shown_and_not_written(
    world: World, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    world.broken = {TUNED}
    with pytest.raises(LaunchError) as raised:
        command(write=True)
    assert raised.value.exit_code == 2
    assert raised.value.message == "the choice could not be confirmed: out of memory"
    assert "the same command tries it again" in (raised.value.hint or "")
    assert "`--no-confirm --write` writes it unconfirmed" in (raised.value.hint or "")
    assert Path(command.asked.profile).read_text(encoding="utf-8") == PROFILE
    shown = json.loads(capsys.readouterr().out)
    assert shown["choice"]["speculates"] and shown["choice"] == command.result["choice"]
    assert not command.content["is_complete"]


def test_the_same_command_tries_the_confirmation_again_and_only_that(world: World, command: Command) -> None:
    world.broken = {TUNED}
    with pytest.raises(LaunchError):
        command(write=True)
    world.broken.clear()
    world.started.clear()
    command(write=True)
    assert world.started == [TUNED, BASELINE]
    text = Path(command.asked.profile).read_text(encoding="utf-8")
    assert "measured" in text and "predicted" not in text
    assert command.content["is_complete"]


def test_without_a_confirmation_the_choice_is_written_as_predicted(world: World, command: Command) -> None:
    world.broken = {TUNED}
    with pytest.raises(LaunchError):
        command(write=True)
    world.started.clear()
    command(write=True, confirm=False)
    assert world.started == []
    assert "predicted" in Path(command.asked.profile).read_text(encoding="utf-8")


def test_a_confirmation_that_fails_is_an_error_without_write_too(world: World, command: Command) -> None:
    world.broken = {TUNED}
    with pytest.raises(LaunchError) as raised:
        command()
    assert "the same command tries it again, `--no-confirm` does" in (raised.value.hint or "")


def test_what_is_interrupted_is_gone_on_with_by_the_same_command(
    world: World, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    world.interrupt_after = world.sent + 2
    with pytest.raises(Interrupted) as raised:
        command()
    assert "the same command resumes" in (raised.value.hint or "")
    world.interrupt_after = None
    command()
    assert "; use `-o` with another folder to start over" in capsys.readouterr().err
    assert command.content["asked"] == command.asked.json


def test_what_does_not_fit_is_refused_with_the_least_there_is(world: World, command: Command) -> None:
    with pytest.raises(UsageError, match=r"more than `--budget 1m`: .* is the least"):
        command(plan_of(budget_s=60.0), budget="1m")
    assert world.started == []


def test_where_the_profiles_own_way_does_not_start_another_may_be_chosen(
    world: World, command: Command
) -> None:
    world.broken = {"draft_model"}
    command(plan_of("draft_model", "ngram"))
    told = {each["name"]: each["left_out"] for each in command.result["candidates"]}
    assert told == {"ngram": None, "draft_model": "out of memory"}
    assert command.result["choice"]["candidate"] == "ngram"


def test_a_confirmation_that_is_left_out_is_called_so(world: World, command: Command) -> None:
    command(confirm=False)
    assert not command.result["confirmed"]
    assert world.started == [BASELINE, "draft_model"]
