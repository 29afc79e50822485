"""Benchmarks of known truth: how often an interval covers it, and how often a verdict is wrong or missing."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from specserve.measure.statistics import COSTS, INCONCLUSIVE, LAUNCH_SPREAD, PAYS, RateSample, ratio, verdict


@dataclass(frozen=True, slots=True)
class Scenario:
    """A benchmark and the noise that it meets; spreads are standard deviations of logarithms."""

    name: str
    prompts: int = 25
    per_block: int = 0
    """Requests in a block; 0: a round of blocks has every prompt once."""
    blocks: int = 8
    """In a launch."""
    launches: int = 1
    rounds: int = 1
    speedup: float = 1.0
    between_prompts: float = 0.15
    """Of the speedup."""
    between_blocks: float = 0.02
    """Of a block's time on one variant."""
    between_requests: float = 0.03
    between_launches: float = LAUNCH_SPREAD
    launched: int = 2
    """Of the two variants, those that were started for it."""
    lengths: float = 0.6
    """Of the answers' lengths."""
    outliers: float = 0.0
    """RateSample of blocks that something else on the machine slows by a fifth, on one variant."""
    samples: bool = False
    """Temperature above 0: the variants' answers have lengths of their own."""

    @property
    def truth(self) -> float:
        """The logarithm of the speedup over all prompts that there could be: the slow ones weigh more."""
        return math.log(self.speedup) - self.between_prompts**2 / 2

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference to be found."""
        return self.speedup == 1.0


ONE_SERVER_AT_A_TIME = tuple(
    Scenario(
        f"{launches} launch{'' if launches == 1 else 'es'}, {speedup:g}x, {how}",
        launches=launches,
        speedup=speedup,
        between_prompts=prompts,
    )
    for launches in (1, 2, 4)
    for how, prompts in (("prompts alike", 0.0), ("prompts differ by 15 %", 0.15))
    for speedup in (1.0, 1.3, 2.0)
)
SCENARIOS = (
    *ONE_SERVER_AT_A_TIME,
    Scenario("2 launches that are alike, 1.3x", launches=2, speedup=1.3, between_launches=0.0),
    Scenario("2 launches that differ by 2 %, 1.3x", launches=2, speedup=1.3, between_launches=0.02),
    Scenario("quick: 6 blocks of 3 of 18 prompts", prompts=18, per_block=3, blocks=6),
    Scenario("it pays: 1.8x, prompts differ by 30 %", speedup=1.8, between_prompts=0.3),
    Scenario("same server twice, calm", between_prompts=0.0, between_blocks=0.005, launched=0),
    Scenario("same server twice, rough", between_prompts=0.0, between_blocks=0.05, launched=0),
    Scenario("two rounds of 25 prompts in 12 blocks", blocks=12, rounds=2, between_blocks=0.03),
    Scenario("every block has every prompt", per_block=25, between_blocks=0.03),
    Scenario("few blocks", blocks=4, between_blocks=0.03),
    Scenario("batches: 50 requests of 25 prompts", per_block=50, blocks=6),
    Scenario("sampled answers", samples=True),
    Scenario("outliers in 5 % of the blocks", blocks=12, outliers=0.05),
)


@dataclass(slots=True)
class Score:
    """Shares of the trials of one scenario. `half`: half the width of the logarithm's interval, on average."""

    covered: float
    told_apart: float
    """PAYS or COSTS."""
    inconclusive: float
    half: float


def simulated(scenario: Scenario, trials: int, seed: int = 1) -> Score:
    """So many trials of one scenario."""
    rng = random.Random(f"{scenario.name} {seed}")
    covered = apart = open_ones = 0
    halves = 0.0
    for _ in range(trials):
        variant, against = _drawn(scenario, rng)
        estimate = ratio(variant, against=against, launched=scenario.launched)
        assert estimate is not None
        half, judged = estimate.half(), verdict(estimate).word
        halves += half
        covered += abs(estimate.log - scenario.truth) <= half
        apart += judged in (PAYS, COSTS)
        open_ones += judged == INCONCLUSIVE
    return Score(covered / trials, apart / trials, open_ones / trials, halves / trials)


def _drawn(scenario: Scenario, rng: random.Random) -> tuple[list[RateSample], list[RateSample]]:
    """One benchmark: what the two variants did."""
    sides: tuple[list[RateSample], list[RateSample]] = ([], [])
    lengths = [rng.lognormvariate(4.5, scenario.lengths) for _ in range(scenario.prompts)]
    effects = [rng.gauss(0.0, scenario.between_prompts) for _ in range(scenario.prompts)]
    for launch in range(scenario.launches):
        spread = scenario.between_launches
        launched = [rng.gauss(0.0, spread) if side < scenario.launched else 0.0 for side in range(2)]
        for block, indices in enumerate(_dealt(scenario, rng)):
            slow = [
                launched[side]
                + rng.gauss(0.0, scenario.between_blocks)
                + (0.18 if rng.random() < scenario.outliers else 0.0)
                for side in range(2)
            ]
            for index in indices:
                for side, shares in enumerate(sides):
                    tokens = lengths[index] * (rng.lognormvariate(0.0, 0.3) if scenario.samples else 1.0)
                    cost = tokens * math.exp(slow[side] + rng.gauss(0.0, scenario.between_requests))
                    if side == 0:
                        cost /= scenario.speedup * math.exp(effects[index])
                    shares.append(RateSample(f"p{index}", f"b{block}", tokens, cost, f"l{launch}"))
    return sides


def _dealt(scenario: Scenario, rng: random.Random) -> list[list[int]]:
    """The prompts of each block."""
    prompts = list(range(scenario.prompts))
    if scenario.per_block:
        ring = prompts * (scenario.per_block * scenario.blocks // len(prompts) + 1)
        return [ring[at * scenario.per_block :][: scenario.per_block] for at in range(scenario.blocks)]
    blocks = []
    for _ in range(scenario.rounds):
        rng.shuffle(prompts)
        each = scenario.blocks // scenario.rounds
        blocks += [prompts[first::each] for first in range(each)]
    return blocks
