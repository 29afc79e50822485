"""Passes of a sweep on a machine whose steps and prefills are known, beside neighbours."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass
from specserve.measure.bench.variants import BASELINE
from tests.measure.bench.making import request

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import sweepdata

GAINS = {1: 1.4, 2: 1.7, 3: 1.9, 4: 2.0, 5: 1.95, 6: 1.8, 7: 1.6, 8: 1.5}
EVERY = frozenset({BASELINE, *map(sweepdata.arm_name, GAINS)})
GROUPS = 2
STEP_S = 0.07
TOKENS = 96


@dataclass(frozen=True, slots=True)
class Sweep:
    """A draft that is accepted whole, so that K + 1 tokens take a step; which costs what makes the speedup GAINS."""

    prefill_s: float = 0.0
    draft_prefill: float = 1.0
    """What a prefill takes with a draft, over what it takes without."""
    calm: float = 0.25
    """The share of the blocks without neighbours; beside them all servers of a block are slower."""
    noise: float = 0.01
    """Of a step; of a pass twice as much."""
    workload: str = "code"
    load: int = 1

    def point(self, group: int) -> Point:
        """Of a group of prompts."""
        return Point(sweepdata.group_name(self.workload, self.load, group), 0.0, self.load)

    def step_s(self, tokens: int) -> float:
        """Without neighbours."""
        return STEP_S * (tokens + 1) / (GAINS[tokens] if tokens else 1.0)

    def block(self, number: int, arms: Collection[str], *, rng: random.Random) -> Iterator[Pass]:
        """One turn of these servers."""
        mood = 1.0 if rng.random() < self.calm else rng.uniform(1.05, 1.5)
        for arm in sorted(arms):
            tokens = 0 if arm == BASELINE else int(arm[1:])
            yield self._pass(number, arm, tokens, mood * rng.gauss(1, 2 * self.noise), rng=rng)

    def blocks(self, count: int, *, seed: int = 0) -> list[Pass]:
        """So many turns of all servers."""
        rng = random.Random(seed)
        return [each for number in range(count) for each in self.block(number, EVERY, rng=rng)]

    def _pass(self, number: int, arm: str, tokens: int, mood: float, *, rng: random.Random) -> Pass:
        steps = round(TOKENS / (tokens + 1))
        gaps_ms = tuple(1000 * self.step_s(tokens) * mood * rng.gauss(1, self.noise) for _ in range(steps))
        ttft_s = self.prefill_s * mood * (self.draft_prefill if tokens else 1.0)
        took_s = ttft_s + sum(gaps_ms) / 1000
        one = replace(
            request(tokens=steps * (tokens + 1), ttft_s=ttft_s, latency_s=took_s), chunk_gaps_ms=gaps_ms
        )
        every = tuple(replace(one, id=str(place)) for place in range(self.load))
        return Pass(0, number, self.point(number % GROUPS), arm, took_s, 0.1, every)

    def speedup(self, tokens: int) -> float:
        """The truth."""
        steps_s = round(TOKENS / (tokens + 1)) * self.step_s(tokens)
        written = round(TOKENS / (tokens + 1)) * (tokens + 1)
        plain = TOKENS / (self.prefill_s + TOKENS * STEP_S)
        return written / (self.prefill_s * self.draft_prefill + steps_s) / plain
