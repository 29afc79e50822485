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
from specserve.measure.bench.arms import Fit
from specserve.measure.tune import candidates
from specserve.measure.tune.plan import BASELINE, TUNED, TuneRequest, Wish, fitted
from specserve.measure.tune.prepare import Found, Prepared, asked_json
from specserve.profile.load import load_profile

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from tune_world import World, arm, stand_in, wanted

PROFILE = """\
target: {model: big}
speculation: {method: draft_model, model: small, num_speculative_tokens: 8}
"""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(candidates, "tuned", lambda *_, name, **__: arm(name))
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

    def __call__(self, wish: Wish | None = None, *, write: bool = False, **asked: Any) -> None:
        now = replace(self.asked, **asked)
        wish = wish or wanted()
        kept = fitted(replace(wish, budget_s=None), confirms=now.confirm)
        ready = Prepared(now, load_profile(now.profile), wish, Fit(2, "", ()), kept)
        there = Found(self.folder, self.content) if self.folder.exists() else None
        self._monkeypatch.setattr("specserve.measure.tune.prepare.placed", lambda *_, **__: (ready, there))
        output = str(self.folder)
        run(now, output=output, dry_run=False, write=write, as_json=True)

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return found

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        return found


def late() -> Wish:
    """A budget that is used up before the first prompt."""
    return replace(wanted(), budget_s=0.0, between=(3, 4))


def others(wish: Wish, *names: str) -> Wish:
    own = wish.candidates[0]
    more = (replace(own, name=name, arm=arm(name), is_own=False) for name in names)
    return replace(wish, candidates=(own, *more))


def test_a_complete_run_is_told_again_word_for_word_and_nothing_is_started(
    world: World, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    world.broken = {"ngram"}
    command(others(late(), "ngram"), budget="10s")
    before, run = command.result, command.content
    first = capsys.readouterr()
    assert "already" not in first.err
    assert before["launches"] == 3
    assert any("before the choice could be confirmed" in note for note in before["notes"])
    assert any("as few as 50% of a workload's prompts" in note for note in before["notes"])
    assert [each["left_out"] for each in before["candidates"] if each["name"] == "ngram"] == ["out of memory"]
    world.started.clear()
    for _ in range(2):
        command(others(late(), "ngram"), budget="10s")
        again = capsys.readouterr()
        assert "; use `-o` with another folder to measure again" in again.err
        assert again.out == first.out
    assert world.started == []
    assert command.result == before
    assert command.content == run


def test_a_complete_run_that_is_given_more_time_measures_what_is_missing(
    world: World, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command(late(), budget="10s")
    assert not command.result["confirmed"]
    sent = world.sent
    command(replace(late(), budget_s=3600.0), budget="1h")
    assert "; use `-o` with another folder to start over" in capsys.readouterr().err
    assert len(command.result["confirmed"]) == len(wanted().points())
    assert world.sent > sent
    assert any("as few as 50%" in note for note in command.result["notes"])


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
    assert command.content["asked"] == asked_json(command.asked)


def test_what_does_not_fit_is_refused_with_the_least_there_is(world: World, command: Command) -> None:
    wish = replace(wanted(), budget_s=60.0)
    ready = Prepared(command.asked, load_profile(command.asked.profile), wish, Fit(2, "", ()), fitted(wish))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specserve.measure.tune.prepare.placed", lambda *_, **__: (ready, None))
        with pytest.raises(UsageError, match=r"more than `--budget 1m`: .* is the least"):
            run(
                command.asked,
                output=None,
                dry_run=False,
                write=False,
                as_json=False,
            )
    assert world.started == []


def test_where_the_profiles_own_way_does_not_start_another_may_be_chosen(
    world: World, command: Command
) -> None:
    world.broken = {"draft_model"}
    command(others(wanted(), "ngram"))
    told = {each["name"]: each["left_out"] for each in command.result["candidates"]}
    assert told == {"ngram": None, "draft_model": "out of memory"}
    assert command.result["choice"]["candidate"] == "ngram"


def test_a_confirmation_that_is_left_out_is_called_so(world: World, command: Command) -> None:
    command(replace(wanted(), budget_s=None), confirm=False)
    assert not command.result["confirmed"]
    assert world.started == [BASELINE, "draft_model"]
