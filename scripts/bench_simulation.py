"""Benchmarks of known truth: how often the interval of a speedup covers it, and how often equal arms are told apart.

    python scripts/bench_simulation.py                 every scenario 10,000 times, on all cores
    python scripts/bench_simulation.py --trials 500 --only quick
    python scripts/bench_simulation.py --bootstrap     the percentile bootstrap beside it, for comparison

Exit code 1 where coverage leaves 94-96 % (with the simulation's own error on top) or more than 1 % of the verdicts on
equal arms are PAYS or COSTS.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from specserve.measure.bench.result import Verdict
from specserve.measure.statistics import Share, point, ratio, verdict


@dataclass(frozen=True, slots=True)
class Scenario:
    """A benchmark and the noise that it meets; spreads are standard deviations of logarithms."""

    name: str
    prompts: int
    per_block: int
    """Requests in a block; 0: a round of blocks has every prompt once."""
    blocks: int
    launches: int = 1
    rounds: int = 1
    speedup: float = 1.0
    between_prompts: float = 0.15
    """Of the speedup."""
    between_blocks: float = 0.02
    """Of a block's time on one arm."""
    between_requests: float = 0.03
    between_launches: float = 0.0
    lengths: float = 0.6
    """Of the answers' lengths."""
    outliers: float = 0.0
    """Share of blocks that something else on the machine slows by a fifth, on one arm."""
    samples: bool = False
    """Temperature above 0: the two arms' answers have lengths of their own."""


SCENARIOS = (
    Scenario("quick: 6 blocks of 3 of 18 prompts", prompts=18, per_block=3, blocks=6),
    Scenario("default: 25 prompts in 8 blocks", prompts=25, per_block=0, blocks=8),
    Scenario("it pays: speedup 1.8, prompts differ", 25, 0, 8, speedup=1.8, between_prompts=0.3),
    Scenario("same machine twice, calm", 25, 0, 8, between_prompts=0.0, between_blocks=0.005),
    Scenario("same machine twice, rough", 25, 0, 8, between_prompts=0.0, between_blocks=0.05),
    Scenario("two rounds of 25 prompts in 12 blocks", 25, 0, 12, rounds=2, between_blocks=0.03),
    Scenario("every block has every prompt", prompts=25, per_block=25, blocks=8, between_blocks=0.03),
    Scenario("few blocks", prompts=25, per_block=0, blocks=4, between_blocks=0.03),
    Scenario("batches: 50 requests of 25 prompts", prompts=25, per_block=50, blocks=6, between_blocks=0.02),
    Scenario("sampled answers", 25, 0, 8, samples=True),
    Scenario("outliers in 5 % of the blocks", 25, 0, 12, outliers=0.05),
    Scenario("3 launches", 25, 0, 8, launches=3, between_launches=0.02),
    Scenario("5 launches", 25, 0, 6, launches=5, between_launches=0.02, speedup=1.3),
    Scenario("5 launches that are alike", 25, 0, 6, launches=5, between_launches=0.0),
)


@dataclass(slots=True)
class Score:
    """What many trials of one scenario gave."""

    trials: int = 0
    covered: int = 0
    told_apart: int = 0
    """PAYS or COSTS."""
    bootstrap_covered: int = 0
    half: float = 0.0
    """Sum of the half widths of the logarithm."""


def drawn(scenario: Scenario, rng: random.Random) -> tuple[list[Share], list[Share]]:
    """One benchmark: what the two arms did."""
    arm: list[Share] = []
    against: list[Share] = []
    lengths = [rng.lognormvariate(4.5, scenario.lengths) for _ in range(scenario.prompts)]
    effects = [rng.gauss(0.0, scenario.between_prompts) for _ in range(scenario.prompts)]
    for launch in range(scenario.launches):
        launched = [rng.gauss(0.0, scenario.between_launches) for _ in range(2)]
        for block, indices in enumerate(dealt(scenario, rng)):
            slow = [
                launched[side]
                + rng.gauss(0.0, scenario.between_blocks)
                + (0.18 if rng.random() < scenario.outliers else 0.0)
                for side in range(2)
            ]
            for index in indices:
                for side, shares in enumerate((arm, against)):
                    tokens = lengths[index] * (rng.lognormvariate(0.0, 0.3) if scenario.samples else 1.0)
                    cost = tokens * math.exp(slow[side] + rng.gauss(0.0, scenario.between_requests))
                    if side == 0:
                        cost /= scenario.speedup * math.exp(effects[index])
                    shares.append(Share(f"p{index}", f"b{block}", tokens, cost, f"l{launch}"))
    return arm, against


