"""Intervals for what repeated measurements say, and the verdict that an interval allows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from specserve.errors import FactError
from specserve.measure.bench.result import Interval, Verdict


@lru_cache(maxsize=4096)
def quantile(probability: float, *, freedom: float) -> float:
    """The value below which a t variable lies with this probability. `freedom` may be a fraction, above 0.

    Raises ValueError outside of 0 to 1, FactError without scipy.
    """
    if not (0.0 < probability < 1.0 and freedom > 0.0):
        raise ValueError(f"no quantile at {probability} with {freedom} degrees of freedom")
    return float(scipy("special").stdtrit(freedom, probability))


def scipy(module: str) -> Any:
    """A module of scipy, imported when it is first needed. Raises FactError if it is not installed."""
    try:
        return import_module(f"scipy.{module}")
    except ImportError as error:
        raise FactError("scipy is not installed", hint="pip install 'specserve[measure]'") from error


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Share:
    """What one request adds to a rate: an amount, and what it took."""

    prompt: str
    block: str
    amount: float
    """Such as output tokens."""
    cost: float
    """Such as seconds; those of a block's requests add up to the block's."""
    launch: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The logarithm of a rate or a ratio, its standard error, and the degrees of freedom that the error rests on."""

    log: float
    error: float
    freedom: float
    blocks: int
    launches: int
    prompts: int
    prompt_share: float = 0.0
    """Of the variance, what lies between prompts, 0 to 1: more blocks of the same prompts do not lower it."""

    @property
    def value(self) -> float:
        """The rate or the ratio."""
        return math.exp(self.log)

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Of its interval; 0 and infinity if nothing was repeated."""
        half = self.half(confidence)
        return (math.exp(self.log - half), math.exp(self.log + half)) if half < 300 else (0.0, math.inf)

    def half(self, confidence: float = CONFIDENCE) -> float:
        """Half the width of the interval of the logarithm."""
        if not math.isfinite(self.error):
            return math.inf
        return quantile(0.5 + confidence / 2, freedom=self.freedom) * self.error


_Key = tuple[str, str, str]
"""Launch, block, prompt."""
_Cluster = Callable[[_Key], Hashable]


@dataclass(slots=True)
class _Part:
    """What the shares of one key do to the logarithm, and how much of the whole they are."""

    influence: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class _Spread:
    """The variance of a sum over clusters, and the degrees of freedom that it is known with."""

    variance: float
    freedom: float


def ratio(arm: Sequence[Share], *, against: Sequence[Share]) -> Estimate | None:
    """Rate of one arm over that of another, each all amounts over all costs; None if a rate is not positive.

    Both sent the same prompts in the same blocks; what only one of them did counts as it is.
    """
    parts: dict[_Key, _Part] = defaultdict(_Part)
    mine, theirs = (_add(shares, parts, sign=sign) for shares, sign in ((arm, 1.0), (against, -1.0)))
    return None if mine is None or theirs is None else _clustered(mine - theirs, parts)


def rate(shares: Sequence[Share]) -> Estimate | None:
    """One rate, all amounts over all costs; None if it is not positive."""
    parts: dict[_Key, _Part] = defaultdict(_Part)
    found = _add(shares, parts, sign=1.0)
    return None if found is None else _clustered(found, parts)


def _add(shares: Sequence[Share], parts: dict[_Key, _Part], *, sign: float) -> float | None:
    """The logarithm of the rate; what each share does to it is added to `parts`."""
    amount, cost = math.fsum(item.amount for item in shares), math.fsum(item.cost for item in shares)
    if not (amount > 0 and cost > 0):
        return None
    for item in shares:
        part = parts[item.launch, item.block, item.prompt]
        part.influence += sign * (item.amount / amount - item.cost / cost)
        part.weight += item.amount / amount + item.cost / cost
    return math.log(amount / cost)


def _clustered(log: float, parts: Mapping[_Key, _Part]) -> Estimate:
    """The estimate where parts are alike within prompts and within times: blocks, or launches if there are several."""
    launches, blocks = len({key[0] for key in parts}), len({key[:2] for key in parts})
    prompts, times = len({key[2] for key in parts}), launches if launches > 1 else blocks
    if times < 2:
        return Estimate(log, math.inf, 1.0, blocks, launches, prompts)
    time: _Cluster = _launch if launches > 1 else _block
    by_time = _spread(parts, time, power=1)
    if prompts < 2 or len({(key[2], time(key)) for key in parts}) == prompts:  # each prompt has one time
        return Estimate(log, math.sqrt(by_time.variance), by_time.freedom, blocks, launches, prompts)
    by_prompt = _spread(parts, lambda key: key[2], power=2)
    by_both = _spread(parts, lambda key: (key[2], time(key)), power=1)
    between = _Spread(max(by_prompt.variance - by_both.variance, 0.0), by_prompt.freedom)
    whole = _together(by_time, between)
    whole = whole if whole.variance >= by_prompt.variance else by_prompt
    share = between.variance / whole.variance if whole.variance else 0.0
    return Estimate(log, math.sqrt(whole.variance), whole.freedom, blocks, launches, prompts, min(share, 1.0))


def _launch(key: _Key) -> Hashable:
    return key[0]


def _block(key: _Key) -> Hashable:
    return key[:2]


def _spread(parts: Mapping[_Key, _Part], cluster: _Cluster, *, power: int) -> _Spread:
    """By the jackknife, to first order: what the whole would be without each of the clusters.

    Unequal clusters are as good as fewer equal ones: (Σw)²/Σw² where their deviations are alike; squares in the place
    of the weights (`power` 2) where these grow with the weight, as a prompt's difficulty does with its answer's length.
    """
    sums: dict[Hashable, _Part] = defaultdict(_Part)
    for key, part in parts.items():
        whole = sums[cluster(key)]
        whole.influence += part.influence
        whole.weight += part.weight
    total = math.fsum(part.weight for part in sums.values())
    left = [(part.influence, 1.0 - part.weight / total) for part in sums.values()]
    variance = math.fsum((influence / rest) ** 2 for influence, rest in left if rest > 1e-9)
    weights = [part.weight**power for part in sums.values()]
    clusters = math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)
    return _Spread(variance * (len(sums) - 1) / len(sums), max(clusters - 1.0, 1.0))


def _together(*spreads: _Spread) -> _Spread:
    """A sum of variances and its degrees of freedom."""
    total = sum(each.variance for each in spreads)
    parts = sum(each.variance**2 / each.freedom for each in spreads)
    return _Spread(total, total * total / parts if parts > 0 else 1.0)


def point(values: Sequence[float], at: float) -> float:
    """A quantile, between its neighbours as numpy and vLLM take it. `values` must not be empty."""
    ordered = sorted(values)
    place = at * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


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
