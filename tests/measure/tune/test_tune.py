"""A whole tune against a machine whose truth is known: what is launched, sent and chosen."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tune_world import World, affine, prompts, stand_in

from specserve.cli.app import _run
from specserve.profile.load import load_profile

PROFILE = """\
target: {model: big, max_model_len: 1024}
speculation: {method: draft_model, model: small, num_speculative_tokens: 4}  # mine
engine: {max_num_seqs: 64, enforce_eager: true, kv_cache_memory_bytes: 64M}
"""


class Command:
    """`specserve tune` on stand-ins, in a state folder of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.profile, self._patch, self._capsys = folder / "p.yaml", patch, capsys
        self.profile.write_text(PROFILE, encoding="utf-8")
        patch.setenv("SPECSERVE_STATE_DIR", str(folder / "state"))
        self.err = ""

    def on(self, world: World) -> Command:
        stand_in(self._patch, world)
        return self

    def __call__(self, *options: str, code: int = 0) -> dict[str, Any]:
        words = ["tune", str(self.profile), "-w", "code", *options, "--format", "json"]
        assert _run(words) == code
        told = self._capsys.readouterr()
        self.err = told.err
        return json.loads(told.out) if told.out else {}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def noisy(now_s: float) -> float:
    """Beside neighbours: for a third of a second each, 0 to 25 % longer."""
    return 1 + 0.25 * random.Random(int(now_s * 3)).random() ** 2


@pytest.mark.parametrize("mood", [lambda now_s: 1.0, noisy])
@pytest.mark.parametrize("chance", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_choice_is_within_3_percent_of_a_sweep_from_three_launches(
    command: Command, chance: float, mood: Callable[[float], float], seed: int
) -> None:
    world = World(affine(), chance=chance, seed=seed, mood=mood)
    found = command.on(world)("-c", "1")
    assert found["choice"]["verdict"]["word"] == "PAYS"
    sweep = world.swept(1)
    assert sweep[found["choice"]["setting"]["tokens"]] >= 0.97 * max(sweep.values())
    assert len(world.started) <= 4
    assert {point.concurrency for _, point in world.sent} == {1}


UNDER_LOAD = affine(d=0.02, knee=32, slope=0.15)
"""Drafts cost little; from 32 verified tokens on, each costs much."""


def test_a_schedule_is_chosen_if_it_was_measured_to_beat_one_k_at_its_threshold(command: Command) -> None:
    world = World(UNDER_LOAD, chance=0.85, every=prompts(48))
    found = command.on(world)("-c", "1,16", "--budget", "3h", "--write")
    setting = found["choice"]["setting"]
    assert setting["tokens"] > setting["tokens_above"] > 0
    loads = {point.concurrency for _, point in world.sent}
    assert loads == {1, 16, setting["last_batch"] + 1}
    assert any("where the schedule changes K, is measured, too" in note for note in found["notes"])
    speculation = load_profile(str(command.profile)).speculation
    assert speculation is not None
    assert speculation.keys["num_speculative_tokens_per_batch_size"] == (
        (1, setting["last_batch"], setting["tokens"]),
        (setting["last_batch"] + 1, 16, setting["tokens_above"]),
    )


def test_a_schedule_that_collapses_at_its_threshold_is_not_chosen(command: Command) -> None:
    world = World(UNDER_LOAD, chance=0.85, every=prompts(48), slows_when_k_changes=2.0)
    found = command.on(world)("-c", "1,16", "--budget", "3h")
    assert any("-to-" in name for name in world.started)
    assert found["choice"]["setting"]["last_batch"] is None
    assert any("is not better than K =" in note for note in found["notes"])


def test_no_schedule_is_launched_if_the_intervals_of_two_k_overlap(command: Command) -> None:
    world = World(affine(d=0.02, knee=0, slope=0.05), chance=0.85)
    found = command.on(world)("-c", "1,16", "--budget", "3h")
    best = {
        load: max(
            (row for row in found["rows"] if row["point"]["concurrency"] == load),
            key=lambda row: row["speedup"]["value"],
        )["num_speculative_tokens"]
        for load in (1, 16)
    }
    assert best[1] != best[16]
    assert not any("-to-" in name for name in world.started)
    assert {point.concurrency for _, point in world.sent} == {1, 16}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("budget_s", "start_s"), [(20, 10.0), (60, 45.0), (90, 30.0), (130, 45.0), (200, 10.0), (300, 30.0)]
)
def test_a_tune_ends_with_its_budget_and_says_what_is_missing(
    command: Command, budget_s: int, start_s: float, together: bool
) -> None:
    world = World(affine(0.07), start_s=start_s, together=together)
    began_s = world.now_s
    found = command.on(world)("-c", "1,4", "--budget", f"{budget_s}s", "--write")
    # the first launches take what they take: nothing was known of them
    assert world.now_s - began_s <= max(budget_s + 30, 2 * start_s)
    if found["choice"]["verdict"]["word"] == "INCONCLUSIVE":
        assert found["missing"]
        assert command.profile.read_text() == PROFILE
        assert "was not changed" in command.err
    if budget_s == 300:
        assert found["choice"]["verdict"]["word"] == "PAYS"


