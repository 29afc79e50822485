"""Intervals for what repeated measurements say, and the verdict that an interval allows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

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
        raise FactError("scipy is not installed", hint="run `pip install 'specserve[measure]'`") from error


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
class LogEstimate:
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


class _Part(NamedTuple):
    """What a share does to the logarithm, and how much of the sum it is."""

    of: Share
    influence: float
    weight: float


def ratio(arm: Sequence[Share], *, against: Sequence[Share]) -> LogEstimate | None:
    """Rate of one arm over that of another, each all amounts over all costs; None if a rate is not positive.

    Both sent the same prompts in the same blocks; what only one of them did counts as it is.
    """
    mine, theirs = _parts(arm, sign=1.0), _parts(against, sign=-1.0)
    return _clustered(_log(arm) - _log(against), mine + theirs) if mine and theirs else None


def rate(shares: Sequence[Share]) -> LogEstimate | None:
    """One rate, all amounts over all costs; None if it is not positive."""
    parts = _parts(shares, sign=1.0)
    return _clustered(_log(shares), parts) if parts else None


def _log(shares: Sequence[Share]) -> float:
    return math.log(math.fsum(item.amount for item in shares) / math.fsum(item.cost for item in shares))


def _parts(shares: Sequence[Share], *, sign: float) -> list[_Part]:
    """What each share does to the logarithm of the rate; empty if that is not positive."""
    amount, cost = math.fsum(item.amount for item in shares), math.fsum(item.cost for item in shares)
    if not (amount > 0 and cost > 0):
        return []
    sides = [(item, item.amount / amount, item.cost / cost) for item in shares]
    return [_Part(item, sign * (more - less), more + less) for item, more, less in sides]


def _clustered(log: float, parts: Sequence[_Part]) -> LogEstimate:
    """The estimate if parts are alike within prompts and within times: blocks, or launches if there are several."""
    prompts, launches = [part.of.prompt for part in parts], [part.of.launch for part in parts]
    blocks = [(part.of.launch, part.of.block) for part in parts]
    times: Sequence[Hashable] = launches if len(set(launches)) > 1 else blocks
    both = [*zip(prompts, times, strict=True)]
    count = len(set(prompts))
    counts = len(set(blocks)), len(set(launches)), count
    if len(set(times)) < 2:
        return LogEstimate(log, math.inf, 1.0, *counts)
    by_time, time_freedom = _spread(parts, times, power=1)
    if count < 2 or len(set(both)) == count:  # each prompt has one time
        return LogEstimate(log, math.sqrt(by_time), time_freedom, *counts)
    by_prompt, prompt_freedom = _spread(parts, prompts, power=2)
    between = max(by_prompt - _spread(parts, both, power=1)[0], 0.0)
    variance, freedom = by_time + between, 1.0
    if squares := by_time**2 / time_freedom + between**2 / prompt_freedom:
        freedom = variance**2 / squares
    if variance < by_prompt:
        variance, freedom = by_prompt, prompt_freedom
    share = min(between / variance, 1.0) if variance else 0.0
    return LogEstimate(log, math.sqrt(variance), freedom, *counts, share)


def _spread(parts: Sequence[_Part], clusters: Sequence[Hashable], *, power: int) -> tuple[float, float]:
    """The variance of a sum over clusters and its degrees of freedom, by the jackknife, to first order.

    Unequal clusters are as good as fewer equal ones: (Σw)²/Σw² where their deviations are alike; squares in the place
    of the weights (`power` 2) where these grow with the weight, as a prompt's difficulty does with its answer's length.
    """
    influences: dict[Hashable, float] = defaultdict(float)
    weights: dict[Hashable, float] = defaultdict(float)
    for part, cluster in zip(parts, clusters, strict=True):
        influences[cluster] += part.influence
        weights[cluster] += part.weight
    total = math.fsum(weights.values())
    left = [(influences[cluster], 1.0 - weight / total) for cluster, weight in weights.items()]
    variance = math.fsum((influence / rest) ** 2 for influence, rest in left if rest > 1e-9)
    powers = [weight**power for weight in weights.values()]
    equal = math.fsum(powers) ** 2 / math.fsum(each * each for each in powers)
    return variance * (len(weights) - 1) / len(weights), max(equal - 1.0, 1.0)


class PromptAcceptance(NamedTuple):
    """What came of the drafts of one prompt's answers."""

    prompt: str
    accepted: int
    drafted: int


def acceptance_gain(new: Sequence[PromptAcceptance], *, over: Sequence[PromptAcceptance]) -> Interval | None:
    """Accepted over drafted tokens of one draft minus those of another, with the 95 % interval over prompts.

    Both answered the same prompts; None for fewer than two of them. Linearised, by the jackknife's first order.
    """
    sides = [_influences(new), _influences(over)]
    prompts = sides[0][1].keys() | sides[1][1].keys()
    if len(prompts) < 2 or None in (sides[0][0], sides[1][0]):
        return None
    (mine, own), (theirs, other) = sides
    value = float(mine or 0.0) - float(theirs or 0.0)
    parts = [own.get(each, 0.0) - other.get(each, 0.0) for each in prompts]
    count = len(parts)
    variance = count / (count - 1) * math.fsum(part * part for part in parts)
    half = quantile(0.5 + CONFIDENCE / 2, freedom=count - 1) * math.sqrt(variance)
    return Interval(value, value - half, value + half)


def _influences(rows: Sequence[PromptAcceptance]) -> tuple[float | None, dict[str, float]]:
    """The rate, and what each prompt does to it."""
    drafted = sum(row.drafted for row in rows)
    if not drafted:
        return None, {}
    rate = sum(row.accepted for row in rows) / drafted
    parts: dict[str, float] = defaultdict(float)
    for row in rows:
        parts[row.prompt] += (row.accepted - rate * row.drafted) / drafted
    return rate, parts


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


def interval(estimate: LogEstimate) -> Interval:
    """The value with its 95 % bounds."""
    low, high = estimate.bounds()
    return Interval(estimate.value, low, high)


def verdict(estimate: LogEstimate) -> Verdict:
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


def needed(estimate: LogEstimate) -> str:
    """What would decide an INCONCLUSIVE cell if the value stayed as it is, in one clause."""
    if not math.isfinite(estimate.error):
        return "more than one block"
    factor = _factor(estimate)
    if factor is None or factor > _MOST:
        return "too many to be worth it: the speedup is too close to the limit of a verdict"
    if estimate.launches > 1:
        return f"about {_more(estimate.launches, factor)} more launches"
    if estimate.prompt_share > 0.5:
        return f"about {_more(estimate.prompts, factor)} more prompts"
    return f"about {_more(estimate.blocks, factor)} more blocks"


def _factor(estimate: LogEstimate) -> float | None:
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
