"""Intervals: what repeated measurements say of a figure, a rate or a ratio, and how surely."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from specserve.errors import FactError

CONFIDENCE = 0.95
LAUNCH_SPREAD = {"cuda": 0.01, "cpu": 0.08}
"""Standard deviation of log tokens/s from one launch of a server to the next, beyond its blocks'.

Assumed for GPUs. Measured on two cores of a virtual machine: of equal servers side by side, the
third one is 0 to 17 % faster than the first (seven runs: docs/bench.md).
"""
KNOWN = 1e6
"""Degrees of freedom of a variance that is known."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with the bounds of its confidence interval: the only one of the package."""

    value: float
    low: float
    high: float
    """Infinite if too little was measured for a bound."""
    n: int = 0
    """How many blocks, parts, answers or requests it rests on."""
    method: str = ""
    """How the bounds were made, and their confidence."""


def library(module: str) -> Any:
    """Return numpy or a module of scipy, imported when it is first needed.

    Raises FactError if it is missing.
    """
    try:
        return import_module(module)
    except ImportError as error:
        hint = "run `pip install 'specserve[measure]'`"
        raise FactError(f"{module.partition('.')[0]} is not installed", hint=hint) from error


@lru_cache(maxsize=4096)
def t_quantile(probability: float, *, freedom: float) -> float:
    """Return the value below which a t variable lies with this probability."""
    return float(library("scipy.special").stdtrit(freedom, probability))


def quantile(values: Sequence[float], at: float) -> float:
    """Return a quantile, interpolated as vLLM does. `values` must not be empty."""
    return float(library("numpy").quantile(values, at))


def quantile_ranks(count: int, at: float) -> tuple[int, int]:
    """Return the ranks, from 1, between which a quantile lies with 95 %, whatever is distributed.

    The second one is beyond `count` if too few values bound it (P99: under 368).
    """
    low, high = library("scipy.stats").binom.ppf([0.025, 0.975], count, at)
    return max(1, int(low)), int(high) + 1


def p99(values: Sequence[float]) -> Estimate | None:
    """Return the P99 of what each request took: under 368 of them it has no upper bound."""
    if not values:
        return None
    ordered = sorted(values)
    low, high = quantile_ranks(len(ordered), 0.99)
    upper = ordered[high - 1] if high <= len(ordered) else math.inf
    return Estimate(quantile(ordered, 0.99), ordered[low - 1], upper, len(ordered), "95 %, ranks")


@dataclass(frozen=True, slots=True)
class RateSample:
    """What one request adds to a rate: an amount, and what it took."""

    prompt: str
    block: str
    amount: float
    """Such as output tokens."""
    cost: float
    """Such as seconds; those of a block's requests add up to the block's."""
    launch: str = ""