def test_a_budget_is_for_all_sessions_and_a_longer_one_goes_on(command: Command) -> None:
    world = World(affine(0.07))
    first = command.on(world)("-c", "1,4", "--budget", "70s")
    assert first["choice"]["verdict"]["word"] == "INCONCLUSIVE"
    sent = len(world.sent)
    again = command("-c", "1,4", "--budget", "70s")
    assert len(world.sent) == sent and again["missing"] == first["missing"]
    began_s = world.now_s
    last = command("-c", "1,4", "--budget", "10m")
    assert "resuming the run of" in command.err
    assert last["choice"]["verdict"]["word"] == "PAYS" and len(world.sent) > sent
    assert world.now_s - began_s <= 600 - first["duration_s"] + 30


def test_a_complete_run_is_shown_again_also_after_its_choice_was_written(command: Command) -> None:
    world = World(affine())
    first = command.on(world)("-c", "1", "--write")
    text = command.profile.read_text()
    assert "# specserve tune: 20" in text and ": measured " in text and "# mine" in text
    assert f"num_speculative_tokens: {first['choice']['setting']['tokens']}" in text
    world.started.clear()
    assert command("-c", "1")["choice"] == first["choice"]
    assert world.started == []


@pytest.mark.parametrize("after", [0, 5, 20])
@pytest.mark.parametrize("together", [False, True])
def test_an_interrupted_tune_leaves_no_server_and_measures_nothing_twice(
    command: Command, after: int, together: bool
) -> None:
    world = World(affine(), together=together, interrupt_after=after)
    command.on(world)("-c", "1", code=130)
    assert "the same command resumes" in command.err and world.running == []
    world.interrupt_after = None
    command("-c", "1")
    (folder,) = (command.profile.parent / "state" / "tune").iterdir()
    lines = [json.loads(line) for line in (folder / "passes.jsonl").read_text().splitlines()]
    keys = [(each["launch"], each["block"], str(each["point"]), each["variant"]) for each in lines]
    assert len(keys) == len(set(keys)) == len(world.sent)
    assert world.running == []


def test_what_runs_when_the_budget_ends_is_broken_off_and_named(command: Command) -> None:
    world = World(affine(), interrupt_after=20, signal_number=signal.SIGALRM)
    found = command.on(world)("-c", "1")
    assert any("ended before all of it was measured" in text for text in found["missing"])
    assert found["choice"]["verdict"]["word"] == "PAYS" and world.running == []


def test_a_launch_that_fails_leaves_the_others_their_time_and_the_best_of_them_is_chosen(
    command: Command,
) -> None:
    world = World(affine(), broken={"k8"})
    found = command.on(world)("-c", "1", "--budget", "10m")
    assert [name for name, _ in world.sent].count("k4") >= 8
    assert found["choice"]["setting"]["tokens"] <= 4
    assert "K = 8: out of memory" in found["missing"]


def test_nothing_that_starts_is_an_error(command: Command) -> None:
    command.on(World(affine(), broken={"k8", "k4"}))("-c", "1", code=2)
    assert "out of memory" in command.err


@pytest.mark.parametrize(
    ("step_s", "chance"), [(affine(), 0.02), (affine(d=0.95), 0.9), (affine(v=2.5, d=0.3), 0.5)]
)
def test_what_gains_nothing_is_not_recommended_and_launches_little(
    command: Command, step_s: Callable[[int, int], float], chance: float
) -> None:
    world = World(step_s, chance=chance)
    found = command.on(world)("-c", "1", "--write")
    assert found["choice"]["verdict"]["word"] in ("COSTS", "NO DIFFERENCE")
    assert found["choice"]["speculation"] is None
    assert load_profile(str(command.profile)).speculation is None
    assert len(world.started) <= 3


def test_if_one_server_fits_they_run_one_after_another(command: Command) -> None:
    world = World(affine(), together=False)
    found = command.on(world)("-c", "1")
    assert world.started[:2] == ["baseline", "k8"] and world.started.count("baseline") == 1
    assert found["choice"]["verdict"]["word"] == "PAYS"


def test_a_noisy_cell_is_measured_again(command: Command) -> None:
    def uneven(now_s: float) -> float:
        return 1 + random.Random(int(now_s / 5)).random()

    calm, busy = World(affine()), World(affine(), mood=uneven)
    command.on(calm)("-c", "1")
    command.profile.write_text(PROFILE.replace("big", "other"))
    command.on(busy)("-c", "1")
    rounds = [sum(name == "k8" for name, _ in world.sent) for world in (calm, busy)]
    assert rounds[0] < 12 and rounds[1] == 16


def test_of_a_server_that_does_not_report_its_steps_only_what_was_launched_counts(command: Command) -> None:
    world = World(affine(), reports_steps=False)
    found = command.on(world)("-c", "1")
    assert {row["num_speculative_tokens"] for row in found["rows"]} == {8}
    assert any("does not report its steps" in note for note in found["notes"])
