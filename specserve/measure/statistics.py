"""What repeated measurements say: an estimate with its interval, and the verdict that it allows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from specserve.errors import FactError

CONFIDENCE = 0.95


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a command, in a word and in a sentence: the only one of the package."""

    word: str
    """Such as PAYS, LOSSY or STEADY."""
    level: Literal["good", "bad", "open"]
    """Whether the answer is yes, no, or not known yet."""
    sentence: str = ""
    """What it rests on, or what would decide it."""


PAYS, COSTS = "PAYS", "COSTS"
NO_DIFFERENCE, INCONCLUSIVE = "NO DIFFERENCE", "INCONCLUSIVE"
LAUNCH_SPREAD = 0.01
"""Standard deviation of log tokens/s from one launch of a server to the next, beyond its blocks'.

Assumed until a quiet machine says better: tests/soak/test_series.py measures it on the demo.
"""
_KNOWN = 1e6
"""Degrees of freedom of a variance that is known."""


def library(module: str) -> Any:
    """Returns numpy or a module of scipy, imported when it is first needed. Raises FactError if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise FactError(f"{name} is not installed", hint="run `pip install 'specserve[measure]'`") from error


@lru_cache(maxsize=4096)
def quantile(probability: float, *, freedom: float) -> float:
    """Returns the value below which a t variable lies with this probability. `freedom` may be a fraction, above 0.

    Raises ValueError outside of 0 to 1, FactError without scipy.
    """
    if not (0.0 < probability < 1.0 and freedom > 0.0):
        raise ValueError(f"no quantile at {probability} with {freedom} degrees of freedom")
    return float(library("scipy.special").stdtrit(freedom, probability))


def point(values: Sequence[float], at: float) -> float:
    """Returns a quantile, interpolated as vLLM does. `values` must not be empty."""
    return float(library("numpy").quantile(values, at))


def quantile_ranks(count: int, at: float) -> tuple[int, int]:
    """Returns the ranks, from 1, between which a quantile lies with 95 %, whatever the distribution.

    The second one is beyond `count` if there are too few values to bound it (P99: under 368).
    """
    special = library("scipy.special")

    def rank(probability: float) -> int:
        """The fewest values below the quantile that are not less likely than that: the binomial."""
        found: int = max(0, math.ceil(special.bdtrik(probability, count, at)))
        return found - bool(found and special.bdtr(found - 1, count, at) >= probability)

    return max(1, rank(0.025)), rank(0.975) + 1


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
    """Share of the variance that lies between prompts: more blocks of the same prompts do not lower it."""
    launch_share: float = 0.0
    """Share of the variance that lies between launches: more blocks in a launch do not lower it."""

    @property
    def value(self) -> float:
        """The rate or the ratio."""
        return math.exp(self.log)

    @property
    def estimate(self) -> Estimate:
        """The value with its 95 % bounds."""
        return Estimate(self.value, *self.bounds(), self.blocks, "95 %, Student's t over blocks")

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Returns the bounds of the interval; 0 and infinity if nothing was repeated."""
        half = self.half(confidence)
        return (math.exp(self.log - half), math.exp(self.log + half)) if half < 300 else (0.0, math.inf)

    def half(self, confidence: float = CONFIDENCE) -> float:
        """Returns half the width of the interval of the logarithm."""
        if not math.isfinite(self.error):
            return math.inf
        return quantile(0.5 + confidence / 2, freedom=self.freedom) * self.error


def ratio(variant: Sequence[Share], *, against: Sequence[Share], launched: int = 2) -> LogEstimate | None:
    """Returns the rate of one variant over that of another, or None if a rate is not positive.

    Both sent the same prompts in the same blocks; what only one of them did counts as it is.
    `launched`: how many of the two were started for this; another start of them is not as fast.
    """
    return _estimate((variant, 1.0), (against, -1.0), launched=launched)


def rate(shares: Sequence[Share]) -> LogEstimate | None:
    """Returns one rate, all amounts over all costs, or None if it is not positive."""
    return _estimate((shares, 1.0), launched=0)


class _Part(NamedTuple):
    """A share, what it does to the logarithm, and how much of the sum it is."""

    share: Share
    influence: float
    weight: float


def _estimate(*sides: tuple[Sequence[Share], float], launched: int) -> LogEstimate | None:
    """Returns the sum of the logarithms of the sides' rates, each with its sign."""
    log, parts = 0.0, []
    for shares, sign in sides:
        amount, cost = math.fsum(each.amount for each in shares), math.fsum(each.cost for each in shares)
        if not (amount > 0 and cost > 0):
            return None
        log += sign * math.log(amount / cost)
        for each in shares:
            more, less = each.amount / amount, each.cost / cost
            parts.append(_Part(each, sign * (more - less), more + less))
    return _clustered(log, parts, launched=launched)


def _clustered(log: float, parts: Sequence[_Part], *, launched: int) -> LogEstimate:
    """Returns the estimate if parts are alike within prompts and within blocks.

    A block is a pair: the same requests to both variants. What a launch adds is known, not
    estimated: two launches would leave one degree of freedom.
    """
    prompts = [part.share.prompt for part in parts]
    blocks = [(part.share.launch, part.share.block) for part in parts]
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
    by_launch = launched * LAUNCH_SPREAD**2 / launches
    total = variance + by_launch
    if not total:
        return LogEstimate(log, 0.0, freedom, *counts)
    freedom = min(freedom * (total / variance) ** 2, _KNOWN) if variance else _KNOWN
    shares = min(between / total, 1.0), by_launch / total
    return LogEstimate(log, math.sqrt(total), freedom, *counts, *shares)


