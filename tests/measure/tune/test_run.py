"""The order of a tune: which servers run when, what is measured twice (nothing), what is left running (nothing).

Servers and load generator stand in: a machine in arithmetic answers. tests/engine/test_tune.py does it with real ones.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.errors import Interrupted, LaunchError
from specserve.measure.bench.arms import Arm
from specserve.measure.bench.rundir import create, resume
from specserve.measure.tune import run as subject
from specserve.measure.tune.result import Choice
from specserve.measure.tune.run import Tune
from specserve.measure.tune.steptime import StepModel
from specserve.measure.tune.wish import BASELINE, TUNED, Wish
from specserve.measure.workloads.workload import Workload
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.stop import StopRequest
from tests.measure.bench.making import Connected

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

from tune_machine import Machine, prompts, texts, wish

MEMORY_BOUND = StepModel(0.027, 0.0004, 0.0, 0.0, 0.001, 0.0025, 0.0001)
RUNGS = {1: 4, 2: 2, 3: 1}
PLAN = LaunchPlan(
    "p", "f" * 64, "0.32.0", "cpu", ("vllm", "serve", "m", "--port", "0"), {}, {}, "127.0.0.1", 0, "m", 60, 5
)


@dataclass
class World:
    """What happened: servers started and ended, and how many ran at once."""

    machine: Machine
    started: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    most: int = 0
    sent: int = 0
    interrupt_after: int | None = None
    stop: StopRequest = field(default_factory=StopRequest)


def arm(name: str) -> Arm:
    return Arm(name, PLAN, is_baseline=name == BASELINE)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    every = prompts(8, tokens=24)
    here = World(Machine(MEMORY_BOUND, texts(prompts=every, chance=0.8)))

    @contextlib.contextmanager
    def running(plan: LaunchPlan, *, log_path: Path, **_: Any) -> Iterator[Any]:
        name = log_path.stem.rpartition("-")[0]
        here.started.append(name)
        here.running.append(name)
        here.most = max(here.most, len(here.running))
        try:
            yield SimpleNamespace(
                url="http://x", check=lambda: None, figures=SimpleNamespace(kv_cache_tokens=100)
            )
        finally:
            here.running.remove(name)

    def connect(arm: Arm, url: str, *, check: Callable[[], None]) -> Any:
        del url, check
        tokens_at = (lambda _: 0) if arm.is_baseline else (lambda load: RUNGS.get(load, 4))

        def send(_: Any, block: Any, *, launch: int) -> Any:
            assert arm.name in here.running
            if here.interrupt_after is not None and here.sent >= here.interrupt_after:
                raise Interrupted("stopped by SIGINT", signal_number=2)
            here.sent += 1
            done = here.machine.run(
                block, arm=arm.name, launch=launch, tokens_at=tokens_at, speculates=not arm.is_baseline
            )
            return done, {}

        abilities = SimpleNamespace(has_chat=False, max_model_len=None)
        return Connected(
            arm=arm, abilities=abilities, run=send, check=lambda: None, warm_up=lambda *_, **__: None
        )

    monkeypatch.setattr(subject, "running", running)
    monkeypatch.setattr(subject, "connect", connect)
    monkeypatch.setattr(subject, "free_port", lambda _: 1)
    monkeypatch.setattr(subject, "with_port", lambda plan, _: plan)
    monkeypatch.setattr(subject, "Driver", lambda **_: SimpleNamespace(close=lambda: None, vllm="0.32"))
    monkeypatch.setattr(subject, "load", lambda name, **_: Workload(name, every, "specserve"))
    monkeypatch.setattr(subject, "load_warm_up", lambda *_, **__: Workload("warm-up", every[:1], "specserve"))
    return here


def wanted() -> Wish:
    one = wish(loads=(1, 2), rungs=RUNGS, most_tokens=4)
    own = replace(one.candidates[0], arm=arm("draft_model"))
    return replace(one, baseline=arm(BASELINE), candidates=(own,), prompts=4)


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


def test_a_candidate_that_does_not_start_is_left_out_and_the_others_are_measured(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = wanted()
    other = replace(one.candidates[0], name="big", arm=arm("big"), is_own=False)
    plain_running = vars(subject)["running"]

    @contextlib.contextmanager
    def running(plan: LaunchPlan, *, log_path: Path, **rest: Any) -> Iterator[Any]:
        if log_path.stem.startswith("big"):
            raise LaunchError("out of memory")
        with plain_running(plan, log_path=log_path, **rest) as server:
            yield server

    monkeypatch.setattr(subject, "running", running)
    with create(tmp_path / "run", {"kind": "tune"}) as directory:
        tune = Tune(one, directory, lambda _: None, world.stop, fits_two=True)
        with tune:
            tune.measure([*one.candidates, other], confirms=False)
    assert tune.failed == {"big": "out of memory"}
    assert {each.arm for each in tune.passes} == {BASELINE, "draft_model"}
    assert world.running == []


def test_another_choice_is_confirmed_by_a_launch_of_its_own(world: World, tmp_path: Path) -> None:
    first = Choice(True, "", "draft_model", {"num_speculative_tokens": 4})
    second = replace(first, speculation={"num_speculative_tokens": 2})
    with create(tmp_path / "run", {"kind": "tune"}) as directory:
        tune = Tune(wanted(), directory, lambda _: None, world.stop, fits_two=True)
        assert tune.launch_of(first, first=2) == 2
        assert tune.launch_of(second, first=2) == 3
        assert tune.launch_of(first, first=2) == 2
