"""From passes to every K at every load, to what is launched next, and to the choice."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import geometric_mean, median
from typing import Any

from specserve.measure.bench.blocks import Pass, passes_of
from specserve.measure.bench.figures import speedup
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import BASELINE
from specserve.measure.intervals import Estimate, LogEstimate
from specserve.measure.tune.observe import Steps, acceptance_length, steps_by_request
from specserve.measure.tune.plan import Setting, loads_of
from specserve.measure.verdict import COSTS, COSTS_BELOW, INCONCLUSIVE, PAYS, Verdict, verdict

LINE_ERROR = 0.05
"""How far a step's cost may lie off the line through two K; published: 4.4 % at most."""
SAME = 0.01
"""Within this share two K are equally good, and the smaller one wins."""
MIN_SPEEDUP = 1.03


@dataclass(frozen=True, slots=True)
class Row:
    """One K at one point."""

    point: Point
    num_speculative_tokens: int
    mean_acceptance_length: float
    step_cost: float
    """In steps of the server without speculation: tokens per step over the speedup."""
    speedup: Estimate
    verdict: Verdict | None = None
    """None: it was not measured, but predicted from others that were."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is best here, by what was measured."""

    verdict: Verdict
    """Over all points: PAYS if it speculates, INCONCLUSIVE if nothing can be said yet."""
    setting: Setting | None = None
    """None: run without, or nothing was measured."""
    speculation: Mapping[str, Any] | None = None
    speedup: Estimate | None = None
    """The geometric mean over all points."""


def launched_tokens(passes: Sequence[Pass]) -> list[int]:
    """Every K that has passes."""
    names = {each.variant for each in passes}
    return sorted(int(name[1:]) for name in names if re.fullmatch(r"k\d+", name))


def rows(points: Sequence[Point], passes: Sequence[Pass]) -> list[Row]:
    """Every K up to the largest that was measured, at every point that was."""
    found = list[Row]()
    for point in points:
        known = dict[int, Row]()
        for tokens in launched_tokens(passes):
            row = _measured(point, tokens, passes)
            if row is not None:
                known[tokens] = row
        found += known.values()
        if known and (requests := _requests(point, max(known), passes)):
            for tokens in range(1, max(known)):
                if tokens not in known:
                    length = acceptance_length(requests, tokens=tokens)
                    found.append(_predicted(point, tokens, known, length))
    return sorted(found, key=lambda row: (row.point.concurrency or 1, row.num_speculative_tokens))


def _requests(point: Point, tokens: int, passes: Sequence[Pass]) -> list[Steps]:
    """All answers with this K to the same text: the load changes no acceptance."""
    return steps_by_request(
        [
            each
            for each in passes
            if each.variant == f"k{tokens}"
            and each.point.workload == point.workload
            and each.point.temperature == point.temperature
        ]
    )


def _measured(point: Point, tokens: int, passes: Sequence[Pass]) -> Row | None:
    """A K that was launched. Its steps cost what they do in the median round."""
    estimate = speedup(passes, variant=f"k{tokens}", against=BASELINE, at=point)
    if estimate is None:
        return None
    rates, without = (
        {
            (each.launch, each.block): each.output_tokens / each.duration_s
            for each in passes_of(passes, name, point)
        }
        for name in (f"k{tokens}", BASELINE)
    )
    usual = median(rates[key] / without[key] for key in rates.keys() & without.keys())
    requests = _requests(point, tokens, passes)
    length = acceptance_length(requests, tokens=tokens) if requests else math.nan
    return Row(point, tokens, length, length / usual, estimate.estimate, verdict(estimate))


def _predicted(point: Point, tokens: int, known: Mapping[int, Row], length: float) -> Row:
    """A K that was not launched: its step's cost lies on the line through two that were.

    With one K alone, the line goes through the server without speculation (K = 0, cost 1), which
    makes small K look a little better than they are: they are launched before they are chosen.
    """
    costs = {k: row.step_cost for k, row in known.items()}
    if len(costs) < 2:
        costs[0] = 1.0
    below, above = ([k for k in sorted(costs) if (k < tokens) == side] for side in (True, False))
    one, two = (below[-1], above[0]) if below else above[:2]
    cost = costs[one] + (costs[two] - costs[one]) * (tokens - one) / (two - one)
    near = known[min(known, key=lambda k: abs(k - tokens))]
    factor = length / max(cost, 0.01) / (near.mean_acceptance_length / near.step_cost)
    value, low, high = near.speedup.value, near.speedup.low, near.speedup.high
    half = math.log(high / low) / 2 if low > 0 and high < math.inf else 300.0
    spread = math.exp(math.hypot(LINE_ERROR, half))
    bounds = (value * factor / spread, value * factor * spread)
    interval = Estimate(value * factor, *bounds, near.speedup.n, "a line through two K")
    return Row(point, tokens, length, cost, interval)


def mean_speedups(known: Sequence[Row]) -> dict[int, float]:
    """By K, the geometric mean over all points; of those that are known at every one."""
    points, found = {row.point for row in known}, dict[int, float]()
    for tokens in sorted({row.num_speculative_tokens for row in known}):
        here = [row.speedup.value for row in known if row.num_speculative_tokens == tokens]
        if len(here) == len(points):
            found[tokens] = geometric_mean(here)
    return found


def best(gains: Mapping[int, float]) -> int:
    """The smallest K within 1 % of the best."""
    return min(tokens for tokens, gain in gains.items() if gain >= (1 - SAME) * max(gains.values()))


