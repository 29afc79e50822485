"""Intervals and verdicts: what repeated measurements say of a rate or a ratio, and how surely."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from statistics import pvariance
from typing import Any, Literal, NamedTuple

from specserve.errors import FactError
from specserve.profile.schema import Expectation, Profile

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
    return _rates((variant, 1.0), (against, -1.0), between_launches=between)


def rate(samples: Sequence[RateSample]) -> LogEstimate | None:
    """Return one rate, all amounts over all costs; None if it is not positive."""
    return _rates((samples, 1.0), between_launches=0.0)


def quantile_ratio(
    variant: Sequence[RateSample],
    *,
    against: Sequence[RateSample],
    at: float,
    between: float = 0.0,
) -> LogEstimate | None:
    """Return a quantile of the costs of `against` over that of `variant`; None without costs.

    The wider of two errors counts. By ranks (Woodruff, 1952): what each value does to a quantile
    follows from the quantile's own interval; values are alike within prompts and blocks, as in
    `ratio`. And by leaving out each block: if both servers rank their answers alike, ranks hide how
    far these move. Bounds are infinite if a side has too few values for an interval by ranks.
    """
    sides = ((variant, -1.0), (against, 1.0))
    blocks = {(each.launch, each.block) for samples, _ in sides for each in samples}

    def log_ratio(left_out: object = None) -> float:
        return sum(
            # an answer in one piece takes no time for each token
            sign * math.log(max(quantile(costs, at), 1e-6))
            for samples, sign in sides
            if (costs := [s.cost for s in samples if (s.launch, s.block) != left_out])
        )

    parts, is_bounded = list[_Part](), len(blocks) > 1
    for samples, sign in sides:
        if not samples:
            return None
        costs, count = sorted(max(each.cost, 1e-6) for each in samples), len(samples)
        value, (low, high) = quantile(costs, at), quantile_ranks(count, at)
        is_bounded = is_bounded and high <= count
        slope = math.log(costs[min(high, count) - 1] / costs[low - 1]) / (high - low)
        for each in samples:
            parts.append(_Part(each, sign * slope * (at - (each.cost <= value)), 1 / count))
    found = _estimate(log_ratio(), parts, between_launches=between)
    if not is_bounded:
        return replace(found, error=math.inf)
    freedom = len(blocks) - 1
    left_out = freedom * pvariance(map(log_ratio, blocks)) + between / found.launches
    error = max(found.error, math.sqrt(left_out))
    return replace(found, error=error, freedom=min(found.freedom, freedom))


class _Part(NamedTuple):
    """A sample, what it does to the logarithm, and how much of the sum it is."""

    sample: RateSample
    influence: float
    weight: float


def _rates(
    *sides: tuple[Sequence[RateSample], float], between_launches: float
) -> LogEstimate | None:
    """Return the sum of the logarithms of the sides' rates, each with its sign."""
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
    return _estimate(log, parts, between_launches=between_launches)


def _estimate(log: float, parts: Sequence[_Part], *, between_launches: float) -> LogEstimate:
    """Return the logarithm with its error.

    Parts are alike within prompts and within blocks. A block is a pair: the same requests to both
    variants. What a launch adds is known, not estimated: two would leave one degree of freedom.
    """
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
PAYS_ABOVE = 1.03
COSTS_BELOW = 0.97
CERTAINTY = 0.995
"""PAYS and COSTS also need this interval to leave out 1: equal variants get one in 1 of 100 cells
at most."""
MAX_LAUNCHES = 20
_MAX_TIMES = 100
"""More than so many times the work is not advised."""


def verdict(estimate: LogEstimate) -> Verdict:
    """Return whether one variant is faster than another, by the ratio of their rates."""
    low, high = estimate.bounds()
    if low >= COSTS_BELOW and high <= PAYS_ABOVE:
        inside = f"the interval lies between {COSTS_BELOW} and {PAYS_ABOVE}"
        return Verdict(NO_DIFFERENCE, "bad", inside)
    surely_low, surely_high = estimate.bounds(CERTAINTY)
    if low > PAYS_ABOVE and surely_low > 1:
        return Verdict(PAYS, "good", f"the interval lies above {PAYS_ABOVE}")
    if high < COSTS_BELOW and surely_high < 1:
        return Verdict(COSTS, "bad", f"the interval lies below {COSTS_BELOW}")
    if low > PAYS_ABOVE or high < COSTS_BELOW:
        sentence = f"the 99.5 % interval is {surely_low:.2f}-{surely_high:.2f}"
    else:
        limits = [str(limit) for limit in (COSTS_BELOW, PAYS_ABOVE) if low <= limit <= high]
        sentence = f"the interval reaches across {' and '.join(limits)}"
    return Verdict(INCONCLUSIVE, "open", sentence)


