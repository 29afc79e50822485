"""A server in arithmetic: closed loops of requests whose step times and predictable tokens are known exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from specserve.measure.bench.plan import Block
from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.bench.variants import Variant
from specserve.measure.tune.observe import observed
from specserve.measure.tune.plan import BASELINE, Candidate, TuneLaunch, TunePlan, TuneRequest
from specserve.measure.workloads.workload import Prompt

_BEHIND = 16
KEYS = {"method": "draft_model", "model": "small", "num_speculative_tokens": 8}


def texts(*, prompts: Sequence[Prompt], chance: float, seed: int = 1) -> dict[str, list[bool]]:
    """By prompt, which tokens the draft predicts, behind the end of the answer, too: easier and harder prompts."""
    draw = random.Random(seed)
    found = {}
    for prompt in prompts:
        here = min(0.99, max(0.0, draw.gauss(chance, 0.1))) if 0 < chance < 1 else chance
        found[prompt.id] = [draw.random() < here for _ in range(prompt.max_tokens + _BEHIND)]
    return found


@dataclass(slots=True)
class _Running:
    id: str
    text: Sequence[bool]
    output_tokens: int
    start_s: float
    ttft_s: float = 0.0
    place: int = 1
    gaps: list[float] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)


class StepTimes(Protocol):
    """Such as a StepModel."""

    def at(self, batch: int, tokens: int) -> float:
        """Seconds of a step."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Truth. `at(batch, K)` of `steps` are seconds; each prefill adds `prefill_s` to the step that it falls in."""

    steps: StepTimes
    texts: Mapping[str, Sequence[bool]]
    prefill_s: float = 0.02
    zero_range_cost: float = 0.9
    """Rate of a K = 0 range over that of a server without speculation."""
    mood: Callable[[int, float], float] = lambda launch, now_s: 1.0
    """How much longer everything takes beside neighbours, by launch and time since the pass began."""

    def run(
        self, block: Block, *, arm: str, launch: int, tokens_at: Callable[[int], int], speculates: bool
    ) -> Pass:
        """One block as it would have been measured."""
        waiting = list(block.items)
        running: list[_Running] = []
        done: list[Request] = []
        now_s = 0.0
        while waiting or running:
            new: list[_Running] = []
            while waiting and len(running) + len(new) < (block.point.concurrency or 1):
                item = waiting.pop(0)
                new.append(_Running(item.id, self.texts[item.prompt.id], item.prompt.max_tokens, now_s))
            tokens = tokens_at(len(running) + len(new)) if speculates else 0
            took_s = self._step_s(len(running), tokens, speculates=speculates) + self.prefill_s * len(new)
            took_s *= self.mood(launch, now_s)
            now_s += took_s
            for each in running:
                self._advance(each, tokens, took_s, speculates=speculates)
            for each in new:
                each.ttft_s = now_s - each.start_s
            running += new
            done += [_request(each, now_s) for each in running if each.place >= each.output_tokens]
            running = [each for each in running if each.place < each.output_tokens]
        return Pass(launch, block.number, block.point, arm, now_s, 0.1, tuple(done))

    def _step_s(self, batch: int, tokens: int, *, speculates: bool) -> float:
        if not batch:
            return 0.0
        took_s = self.steps.at(batch, tokens)
        return took_s / self.zero_range_cost if speculates and not tokens else took_s

    def _advance(self, each: _Running, tokens: int, took_s: float, *, speculates: bool) -> None:
        took = 0
        while took < tokens and each.text[each.place + took]:
            took += 1  # behind the end of the answer, too, as vLLM counts
        each.place = min(each.place + took + 1, each.output_tokens)
        each.gaps.append(took_s * 1000)
        if speculates and tokens:
            each.steps.append((took, tokens))


def _request(each: _Running, now_s: float) -> Request:
    return Request(
        id=each.id, ok=True, prompt_tokens=20, output_tokens=each.output_tokens, start_s=each.start_s,
        ttft_s=each.ttft_s, latency_s=now_s - each.start_s, chunk_gaps_ms=tuple(each.gaps),
        finish_reason="length", steps=tuple(each.steps),
    )  # fmt: skip


def tune_plan(
    *,
    loads: Sequence[int] = (1, 2, 4, 8),
    rungs: Mapping[int, int],
    most_tokens: int = 8,
    workloads: Sequence[str] = ("code",),
    between: Sequence[int] = (),
    **changes: Any,
) -> TunePlan:
    """A tune of one candidate."""
    launch = TuneLaunch(Variant("draft_model"), most_tokens, rungs)
    own = Candidate("draft_model", KEYS, is_own=True, launches=(launch,))
    baseline = TuneLaunch(Variant(BASELINE, is_baseline=True), 0, dict.fromkeys(between, 0))
    return TunePlan(
        TuneRequest("p.yaml"), "p", "f" * 64, baseline, (own,), tuple(workloads), (0.0,), tuple(loads),
        "throughput", "v1", "cpu", **changes,
    )  # fmt: skip


def blocks(
    plan: TunePlan, launch: TuneLaunch, chosen: Mapping[str, Sequence[Prompt]], *, share: float = 1.0
) -> list[Block]:
    """What a launch is sent."""
    is_plain = launch is plan.baseline
    return [
        plan.block(number, point, chosen[point.workload], is_plain=is_plain, share=share)
        for number, point in plan.passes(launch)
    ]


def prompts(count: int, *, tokens: int = 64, name: str = "p") -> tuple[Prompt, ...]:
    """So many, of no content."""
    return tuple(Prompt(f"{name}-{index}", tokens, text=f"{name} {index}") for index in range(count))


def measured(machine: Machine, plan: TunePlan, chosen: Mapping[str, Sequence[Prompt]]) -> list[Pass]:
    """The passes of all launches of a tune."""
    return [
        machine.run(
            block,
            arm=launch.name,
            launch=number,
            tokens_at=launch.tokens_at,
            speculates=launch is not plan.baseline,
        )
        for number, launch in enumerate(plan.launches)
        for block in blocks(plan, launch, chosen)
    ]


def swept(
    machine: Machine, plan: TunePlan, chosen: Mapping[str, Sequence[Prompt]]
) -> dict[int, dict[int, float]]:
    """Output tokens/s by load and K, each K a server of its own: what a tune is to find with less."""
    found: dict[int, dict[int, float]] = {}
    for block in blocks(plan, plan.baseline, chosen):
        for tokens in range(plan.candidates[0].most_tokens + 1):
            always = partial(_always, tokens)
            done = machine.run(block, arm="k", launch=0, tokens_at=always, speculates=tokens > 0)
            seen = observed([done], tokens=tokens)
            assert seen is not None
            found.setdefault(seen.load, {})[tokens] = seen.tokens_per_s
    return found


def _always(tokens: int, _batch: int) -> int:
    return tokens
