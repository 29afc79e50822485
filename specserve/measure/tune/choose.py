"""From passes to every K at every load, to what is launched next, and to the choice."""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, geometric_mean, median
from typing import Any

from specserve.measure.bench.passes import Pass
from specserve.measure.bench.plan import BASELINE
from specserve.measure.bench.result import Point
from specserve.measure.tune.plan import Setting, loads_of
from specserve.measure.verdict import (
    COSTS_BELOW,
    INCONCLUSIVE,
    KNOWN,
    PAYS,
    Estimate,
    LogEstimate,
    Verdict,
    verdict,
)


@dataclass(frozen=True)
class Steps:
    """One request: what each of its verification steps accepted and was offered, in order."""

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    plain: int = 0
    """Steps that had nothing drafted and made one token each (an ngram that found no match)."""

    @property
    def tokens(self) -> int:
        """Tokens that its steps made: each one more than it accepted."""
        return sum(self.accepted) + len(self.accepted) + self.plain

    @cached_property
    def acceptable_from_each_token(self) -> tuple[int, ...]:
        """From each token on, how many tokens a step without a limit on its drafts would make.

        A step that accepted all it was offered goes on in the next one: what lay behind it was not
        asked for.
        """
        found: list[int] = []
        follows = 0
        for took, offered in zip(reversed(self.accepted), reversed(self.drafted), strict=True):
            beyond = follows if took == offered else 0
            found += [length + beyond for length in range(1, took + 2)]
            follows = found[-1]
        return tuple(reversed(found))

    def steps_with(self, tokens: int) -> int:
        """How many steps the same text takes with at most so many draft tokens each."""
        place, steps, acceptable = 0, 0, self.acceptable_from_each_token
        while place < len(acceptable):
            place += min(acceptable[place], tokens + 1)
            steps += 1
        return steps + self.plain


def steps_of(pairs: Sequence[tuple[int, int]], *, output_tokens: int) -> Steps:
    """One request from its accepted and drafted tokens by step (vLLM's `detailed` metrics).

    Its first token comes from the prefill and is no step; what the steps do not account for was
    made without drafts. What they accepted behind the end of the answer was never sent: the last
    step counts as if no more had been drafted.
    Source: vllm/v1/core/sched/scheduler.py 0.32, `update_from_output`: the metrics come before the
    text is cut.
    """
    kept: list[tuple[int, int]] = []
    left = max(0, output_tokens - 1)
    for accepted, drafted in pairs:
        if left:
            kept.append((accepted, drafted) if accepted < left else (left - 1, left - 1))
            left -= kept[-1][0] + 1
    return Steps(tuple(each[0] for each in kept), tuple(each[1] for each in kept), left)


def steps_by_request(passes: Sequence[Pass]) -> list[Steps]:
    """The steps of every answer; none if the server does not report them.

    vLLM says nothing of a request that had nothing drafted: its steps made one token each.
    Source: vllm/v1/metrics/stats.py 0.32, `if self.per_step_accepted`.
    """
    good = [each for done in passes for each in done.requests if each.ok and each.output_tokens > 1]
    counted = [each.acceptance for each in passes]
    if not any(each.steps for each in good) and any(not each or each.drafts for each in counted):
        return []
    return [steps_of(each.steps, output_tokens=each.output_tokens) for each in good]


def acceptance_length(requests: Sequence[Steps], *, tokens: int) -> float:
    """Tokens per step with so many draft tokens: a property of pair and text."""
    return sum(each.tokens for each in requests) / sum(each.steps_with(tokens) for each in requests)


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


def log_speedups(passes: Sequence[Pass], name: str, point: Point) -> dict[int, float]:
    """By round, the logarithm of a variant's tokens/s over those without speculation."""
    rates = {
        (each.launch, each.block, each.variant): each.output_tokens / each.duration_s
        for each in passes
        if each.point == point and each.output_tokens
    }
    return {
        block: math.log(rate / without)
        for (launch, block, variant), rate in rates.items()
        if variant == name and (without := rates.get((launch, block, BASELINE)))
    }


def mean_speedup(passes: Sequence[Pass], name: str, points: Sequence[Point]) -> LogEstimate | None:
    """The geometric mean of a variant's speedups over all points; None if one was not measured.

    All that was measured in one round is a cluster: a disturbance of the machine lies on all of it.
    """
    mean, by_round = 0.0, defaultdict[int, float](float)
    for point in points:
        logs = log_speedups(passes, name, point)
        if not logs:
            return None
        middle = fmean(logs.values())
        mean += middle / len(points)
        for number, log in logs.items():
            by_round[number] += (log - middle) / (len(logs) * len(points))
    count, launched = len(by_round), 2 * max(each.launch_spread for each in passes) ** 2
    if count < 2:
        return LogEstimate(mean, math.inf, 1.0, count, 1, 0)
    rounds = math.fsum(part**2 for part in by_round.values()) * count / (count - 1)
    freedom = min(KNOWN, (count - 1) * (1 + launched / rounds) ** 2) if rounds else KNOWN
    return LogEstimate(mean, math.sqrt(rounds + launched), freedom, count, 1, 0)


def launched_tokens(passes: Sequence[Pass]) -> list[int]:
    """Every K that has passes."""
    names = {each.variant for each in passes}
    return sorted(int(name[1:]) for name in names if re.fullmatch(r"k\d+", name))


