"""A machine in arithmetic behind a tune: step times and predictable tokens are known exactly."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.errors import Interrupted, LaunchError
from specserve.measure import servers as subject
from specserve.measure.bench import passes
from specserve.measure.bench.passes import Block, Pass, Request
from specserve.measure.bench.plan import Variant, plan_variant
from specserve.measure.bench.result import Point
from specserve.measure.tune import plan as planning
from specserve.measure.tune import run as running_tune
from specserve.measure.verdict import LAUNCH_SPREAD
from specserve.measure.workloads import Prompt, Workload
from tests.measure.bench.making import Connected

_BEHIND = 16


def prompts(count: int, *, tokens: int = 48, name: str = "p") -> tuple[Prompt, ...]:
    return tuple(Prompt(f"{name}-{at}", tokens, text=f"{name} {at}") for at in range(count))


def texts(every: Sequence[Prompt], *, chance: float, seed: int = 1) -> dict[str, list[bool]]:
    """By prompt, which tokens the draft predicts: easier and harder prompts."""
    draw, found = random.Random(seed), {}
    for prompt in every:
        here = min(0.99, max(0.0, draw.gauss(chance, 0.1))) if 0 < chance < 1 else chance
        found[prompt.id] = [draw.random() < here for _ in range(prompt.max_tokens + _BEHIND)]
    return found


@dataclass(slots=True)
class _Answer:
    id: str
    text: Sequence[bool]
    output_tokens: int
    start_s: float
    ttft_s: float = 0.0
    place: int = 1
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class World:
    """What servers do, and what happened to them."""

    step_s: Callable[[int, int], float]
    """Seconds of a step, by batch and K."""
    chance: float = 0.7
    prefill_s: float = 0.02
    seed: int = 1
    mood: Callable[[float], float] = lambda now_s: 1.0
    """How much longer everything takes beside neighbours."""
    every: tuple[Prompt, ...] = field(default_factory=lambda: prompts(24))
    broken: set[str] = field(default_factory=set)
    """Servers that do not start."""
    start_s: float = 30.0
    slows_when_k_changes: float = 1.0
    """A schedule's steps at its threshold take so many times as long."""
    reports_steps: bool = True
    interrupt_after: int | None = None
    signal_number: int = 2
    together: bool = True
    now_s: float = 1000.0
    """The clock."""
    started: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    sent: list[tuple[str, Any]] = field(default_factory=list)

    @cached_property
    def texts(self) -> dict[str, list[bool]]:
        """By prompt, which tokens the draft predicts."""
        return texts(self.every, chance=self.chance, seed=self.seed)

    def run(self, block: Block, *, variant: str, launch: int) -> Pass:
        """One block in a closed loop, as it would have been measured."""
        known = self.texts
        waiting, running, done, began_s = list(enumerate(block.prompts)), list[_Answer](), [], self.now_s
        while waiting or running:
            new = list[_Answer]()
            while waiting and len(running) + len(new) < (block.point.concurrency or 1):
                (index, prompt), at_s = waiting.pop(0), self.now_s - began_s
                text, most = known[prompt.id], prompt.max_tokens
                new.append(_Answer(f"{prompt.id}#{index}", text, most, at_s))
            batch = len(running) + len(new)
            tokens = _tokens(variant, batch)
            took_s = self.step_s(len(running), tokens) if running else 0.0
            if _tokens(variant, batch) != _tokens(variant, max(1, batch - 1)):
                took_s *= self.slows_when_k_changes
            took_s = (took_s + self.prefill_s * len(new)) * self.mood(self.now_s)
            self.now_s += took_s
            for each in running:
                took = 0
                while took < tokens and each.text[each.place + took]:
                    took += 1
                each.place = min(each.place + took + 1, each.output_tokens)
                each.steps += [(took, tokens)] if tokens else []
            for each in new:
                each.ttft_s = self.now_s - began_s - each.start_s
            running += new
            end_s = self.now_s - began_s
            for each in running:
                if each.place >= each.output_tokens:
                    each.steps = each.steps if self.reports_steps else []
                    done.append(_request(each, end_s))
            running = [each for each in running if each.place < each.output_tokens]
        took_s, spread = self.now_s - began_s, LAUNCH_SPREAD["cuda"]
        return Pass(
            launch, block.number, block.point, variant, took_s, 0.1, tuple(done), launch_spread=spread
        )

    def swept(self, load: int, most: int = 8) -> dict[int, float]:
        """The true speedup of every K at a load, each on a server of its own, on a calm machine."""
        calm = replace(self, mood=lambda now_s: 1.0)
        point = Point("code", 0.0, load)
        items = tuple(itertools.islice(itertools.cycle(self.every), 8 * load))
        block, rates = Block(0, point, items, 1), {}
        for tokens in range(most + 1):
            done = calm.run(block, variant=f"k{tokens}", launch=0)
            rates[tokens] = done.output_tokens / done.duration_s
        return {tokens: rate / rates[0] for tokens, rate in rates.items()}