def needed(estimate: LogEstimate) -> tuple[str, int]:
    """Return what would decide an INCONCLUSIVE comparison if its value stayed, and how much more.

    By what its variance comes from: more `blocks`, `launches` or `prompts`; `nothing` if it is too
    close to a limit, or varies too much.
    """
    if not math.isfinite(estimate.error):
        return "blocks", 1
    # shares of the variance: the rest may be 1 / factor; blocks lower the last, launches two
    factor = _factor(estimate)
    prompts, launches, rest = estimate.prompt_share, estimate.launch_share, 1.0 / factor
    blocks = max(0.0, 1.0 - prompts - launches)
    if prompts > 0.5 or prompts >= rest:
        what, count, times = "prompts", estimate.prompts, factor
    elif launches > blocks or prompts + launches >= rest:
        what, count, times = "launches", estimate.launches, (launches + blocks) / (rest - prompts)
    else:
        what, count, times = "blocks", estimate.blocks, blocks / (rest - prompts - launches)
    if max(factor, times) > _MAX_TIMES:
        return "nothing", 0
    more = max(1, math.ceil(count * times) - count)
    if what == "launches" and count + more > MAX_LAUNCHES:
        return "nothing", 0
    return what, more


def _factor(estimate: LogEstimate) -> float:
    """Return how many times as much would decide it: the width goes with the root."""
    pays, costs = math.log(PAYS_ABOVE), math.log(COSTS_BELOW)
    beyond = max(estimate.log - pays, costs - estimate.log)
    if not beyond:
        return math.inf
    wanted = [(abs(beyond), CONFIDENCE)]
    if beyond > 0:
        wanted.append((abs(estimate.log), CERTAINTY))
    return max((estimate.half(confidence) / room) ** 2 for room, confidence in wanted)


KEYS = tuple(name for name in Expectation.__annotations__ if name.startswith(("min_", "max_")))


class Kept(StrEnum):
    """What became of a limit: kept or missed by its whole interval."""

    KEPT = "kept"
    MISSED = "missed"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    """It is for another operating point, or nothing measures it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One number of a promise; times in milliseconds."""

    key: str
    promised: float
    place: str
    """`profile.yaml:5:3`."""
    why_not: str | None = None
    """Why it does not hold at the operating point; None if it does."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A limit, what was measured of it, and what that says."""

    limit: Limit
    kept: Kept
    measured: Estimate | None = None
    why: str | None = None
    """Why it is not decided, in one clause."""


def limits(
    profile: Profile, workload: str | None, temperature: float | None, load: float | None
) -> Iterator[Limit]:
    """Yield every limit of a profile, also those that do not hold at this point.

    A workload, temperature or load of None is not known, and matches no promise that names it.
    """
    for index, promise in enumerate(profile.expect):
        reason, most = None, promise.concurrency
        if promise.workload not in (None, workload):
            reason = f"the promise is for the workload `{promise.workload}`"
        elif promise.temperature not in (None, temperature):
            reason = f"the promise is for temperature {promise.temperature:g}"
        elif most is not None and (load is None or load > most + 0.5):
            running = "an unknown number of" if load is None else f"{load:.0f}"
            reason = f"{running} requests run in parallel, and the promise is for {most}"
        for key in KEYS:
            if (promised := getattr(promise, key)) is not None:
                place = str(profile.span(f"expect[{index}].{key}"))
                yield Limit(key, float(promised), place, reason)


def judge(limit: Limit, measured: Estimate | None) -> Judged:
    """Hold a limit against the interval of its figure, if it holds at its point."""
    if limit.why_not is not None:
        return Judged(limit, Kept.NOT_JUDGED, measured, limit.why_not)
    if measured is None:
        return Judged(limit, Kept.UNDECIDED, None, "there are too few requests for an interval")
    is_most = limit.key.startswith("max_")
    if measured.high <= limit.promised if is_most else measured.low >= limit.promised:
        return Judged(limit, Kept.KEPT, measured)
    if measured.low > limit.promised if is_most else measured.high < limit.promised:
        return Judged(limit, Kept.MISSED, measured)
    why = "the promise is inside the interval"
    if math.isinf(measured.high):
        why = "there are too few requests for a P99"
    return Judged(limit, Kept.UNDECIDED, measured, why)