def next_tokens(known: Sequence[Row], *, failed: Collection[int] = ()) -> int | None:
    """The K to launch next: predicted better than all that were measured; None if there is none."""
    gains = {k: gain for k, gain in mean_speedups(known).items() if k not in failed}
    measured = {row.num_speculative_tokens for row in known if row.verdict is not None}
    if not gains or max(row.speedup.value for row in known) < MIN_SPEEDUP:
        return None
    wanted = best(gains)
    there = max((gain for k, gain in gains.items() if k in measured), default=0.0)
    return wanted if wanted not in measured and gains[wanted] > there else None


def next_schedule(known: Sequence[Row], single: int) -> Setting | None:
    """A schedule that may be better than one K, whose intervals do not overlap.

    One range keeps the single K; the other has the best K of the loads on its side, and ends at the
    last of them.
    """
    loads = loads_of([row.point for row in known])
    by_place = {(row.point, row.num_speculative_tokens): row for row in known}
    found: list[tuple[float, Setting]] = []
    for low, high in pairwise(loads):
        for is_lower in (True, False):
            side = [row for row in known if ((row.point.concurrency or 1) <= low) == is_lower]
            other = best(mean_speedups(side))
            pairs = [(by_place[p, other], by_place[p, single]) for p in {r.point for r in side}]
            if any(one.speedup.low > same.speedup.high for one, same in pairs):
                gain = math.prod(one.speedup.value / same.speedup.value for one, same in pairs)
                upper = Setting(single, high - 1, other, loads[-1])
                found.append((gain, Setting(other, low, single, loads[-1]) if is_lower else upper))
    return max(found, key=lambda each: each[0])[1] if found else None


def combined(parts: Sequence[tuple[LogEstimate, float]]) -> LogEstimate:
    """A weighted sum of independent logarithms: a mean over points, or one ratio over another."""
    squares = [((weight * each.error) ** 2, each.freedom) for each, weight in parts]
    variance, freedom = math.fsum(square for square, _ in squares), min(each[1] for each in squares)
    if 0 < variance < math.inf:
        freedom = variance**2 / math.fsum(square**2 / own for square, own in squares)
    counts = [(each.blocks, each.launches, each.prompts) for each, _ in parts]
    log = math.fsum(weight * each.log for each, weight in parts)
    return LogEstimate(log, math.sqrt(variance), freedom, *map(min, zip(*counts, strict=True)))


def pooled(
    passes: Sequence[Pass], name: str, points: Sequence[Point], *, over: str = BASELINE
) -> LogEstimate | None:
    """The mean speedup of a variant over all points; None if one of them was not measured.

    Two variants that did not take turns are compared by what each is over the baseline.
    """
    parts: list[tuple[LogEstimate, float]] = []
    for point in points:
        direct = speedup(passes, variant=name, against=over, at=point)
        if direct is not None:
            parts.append((direct, 1 / len(points)))
            continue
        for each, sign in ((name, 1), (over, -1)):
            side = speedup(passes, variant=each, against=BASELINE, at=point)
            if side is None or over == BASELINE:
                return None
            parts.append((side, sign / len(points)))
    return combined(parts)


def beats(passes: Sequence[Pass], schedule: Setting, single: int, points: Sequence[Point]) -> bool:
    """Whether a schedule was measured faster than one K, and pays at its threshold, too.

    There, at the first batch with the upper K, it must be faster than no speculation and no slower
    than one K: K may change from step to step. `points`: all that it was measured at.
    """
    edge = [point for point in points if point.concurrency == schedule.edge]
    everywhere = pooled(passes, schedule.name, points, over=f"k{single}")
    there = pooled(passes, schedule.name, edge, over=f"k{single}")
    without = pooled(passes, schedule.name, edge)
    if everywhere is None or there is None or without is None:
        return False
    is_equal = there.value > COSTS_BELOW and verdict(there).word != COSTS
    return everywhere.bounds()[0] > 1 and is_equal and without.bounds()[0] > 1


def choice_of(
    points: Sequence[Point],
    passes: Sequence[Pass],
    keys: Mapping[str, Any],
    schedule: Setting | None = None,
) -> Choice:
    """The best of what was measured. `keys`: of the block; `schedule`: one that beat a single K."""
    gains, paying = dict[int, float](), dict[int, float]()
    for tokens in launched_tokens(passes):
        mean = pooled(passes, f"k{tokens}", points)
        if mean is not None:
            gains[tokens] = mean.value
            if verdict(mean).word == PAYS:
                paying[tokens] = mean.value
    if not gains:
        return Choice(Verdict(INCONCLUSIVE, "open", "no K was measured at every load"))
    setting = schedule or Setting(best(paying or gains))
    estimate = pooled(passes, setting.name, points)
    assert estimate is not None  # a schedule that beat a K was measured everywhere
    word, mean_speedup = verdict(estimate).word, estimate.estimate
    if word == PAYS:
        told = Verdict(PAYS, "good", f"{setting.words} is the best of what was measured")
        return Choice(told, setting, {**keys, **setting.keys}, mean_speedup)
    if (other := next_tokens(rows(points, passes))) is not None:
        sentence = f"K = {other} is predicted to be better, and was not measured"
        return Choice(Verdict(INCONCLUSIVE, "open", sentence))
    if word == INCONCLUSIVE:
        sentence = f"too little was measured to tell whether {setting.words} pays"
        return Choice(Verdict(word, "open", sentence), setting, speedup=mean_speedup)
    told = Verdict(word, "bad", f"the best K that was measured, {setting.tokens}, does not pay")
    return Choice(told, speedup=mean_speedup)