def _tokens(variant: str, batch: int) -> int:
    if found := re.fullmatch(r"k(\d+)-to-(\d+)-k(\d+)", variant):
        return int(found[1]) if batch <= int(found[2]) else int(found[3])
    return int(variant[1:]) if re.fullmatch(r"k\d+", variant) else 0


def _request(each: _Answer, end_s: float) -> Request:
    return Request(
        id=each.id,
        ok=True,
        prompt_tokens=20,
        output_tokens=each.output_tokens,
        ttft_s=each.ttft_s,
        latency_s=end_s - each.start_s,
        steps=tuple(each.steps),
    )


def affine(
    plain_s: float = 0.027, *, v: float = 1.08, d: float = 0.05, knee: int = 16, slope: float = 0.02
) -> Callable[[int, int], float]:
    """Steps whose cost is affine in K at each load; beyond `knee` verified tokens each costs more."""

    def step_s(batch: int, tokens: int) -> float:
        base = plain_s * (1 + slope * max(0, batch - knee))
        if not tokens:
            return base
        verified = max(0, batch * (tokens + 1) - knee) - max(0, batch - knee)
        return base * (v + d * tokens) + plain_s * slope * verified

    return step_s


def stand_in(monkeypatch: pytest.MonkeyPatch, here: World) -> World:
    """From now on a tune starts these servers, and sends to them; its clock is theirs."""

    @contextlib.contextmanager
    def running(plan: Any, *, log_path: Any, **_: Any) -> Iterator[Any]:
        name = log_path.stem.rpartition("-")[0]
        here.started.append(name)
        here.now_s += here.start_s
        if name in here.broken:
            raise LaunchError("out of memory")
        here.running.append(name)
        try:
            yield SimpleNamespace(url="http://x", check=lambda: None, kv_cache_tokens=100, logged={})
        finally:
            here.running.remove(name)

    def connect(variant: Variant, url: str, *, check: Callable[[], None]) -> Any:
        def send(_: Any, block: Block, *, launch: int) -> Pass | None:
            assert variant.name in here.running
            if launch < 0:  # the warm-up
                return None
            if here.interrupt_after is not None and len(here.sent) >= here.interrupt_after:
                raise Interrupted("stopped", exit_code=128 + here.signal_number)
            here.sent.append((variant.name, block.point))
            return here.run(block, variant=variant.name, launch=launch)

        return Connected(
            variant=variant,
            model="m",
            client=SimpleNamespace(max_model_len=lambda _model: None),
            has_chat=lambda: False,
            run=send,
            check=check,
        )

    clock = SimpleNamespace(monotonic=lambda: here.now_s)
    driver = SimpleNamespace(close=lambda: None, wait_ready=lambda: None)
    workload = Workload("code", here.every, "specserve")
    for module, name, value in (
        (subject, "running", running),
        (subject, "connect", connect),
        (subject, "free_port", lambda _: 1),
        (subject, "with_port", lambda plan, _: plan),
        (subject, "LoadGenerator", lambda **_: driver),
        (subject, "load", lambda name, **_: replace(workload, name=name)),
        (subject, "load_warm_up", lambda *_, **__: workload),
        (subject, "time", clock),
        (running_tune, "time", clock),
        (passes, "time", clock),
        (planning, "side_by_side", lambda _: here.together),
        (planning, "plan_tune", partial(_unstarted, planning.plan_tune)),
        (planning, "plan_variant", partial(_unstarted, plan_variant)),
    ):
        monkeypatch.setattr(module, name, value)
    return here


def _unstarted(plan: Any, *arguments: Any, starts: bool, **named: Any) -> Any:
    """Plan without a vLLM that is here."""
    return plan(*arguments, starts=False, **named)