def dealt(scenario: Scenario, rng: random.Random) -> list[list[int]]:
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


def truth(scenario: Scenario) -> float:
    """The logarithm of the speedup over all prompts that there could be: the slow ones weigh more."""
    return math.log(scenario.speedup) - scenario.between_prompts**2 / 2


def bootstrapped(arm: list[Share], against: list[Share], rng: random.Random) -> tuple[float, float]:
    """The percentile interval: blocks drawn anew, then requests in them, paired by prompt."""
    blocks: dict[tuple[str, str], list[tuple[Share, Share]]] = {}
    for mine, theirs in zip(arm, against, strict=True):
        blocks.setdefault((mine.launch, mine.block), []).append((mine, theirs))
    pools, values = list(blocks.values()), []
    for _ in range(400):
        pairs = [pair for pool in rng.choices(pools, k=len(pools)) for pair in rng.choices(pool, k=len(pool))]
        sums = [
            sum(field)
            for field in zip(*((a.amount, a.cost, b.amount, b.cost) for a, b in pairs), strict=True)
        ]
        values.append(math.log(sums[0] / sums[1] * sums[3] / sums[2]))
    return point(values, 0.025), point(values, 0.975)


def scored(scenario: Scenario, trials: int, seed: int, bootstrap: bool) -> Score:
    """So many trials of one scenario."""
    rng = random.Random(f"{scenario.name} {seed}")
    score, right = Score(), truth(scenario)
    for _ in range(trials):
        arm, against = drawn(scenario, rng)
        found = ratio(arm, against=against)
        assert found is not None
        half = found.half()
        score.trials += 1
        score.half += half
        score.covered += abs(found.log - right) <= half
        score.told_apart += verdict(found) in (Verdict.PAYS, Verdict.COSTS)
        if bootstrap:
            low, high = bootstrapped(arm, against, rng)
            score.bootstrap_covered += low <= right <= high
    return score


def summed(scores: list[Score]) -> Score:
    """Several processes' trials together."""
    return Score(
        sum(each.trials for each in scores),
        sum(each.covered for each in scores),
        sum(each.told_apart for each in scores),
        sum(each.bootstrap_covered for each in scores),
        sum(each.half for each in scores),
    )


def equal_arms(scenario: Scenario) -> bool:
    """Whether the truth is that there is no difference."""
    return scenario.speedup == 1.0 and abs(truth(scenario)) < 0.03


def main() -> int:
    """Run the scenarios and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--only", default="", help="scenarios whose name has this")
    parser.add_argument("--bootstrap", action="store_true", help="compare with the percentile bootstrap")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    good = True
    print("covers 95 %   PAYS or COSTS   half width" + ("   bootstrap covers" if args.bootstrap else ""))
    with ProcessPoolExecutor(args.jobs) as pool:
        for scenario in (each for each in SCENARIOS if args.only in each.name):
            parts = [args.trials // args.jobs] * args.jobs
            work = [
                pool.submit(scored, scenario, part, seed, args.bootstrap) for seed, part in enumerate(parts)
            ]
            score = summed([each.result() for each in work])
            covered, apart = score.covered / score.trials, score.told_apart / score.trials
            slack = 2.6 * math.sqrt(0.95 * 0.05 / score.trials)
            is_good = abs(covered - 0.95) <= 0.01 + slack and (not equal_arms(scenario) or apart <= 0.01)
            good = good and is_good
            shown = f"{apart:13.2%}" if equal_arms(scenario) else " " * 13
            line = f"{covered:11.2%}   {shown}   {score.half / score.trials:9.2%}"
            if args.bootstrap:
                line += f"   {score.bootstrap_covered / score.trials:16.2%}"
            print(f"{line}   {scenario.name}{'' if is_good else '   MISSED'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