@dataclass(frozen=True, slots=True)
class LogEstimate:
    """The logarithm of a rate or a ratio, its standard error and that one's degrees of freedom."""

    log: float
    error: float
    freedom: float
    blocks: int
    launches: int
    prompts: int
    prompt_share: float = 0.0
    """Share of the variance between prompts: more blocks of the same ones do not lower it."""
    launch_share: float = 0.0
    """Share of the variance between launches: more blocks in a launch do not lower it."""

    @property
    def value(self) -> float:
        """The rate or the ratio."""
        return math.exp(self.log)

    @property
    def estimate(self) -> Estimate:
        """The value with its 95 % bounds."""
        method = "95 %, Student's t over blocks"
        return Estimate(self.value, *self.bounds(), self.blocks, method)

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the bounds of the interval; 0 and infinity if nothing was repeated."""
        half = self.half(confidence)
        if half < 300:
            return math.exp(self.log - half), math.exp(self.log + half)
        return 0.0, math.inf

    def half(self, confidence: float = CONFIDENCE) -> float:
        """Return half the width of the interval of the logarithm."""
        if not math.isfinite(self.error):
            return math.inf
        return t_quantile(0.5 + confidence / 2, freedom=self.freedom) * self.error


def ratio(
    variant: Sequence[RateSample], *, against: Sequence[RateSample], between: float = 0.0
) -> LogEstimate | None:
    """Return the rate of one variant over that of another; None if a rate is not positive.

    Both sent the same prompts in the same blocks; what only one of them did counts as it is.
    `between`: the variance that one launch adds: another start of a server is not as fast.
    """
    return _estimate((variant, 1.0), (against, -1.0), between_launches=between)


def rate(samples: Sequence[RateSample]) -> LogEstimate | None:
    """Return one rate, all amounts over all costs; None if it is not positive."""
    return _estimate((samples, 1.0), between_launches=0.0)


class _Part(NamedTuple):
    """A sample, what it does to the logarithm, and how much of the sum it is."""

    sample: RateSample
    influence: float
    weight: float


def _estimate(
    *sides: tuple[Sequence[RateSample], float], between_launches: float
) -> LogEstimate | None:
    """Return the sum of the logarithms of the sides' rates, each with its sign.

    Parts are alike within prompts and within blocks. A block is a pair: the same requests to both
    variants. What a launch adds is known, not estimated: two would leave one degree of freedom.
    """
    log, parts = 0.0, list[_Part]()
    for samples, sign in sides:
        amount = math.fsum(each.amount for each in samples)
        cost = math.fsum(each.cost for each in samples)
        if not (amount > 0 and cost > 0):
            return None
        log += sign * math.log(amount / cost)
        for each in samples:
            more, less = each.amount / amount, each.cost / cost
            parts.append(_Part(each, sign * (more - less), more + less))
    prompts = [part.sample.prompt for part in parts]
    blocks = [(part.sample.launch, part.sample.block) for part in parts]
    both = [*zip(prompts, blocks, strict=True)]
    launches, count = len({launch for launch, _ in blocks}), len(set(prompts))
    counts = len(set(blocks)), launches, count
    if len(set(blocks)) < 2:
        return LogEstimate(log, math.inf, 1.0, *counts)
    variance, freedom = by_block, block_freedom = _spread(parts, blocks, power=1)
    between = 0.0
    if count > 1 and len(set(both)) > count:  # prompts recur
        by_prompt, prompt_freedom = _spread(parts, prompts, power=2)
        between = max(by_prompt - _spread(parts, both, power=1)[0], 0.0)
        variance = by_block + between
        if squares := by_block**2 / block_freedom + between**2 / prompt_freedom:
            freedom = variance**2 / squares
        if variance < by_prompt:
            variance, freedom = by_prompt, prompt_freedom
    by_launch = between_launches / launches
    total = variance + by_launch
    if not total:
        return LogEstimate(log, 0.0, freedom, *counts)
    freedom = min(freedom * (total / variance) ** 2, KNOWN) if variance else KNOWN
    shares = min(between / total, 1.0), by_launch / total
    return LogEstimate(log, math.sqrt(total), freedom, *counts, *shares)


def _spread(
    parts: Sequence[_Part], clusters: Sequence[Hashable], *, power: int
) -> tuple[float, float]:
    """Return the variance of a sum over clusters and its degrees of freedom, by the jackknife.

    Unequal clusters are as good as fewer equal ones: (Σw)²/Σw² where their deviations are alike;
    squares in the place of the weights (`power` 2) where these grow with the weight, as a prompt's
    difficulty does with its answer's length.
    """
    numpy, number = library("numpy"), {key: at for at, key in enumerate(dict.fromkeys(clusters))}
    index = [number[key] for key in clusters]
    influences = numpy.bincount(index, [part.influence for part in parts])
    weights = numpy.bincount(index, [part.weight for part in parts])
    rest = 1.0 - weights / weights.sum()
    is_part = rest > 1e-9
    variance = ((influences[is_part] / rest[is_part]) ** 2).sum() * (1 - 1 / len(weights))
    powers = weights**power
    return float(variance), max(float(powers.sum() ** 2 / (powers**2).sum()) - 1.0, 1.0)