def rows(points: Sequence[Point], passes: Sequence[Pass]) -> list[Row]:
    """Every K up to the largest that was measured, at every point that was."""
    found = list[Row]()
    for point in points:
        known, requests = dict[int, Row](), list[Steps]()
        for tokens in launched_tokens(passes):
            logs = log_speedups(passes, f"k{tokens}", point)
            estimate = mean_speedup(passes, f"k{tokens}", [point])
            if estimate is None:
                continue
            place = (f"k{tokens}", point.workload, point.temperature)  # at whatever load
            requests = steps_by_request(
                [
                    each
                    for each in passes
                    if (each.variant, each.point.workload, each.point.temperature) == place
                ]
            )
            length = acceptance_length(requests, tokens=tokens) if requests else math.nan
            cost = length / math.exp(median(logs.values()))  # in the median round
            known[tokens] = Row(point, tokens, length, cost, estimate.estimate, verdict(estimate))
        found += known.values()
        if requests:  # of the largest K
            found += [
                _predicted(known, tokens, acceptance_length(requests, tokens=tokens))
                for tokens in range(1, max(known))
                if tokens not in known
            ]
    return sorted(found, key=lambda row: (row.point.concurrency, row.num_speculative_tokens))


def _predicted(known: Mapping[int, Row], tokens: int, length: float) -> Row:
    """A K that was not launched: its step's cost lies on the line through two that were.

    With one K alone, the line goes through the server without speculation (K = 0, cost 1), which
    makes small K look a little better than they are: they are launched before they are chosen.
    """
    costs = {k: row.step_cost for k, row in known.items()}
    if len(costs) < 2:
        costs[0] = 1.0
    order = sorted(costs)
    at = max(1, bisect(order, tokens))
    one, two = order[at - 1], order[at]
    cost = costs[one] + (costs[two] - costs[one]) * (tokens - one) / (two - one)
    near = known[min(known, key=lambda k: abs(k - tokens))]
    factor = length / max(cost, 0.01) / (near.mean_acceptance_length / near.step_cost)
    interval = Estimate(
        near.speedup.value * factor,
        near.speedup.low * factor / (1 + LINE_ERROR),
        near.speedup.high * factor * (1 + LINE_ERROR),
        near.speedup.n,
        "a line through two K",
    )
    return Row(near.point, tokens, length, cost, interval)


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
            side = [row for row in known if (row.point.concurrency <= low) == is_lower]
            other = best(mean_speedups(side))
            pairs = [(by_place[p, other], by_place[p, single]) for p in {r.point for r in side}]
            if any(one.speedup.low > same.speedup.high for one, same in pairs):
                gain = math.prod(one.speedup.value / same.speedup.value for one, same in pairs)
                upper = Setting(single, high - 1, other, loads[-1])
                found.append((gain, Setting(other, low, single, loads[-1]) if is_lower else upper))
    return max(found, key=lambda each: each[0])[1] if found else None


def beats(passes: Sequence[Pass], schedule: Setting, single: int, points: Sequence[Point]) -> bool:
    """Whether a schedule was measured faster than one K, and pays at its threshold, too.

    There, at the first batch with the upper K, it must be faster than no speculation and no slower
    than one K: K may change from step to step. `points`: all that it was measured at.
    """
    edge = [point for point in points if point.concurrency == schedule.edge]
    mine, mine_there = (mean_speedup(passes, schedule.name, some) for some in (points, edge))
    other, other_there = (mean_speedup(passes, f"k{single}", some) for some in (points, edge))
    if mine is None or mine_there is None or other is None or other_there is None:
        return False
    is_equal = mine_there.value > COSTS_BELOW * other_there.value
    return mine.bounds()[0] > other.value and is_equal and mine_there.bounds()[0] > 1


def choice_of(
    points: Sequence[Point],
    passes: Sequence[Pass],
    keys: Mapping[str, Any],
    schedule: Setting | None = None,
) -> Choice:
    """The best of what was measured. `keys`: of the block; `schedule`: one that beat a single K."""
    means = {k: mean_speedup(passes, f"k{k}", points) for k in launched_tokens(passes)}
    known = {k: mean for k, mean in means.items() if mean is not None}
    if not known:
        return Choice(Verdict(INCONCLUSIVE, "open", "no K was measured at every load"))
    paying = {k: mean for k, mean in known.items() if verdict(mean).word == PAYS} or known
    setting = schedule or Setting(best({k: mean.value for k, mean in paying.items()}))
    estimate = mean_speedup(passes, setting.name, points)
    assert estimate is not None  # a schedule that beat a K was measured everywhere
    word, speedup = verdict(estimate).word, estimate.estimate
    if word == PAYS:
        told = Verdict(PAYS, "good", f"{setting.words} is the best of what was measured")
        return Choice(told, setting, {**keys, **setting.keys}, speedup)
    if (other := next_tokens(rows(points, passes))) is not None:
        sentence = f"K = {other} is predicted to be better, and was not measured"
        return Choice(Verdict(INCONCLUSIVE, "open", sentence))
    if word == INCONCLUSIVE:
        sentence = f"too little was measured to tell whether {setting.words} pays"
        return Choice(Verdict(word, "open", sentence), setting, speedup=speedup)
    told = Verdict(word, "bad", f"the best K that was measured, {setting.tokens}, does not pay")
    return Choice(told, speedup=speedup)
