"""Benchmarks of known truth: how often an interval covers it, and how often a verdict is wrong or missing."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from specserve.measure.verdict import (
    COSTS,
    INCONCLUSIVE,
    LAUNCH_SPREAD,
    PAYS,
    RateSample,
    needed,
    ratio,
    verdict,
)


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
    turns: int = 4
    """Rounds of bench, at most: the budget's end."""
    speedup: float = 1.0
    between_prompts: float = 0.15
    """Of the speedup."""
    between_blocks: float = 0.02
    """Of a block's time on one variant."""
    between_requests: float = 0.03
    between_launches: float = LAUNCH_SPREAD["cuda"]
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
    Scenario("quick: 6 blocks of 3 of 18 prompts", prompts=18, per_block=3, blocks=6, turns=1),
    Scenario("it pays: 1.8x, prompts differ by 30 %", speedup=1.8, between_prompts=0.3),
    Scenario("same server twice, calm", between_prompts=0.0, between_blocks=0.005, launched=0),
    Scenario("same server twice, rough", between_prompts=0.0, between_blocks=0.05, launched=0),
    Scenario("two rounds of 25 prompts in 12 blocks", blocks=12, rounds=2, between_blocks=0.03),
    Scenario("every block has every prompt", per_block=25, between_blocks=0.03),
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
    """So many trials of one scenario, each with more rounds while blocks would decide it."""
    rng = random.Random(f"{scenario.name} {seed}")
    covered = apart = open_ones = 0
    halves = 0.0
    for _ in range(trials):
        prompts = [
            (rng.lognormvariate(4.5, scenario.lengths), rng.gauss(0.0, scenario.between_prompts))
            for _ in range(scenario.prompts)
        ]
        launched = [
            [
                rng.gauss(0.0, scenario.between_launches) if side < scenario.launched else 0.0
                for side in range(2)
            ]
            for _ in range(scenario.launches)
        ]
        sides: tuple[list[RateSample], list[RateSample]] = ([], [])
        for turn in range(scenario.turns):
            for launch in range(scenario.launches):
                _measure(scenario, rng, prompts, launched[launch], sides, f"l{launch}", turn)
            estimate = ratio(
                sides[0], against=sides[1], between=scenario.launched * LAUNCH_SPREAD["cuda"] ** 2
            )
            assert estimate is not None
            half, judged = estimate.half(), verdict(estimate).word
            if judged != INCONCLUSIVE or needed(estimate)[0] != "blocks":
                break
        assert estimate is not None
        halves += half
        covered += abs(estimate.log - scenario.truth) <= half
        apart += judged in (PAYS, COSTS)
        open_ones += judged == INCONCLUSIVE
    return Score(covered / trials, apart / trials, open_ones / trials, halves / trials)


def _measure(
    scenario: Scenario,
    rng: random.Random,
    prompts: list[tuple[float, float]],
    launched: list[float],
    sides: tuple[list[RateSample], list[RateSample]],
    launch: str,
    turn: int,
) -> None:
    """One round of a launch: what the two variants did."""
    for block, indices in enumerate(_dealt(scenario, rng)):
        slow = [
            launched[side]
            + rng.gauss(0.0, scenario.between_blocks)
            + (0.18 if rng.random() < scenario.outliers else 0.0)
            for side in range(2)
        ]
        for index in indices:
            length, effect = prompts[index]
            for side, samples in enumerate(sides):
                tokens = length * (rng.lognormvariate(0.0, 0.3) if scenario.samples else 1.0)
                cost = tokens * math.exp(slow[side] + rng.gauss(0.0, scenario.between_requests))
                if side == 0:
                    cost /= scenario.speedup * math.exp(effect)
                samples.append(RateSample(f"p{index}", f"b{turn}.{block}", tokens, cost, launch))


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
