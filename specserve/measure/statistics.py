"""Intervals for what repeated measurements say: rates, their ratios, quantiles. Pure; knows no server.

A block is a short time in which every arm sends the same prompts. Requests of one block share the machine's mood and
their batch, requests of one prompt share its difficulty: the variance of a ratio is clustered by both (Cameron, Gelbach
& Miller 2011, "Robust inference with multiway clustering"), with launches in the place of blocks where there are
several. Each spread is a jackknife's, which holds where prompts weigh unequally, and the interval is Student's with the
degrees of freedom of the spread that dominates (Satterthwaite), since blocks are few. Percentiles of a bootstrap of
blocks, then of requests in them, cover anything from 55 to 97 % where they should cover 95 %: too little where prompts
come again in other blocks, which they then take for new ones (`scripts/bench_simulation.py --bootstrap`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from specserve.measure.student import quantile

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
        """Of its interval; 0 and infinity where nothing was repeated."""
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
    """Rate of one arm over that of another, each all amounts over all costs; None where a rate is not positive.

    Both sent the same prompts in the same blocks; what only one of them did counts as it is.
    """
    parts: dict[_Key, _Part] = defaultdict(_Part)
    mine, theirs = (_add(shares, parts, sign=sign) for shares, sign in ((arm, 1.0), (against, -1.0)))
    return None if mine is None or theirs is None else _clustered(mine - theirs, parts)


def rate(shares: Sequence[Share]) -> Estimate | None:
    """One rate, all amounts over all costs; None where it is not positive."""
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
