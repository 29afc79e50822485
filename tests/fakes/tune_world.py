"""Servers and a load generator that stand in while a tune runs: a machine in arithmetic answers for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tune_machine import Machine, prompts, texts, tune_plan

from specserve.errors import Interrupted, LaunchError
from specserve.measure import servers as subject
from specserve.measure.bench.traffic import Abilities
from specserve.measure.bench.variants import Fit, HostLoad, Variant
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.plan import BASELINE, Candidate, TunePlan
from specserve.measure.workloads.workload import Workload
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events
from specserve.serve.signals import StopRequest
from tests.measure.bench.making import Connected

MEMORY_BOUND = StepModel(0.027, 0.0004, (), 0.001, 0.0025, 0.0001)
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
    devices: dict[str, object] = field(default_factory=dict)
    """By server, the accelerators that it may see."""
    most: int = 0
    sent: int = 0
    interrupt_after: int | None = None
    broken: set[str] = field(default_factory=set)
    """Servers that do not start."""
    stop: StopRequest = field(default_factory=StopRequest)


def arm(name: str) -> Variant:
    """A planned server."""
    return Variant(name, PLAN, is_baseline=name == BASELINE)


def plan_of(*names: str, between: Sequence[int] = (), at_once: int = 2, **changes: Any) -> TunePlan:
    """A tune of the profile's own candidate and others at two loads, and a few between.

    Of a name such as `big+2` the candidate has a second launch, `big-k2`.
    """
    one = tune_plan(
        loads=(1, 2), rungs=RUNGS, most_tokens=4, between=between, prompts=4, room=Fit(at_once, "")
    )
    own = one.candidates[0]
    candidates = [_candidate(own, name) for name in (names or ("draft_model",))]
    one = replace(one, baseline=replace(one.baseline, arm=arm(BASELINE)), candidates=tuple(candidates))
    return replace(one, **changes)


def _candidate(own: Candidate, text: str) -> Candidate:
    name, _, second = text.partition("+")
    names = [name, *([f"{name}-k{second}"] if second else [])]
    launches = tuple(replace(own.launches[0], arm=arm(each)) for each in names)
    return replace(own, name=name, launches=launches, is_own=name == "draft_model")


def stand_in(monkeypatch: pytest.MonkeyPatch) -> World:
    """From now on a tune starts these servers, and sends to them."""
    every = prompts(8, tokens=24)
    here = World(Machine(MEMORY_BOUND, texts(prompts=every, chance=0.8)))

    @contextlib.contextmanager
    def running(
        plan: LaunchPlan, *, log_path: Path, on_event: Callable[[events.Event], None], **_: Any
    ) -> Iterator[Any]:
        name = log_path.stem.rpartition("-")[0]
        here.started.append(name)
        on_event(events.PhaseGoesOn(events.Phase.ENGINE, 70.4))
        here.devices[name] = plan.env.get("CUDA_VISIBLE_DEVICES")
        if name in here.broken:
            raise LaunchError("out of memory")
        here.running.append(name)
        here.most = max(here.most, len(here.running))
        try:
            yield SimpleNamespace(
                url="http://x", check=lambda: None, figures=SimpleNamespace(kv_cache_tokens=100)
            )
        finally:
            here.running.remove(name)

    def driver(**_: object) -> Any:
        return SimpleNamespace(close=lambda: None, wait_ready=lambda: None, vllm="0.32")

    monkeypatch.setattr(subject, "_host_load", lambda: HostLoad(0.0, 0.0))
    monkeypatch.setattr(subject, "running", running)
    monkeypatch.setattr(subject, "connect", _connecting(here))
    monkeypatch.setattr(subject, "free_port", lambda _: 1)
    monkeypatch.setattr(subject, "with_port", lambda plan, _: plan)
    monkeypatch.setattr(subject, "Driver", driver)
    monkeypatch.setattr(subject, "load", lambda name, **_: Workload(name, every, "specserve"))
    monkeypatch.setattr(subject, "load_warm_up", lambda *_, **__: Workload("warm-up", every[:1], "specserve"))
    return here


def _connecting(here: World) -> Callable[..., Any]:
    def connect(arm: Variant, url: str, *, check: Callable[[], None]) -> Any:
        del url, check
        tokens_at = (lambda _: 0) if arm.is_baseline else (lambda load: RUNGS.get(load, 4))

        def send(_: Any, block: Any, *, launch: int) -> Any:
            assert arm.name in here.running
            if here.interrupt_after is not None and here.sent >= here.interrupt_after:
                raise Interrupted("stopped by SIGINT", signal_number=2)
            here.sent += 1
            return here.machine.run(
                block, arm=arm.name, launch=launch, tokens_at=tokens_at, speculates=not arm.is_baseline
            )

        abilities = Abilities("m", None, has_chat=False, takes_salt=True)
        return Connected(
            arm=arm, abilities=abilities, run=send, check=lambda: None, warm_up=lambda *_, **__: None
        )

    return connect
