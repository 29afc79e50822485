"""From an interval to a verdict, and what is missing where there is none. Pure; measures nothing."""

from __future__ import annotations

import math

from specserve.measure.bench.result import Interval, Verdict
from specserve.measure.statistics import CONFIDENCE, Estimate

PAYS_ABOVE = 1.03
COSTS_BELOW = 0.97
CERTAINTY = 0.995
"""PAYS and COSTS also need this interval to leave out 1, so that equal arms get one in 1 of 100 cells at most."""
_MOST = 100
"""More than so many times the work is not advised."""


def interval(estimate: Estimate) -> Interval:
    """The value with its 95 % bounds."""
    low, high = estimate.bounds()
    return Interval(estimate.value, low, high)


def verdict(estimate: Estimate) -> Verdict:
    """Whether one arm is faster than another, by the ratio of their rates."""
    low, high = estimate.bounds()
    if low >= COSTS_BELOW and high <= PAYS_ABOVE:
        return Verdict.NO_DIFFERENCE
    surely_low, surely_high = estimate.bounds(CERTAINTY)
    if low > PAYS_ABOVE and surely_low > 1:
        return Verdict.PAYS
    if high < COSTS_BELOW and surely_high < 1:
        return Verdict.COSTS
    return Verdict.INCONCLUSIVE


def needed(estimate: Estimate) -> str:
    """What would decide an INCONCLUSIVE cell if the value stayed as it is, in one clause."""
    if not math.isfinite(estimate.error):
        return "more than one block"
    factor = _factor(estimate)
    if factor is None or factor > _MOST:
        return "more than is worth it: the speedup is too near to where the verdict changes"
    if estimate.launches > 1:
        return f"about {_more(estimate.launches, factor)} more launches"
    if estimate.prompt_share > 0.5:
        return f"about {_more(estimate.prompts, factor)} more prompts"
    return f"about {_more(estimate.blocks, factor)} more blocks"


def _factor(estimate: Estimate) -> float | None:
    """How many times as much would decide it: the interval's width goes with the root; None: nothing would."""
    pays, costs = math.log(PAYS_ABOVE), math.log(COSTS_BELOW)
    beyond = max(estimate.log - pays, costs - estimate.log)
    if beyond > 0:
        wanted = [(beyond, CONFIDENCE), (abs(estimate.log), CERTAINTY)]
    else:
        wanted = [(min(pays - estimate.log, estimate.log - costs), CONFIDENCE)]
    if min(room for room, _ in wanted) <= 0:
        return None
    return max((estimate.half(confidence) / room) ** 2 for room, confidence in wanted)


def _more(count: int, factor: float) -> int:
    return max(1, math.ceil(count * (factor - 1)))