def _spread(parts: Sequence[_Part], clusters: Sequence[Hashable], *, power: int) -> tuple[float, float]:
    """Returns the variance of a sum over clusters and its degrees of freedom, by the jackknife, to first order.

    Unequal clusters are as good as fewer equal ones: (Σw)²/Σw² where their deviations are alike; squares in the place
    of the weights (`power` 2) where these grow with the weight, as a prompt's difficulty does with its answer's length.
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


class PromptAcceptance(NamedTuple):
    """What came of the drafts of one prompt's answers."""

    prompt: str
    accepted: int
    drafted: int


def acceptance_gain(new: Sequence[PromptAcceptance], *, over: Sequence[PromptAcceptance]) -> Estimate | None:
    """Returns the acceptance rate of one draft minus that of another, with the 95 % interval over prompts.

    Both answered the same prompts; None for fewer than two of them. Linearised, by the jackknife's first order.
    """
    value, parts = 0.0, defaultdict[str, float](float)
    for rows, sign in ((new, 1.0), (over, -1.0)):
        drafted = sum(row.drafted for row in rows)
        if not drafted:
            return None
        accepted_share = sum(row.accepted for row in rows) / drafted
        value += sign * accepted_share
        for row in rows:
            parts[row.prompt] += sign * (row.accepted - accepted_share * row.drafted) / drafted
    count = len(parts)
    if count < 2:
        return None
    variance = count / (count - 1) * math.fsum(part**2 for part in parts.values())
    half = quantile(0.5 + CONFIDENCE / 2, freedom=count - 1) * math.sqrt(variance)
    return Estimate(value, value - half, value + half, count, "95 %, Student's t over prompts")


PAYS_ABOVE = 1.03
COSTS_BELOW = 0.97
CERTAINTY = 0.995
"""PAYS and COSTS also need this interval to leave out 1, so that equal variants get one in 1 of 100 cells at most."""
MOST_LAUNCHES = 20
_MOST = 100
"""More than so many times the work is not advised."""


def verdict(estimate: LogEstimate, *, quick: bool = False) -> Verdict:
    """Returns whether one variant is faster than another, by the ratio of their rates.

    `quick`: whether it was measured with few prompts on purpose.
    """
    low, high = estimate.bounds()
    if low >= COSTS_BELOW and high <= PAYS_ABOVE:
        inside = f"the interval lies between {COSTS_BELOW} and {PAYS_ABOVE}"
        return Verdict(NO_DIFFERENCE, "bad", inside)
    surely_low, surely_high = estimate.bounds(CERTAINTY)
    if low > PAYS_ABOVE and surely_low > 1:
        return Verdict(PAYS, "good", f"the interval lies above {PAYS_ABOVE}")
    if high < COSTS_BELOW and surely_high < 1:
        return Verdict(COSTS, "bad", f"the interval lies below {COSTS_BELOW}")
    wide = ""
    if low > PAYS_ABOVE or high < COSTS_BELOW:
        wide = f"the 99.5 % interval is {surely_low:.2f}-{surely_high:.2f}; "
    return Verdict(INCONCLUSIVE, "open", f"{wide}it needs {needed(estimate, quick=quick)}")


def needed(estimate: LogEstimate, *, quick: bool = False) -> str:
    """Returns what would decide an INCONCLUSIVE cell if the value stayed as it is, in one clause.

    `quick`: whether it was measured with few prompts on purpose.
    """
    if not math.isfinite(estimate.error):
        return "more than one block"
    factor = _factor(estimate)
    if factor > _MOST:
        return "too many blocks to be worth it: the speedup is too close to a limit, or varies too much"
    # shares of the variance: the rest may be 1 / factor; blocks lower the last, launches the last two
    prompts, launches = estimate.prompt_share, estimate.launch_share
    blocks, rest = max(0.0, 1.0 - prompts - launches), 1.0 / factor
    if prompts > 0.5 or prompts >= rest:
        less = "without --quick" if quick else "with a larger file (-w FILE)"
        return f"{_more(estimate.prompts, factor, 'prompt')}: run again {less}"
    if launches > blocks or prompts + launches >= rest:
        times = (launches + blocks) / (rest - prompts)
        count = math.ceil(estimate.launches * times)
        if count > MOST_LAUNCHES:
            return "too many launches to be worth it: the speedup is too close to a limit"
        return f"{_more(estimate.launches, times, 'launch')}: run again with --launches {count}"
    times = blocks / (rest - prompts - launches)
    if times > _MOST:
        return "too many blocks to be worth it: the speedup is too close to a limit, or varies too much"
    in_launch = math.ceil(estimate.blocks * times / estimate.launches)
    return f"{_more(estimate.blocks, times, 'block')}: run again with --blocks {in_launch}"


def _more(count: int, times: float, what: str) -> str:
    """Returns `about 3 more blocks`."""
    more = max(1, math.ceil(count * times) - count)
    return f"about {more} more {what}{'' if more == 1 else 'es' if what == 'launch' else 's'}"


def _factor(estimate: LogEstimate) -> float:
    """Returns how many times as much would decide it, infinity if nothing would: the width goes with the root."""
    pays, costs = math.log(PAYS_ABOVE), math.log(COSTS_BELOW)
    beyond = max(estimate.log - pays, costs - estimate.log)
    if not beyond:
        return math.inf
    wanted = [(abs(beyond), CONFIDENCE)]
    if beyond > 0:
        wanted.append((abs(estimate.log), CERTAINTY))
    return max((estimate.half(confidence) / room) ** 2 for room, confidence in wanted)
