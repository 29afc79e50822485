"""Whether sampled tokens follow the target's distribution: a martingale, clustered by request. Pure.

For a token drawn from the target's own distribution, 1[best] - p(best) has mean 0 whatever came before, and so has the
score of the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

from specserve.measure import statistics
from specserve.measure.bench.result import Interval
from specserve.measure.verify.result import CONFIDENCE, Sampled, Sampling, VerifyVerdict
from specserve.measure.verify.session import Position

MOST_VOCABULARY = 1 << 18
"""More tokens than any vocabulary has: bounds what is beyond the known ones at temperatures above 1."""
_ROUNDING = 1e-5
"""Of the sum of twenty probabilities that came as float32 logarithms."""
_LOGITS = 1.01
"""A sum above it is none of probabilities: the server shows logits (vLLM's `logprobs_mode`)."""
NOISE = 0.01
"""A share this close to `top_p` may fall on either side: decode and prefill round differently."""
LEVELS = (0.0, -12.0, -18.0, -25.0)
"""Log-probabilities (nats, at temperature 1); a token that is not known is below the first in any case."""
NEAR = 0.25
"""Two scores this close (nats) may change places, for the same reason."""


MARGIN_POINTS = 1.5
"""A deviation of the best token's share, in percentage points: inside it is LOSSLESS, outside LOSSY."""
HOT_PERCENT = 1.0
"""A temperature that is off by more, with the whole interval, is LOSSY."""
COOL_PERCENT = 5.0
"""A temperature that may be off by more is not LOSSLESS."""
WIDEST_PERCENT = 50.0
"""An interval of the temperature that is wider says nothing: the estimate is of first order."""
LOOK_CONFIDENCE = 0.9995
"""For LOSSY before the end: the figures are looked at more than once."""
STRAY_CHANCE = 1e-4
"""Tokens that should not be there are LOSSY where they are this improbable."""
_STRAY_SLACK = 1.5
"""Decode and prefill round differently: so many times as many tokens beyond the known ones are allowed for."""
MOST_TOKENS = 20_000
"""Enough to see a temperature that is wrong by 5 %."""
_LOOK_EVERY = 500
_FIRST_GUESS = 8000
_FEWEST_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens with their log-weights at the temperature and their probabilities, given that it is one of them."""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    """Log-probabilities over temperature."""
    probabilities: tuple[float, ...]
    beyond: tuple[float, ...] | None
    """For each of LEVELS: the most that all other tokens below it can have together; None: nothing can be said."""


def known(position: Position, sampling: Sampling) -> Distribution | None:
    """Returns what is known of the distribution that this token was drawn from; None if the settings hide it.

    The order is vLLM's: temperature, top-k, top-p (vllm 0.32, v1/sample/rejection_sampler.py,
    `apply_sampling_constraints`).
    """
    scores = [logprob / sampling.temperature for _, logprob in position.top]
    weights = [math.exp(score - scores[0]) for score in scores]
    beyond = _beyond(position, sampling.temperature)
    if sampling.top_k:
        edge = _edge(scores, weights, sampling.top_k)
        if edge is None:
            return None
        weights, beyond = weights[: sampling.top_k], (edge,) * len(LEVELS)
    if sampling.top_p < 1.0:
        kept = _nucleus(weights, None if beyond is None else beyond[0], sampling.top_p)
        if kept is None:
            return None
        if kept < len(weights):
            weights, beyond = weights[:kept], (0.0,) * len(LEVELS)
    total = math.fsum(weights)
    return Distribution(
        tokens=tuple(token for token, _ in position.top[: len(weights)]),
        scores=tuple(scores[: len(weights)]),
        probabilities=tuple(weight / total for weight in weights),
        beyond=None if beyond is None else tuple(weight / (total + weight) for weight in beyond),
    )


def _edge(scores: list[float], weights: list[float], top_k: int) -> float | None:
    """Returns the weight that may stand beyond the `top_k` best; None if it is not clear which those are.

    They are clear if the last of them is well above all that follow, shown or not, or weighs next to nothing.
    """
    if top_k > len(scores):
        return None
    following = scores[min(top_k, len(scores) - 1)]
    if scores[top_k - 1] - following > NEAR:
        return 0.0
    last = weights[top_k - 1]
    return last if last < NOISE * math.fsum(weights[:top_k]) else None


def _beyond(position: Position, temperature: float) -> tuple[float, ...] | None:
    """Returns the most that all other tokens below each level weigh together, if the best one weighs 1.

    A token of probability p weighs p^s, with s = 1/T. For s >= 1 that is at most p * most^(s - 1) if none of them
    is likelier than `most`; for s < 1 the sum of N terms is at most N^(1 - s) * sum^s (Jensen).
    """
    seen = math.fsum(math.exp(logprob) for _, logprob in position.top)
    if seen > _LOGITS:
        return None
    rest = math.log(max(0.0, 1.0 - seen) + _ROUNDING)
    exponent, all_ = 1 / temperature, math.log(MOST_VOCABULARY)
    bounds = []
    for level in LEVELS:
        most = min(position.top[-1][1], level)
        total = min(rest, all_ + most)
        bound = total + most * (exponent - 1) if exponent >= 1 else all_ * (1 - exponent) + total * exponent
        bounds.append(math.exp(min(bound - position.top[0][1] * exponent, 50.0)))
    return tuple(bounds)


def _nucleus(weights: list[float], beyond: float | None, top_p: float) -> int | None:
    """Returns how many tokens top-p keeps: those before which less than `top_p` stands; None if that is not clear."""
    total, above = math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        surely_above = above / (total + beyond) if beyond is not None else 0.0
        if surely_above >= top_p + NOISE:
            return index
        if above / total > top_p - NOISE and index:
            return None
        above += weight
    return len(weights)


class Tally(NamedTuple):
    """Sums over one request, the unit of the interval: its tokens are not independent of each other."""

    tokens: int = 0
    skipped: int = 0
    excess: float = 0.0
    """Sum of 1[best] - p."""
    variance: float = 0.0
    """Sum of p (1 - p)."""
    heat: float = 0.0
    """Sum of E[score] - score: how much less likely the tokens were than they should be, in nats over temperature."""
    information: float = 0.0
    """Sum of Var[score]: the Fisher information of the logarithm of the temperature."""
    outside: tuple[int, ...] = (0,) * len(LEVELS)
    """Tokens that are not among the known ones, by the level below which they are."""
    outside_expected: tuple[float, ...] = (0.0,) * len(LEVELS)
    """How many there should be at most."""


def total(tallies: Sequence[Tally]) -> Tally:
    """Returns the sum of tallies."""
    columns = list(zip(*(tallies or [Tally()]), strict=True))
    levels = (tuple(map(sum, zip(*each, strict=True))) for each in columns[-2:])
    values: list[Any] = [*map(sum, columns[:-2]), *levels]
    return Tally(*values)


def tally(positions: Sequence[Position], sampling: Sampling) -> Tally:
    """Returns the tally of one answer, from its first token on."""
    return total([_tally(position, sampling) for position in positions])


def _tally(position: Position, sampling: Sampling) -> Tally:
    here = known(position, sampling)
    if here is None:
        return Tally(skipped=1)
    expected = here.beyond or (0.0,) * len(LEVELS)
    if position.token not in here.tokens:
        is_known = here.beyond is not None
        below = tuple(int(is_known and position.logprob < level) for level in LEVELS)
        return Tally(outside=below, outside_expected=expected)
    best, score = here.probabilities[0], here.scores[here.tokens.index(position.token)]
    weighted = list(zip(here.probabilities, here.scores, strict=True))
    mean = math.fsum(p * s for p, s in weighted)
    return Tally(
        tokens=1,
        excess=(position.token == here.tokens[0]) - best,
        variance=best * (1 - best),
        heat=mean - score,
        information=math.fsum(p * (s - mean) ** 2 for p, s in weighted),
        outside_expected=expected,
    )


@dataclass(slots=True)
class Collector:
    """Requests as they come, looked at every 500 tokens until there is a verdict."""

    sampling: Sampling
    most_tokens: int = MOST_TOKENS
    tallies: list[Tally] = field(default_factory=list)
    is_decided: bool = False
    _tokens: int = 0
    _looked_at: int = 0

    def add(self, one: Tally) -> None:
        """One more request; what comes after the verdict does not count."""
        if self.is_decided:
            return
        self.tallies.append(one)
        self._tokens += one.tokens
        if self._tokens - self._looked_at >= _LOOK_EVERY:
            self._looked_at = self._tokens
            verdict = judge(self.tallies, self.sampling, is_last=False).verdict
            is_sure = verdict in (VerifyVerdict.LOSSLESS, VerifyVerdict.LOSSY)
            self.is_decided = is_sure or self._tokens >= self.most_tokens

    def judged(self) -> Sampled:
        """Returns the verdict when no more will come."""
        return judge(self.tallies, self.sampling)


class _Ratio(NamedTuple):
    """A mean with its standard error and its degrees of freedom."""

    value: float
    error: float
    degrees: int

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Returns the value and the ends of its interval."""
        half = _quantile(confidence, self.degrees) * self.error
        return Interval(self.value, self.value - half, self.value + half)

    def is_beyond(self, limit: float, confidence: float) -> bool:
        """Returns whether the whole interval lies further from 0 than the limit."""
        found = self.interval(confidence)
        return found.low > limit or found.high < -limit

    def tokens_needed(self, tokens: int, *, inside: float) -> int:
        """Returns how many more tokens bring the interval inside, if nothing is wrong.

        The value falls with its error then.
        """
        if _end(self.interval()) < inside:
            return 0
        if not math.isfinite(self.error):
            return _FIRST_GUESS
        many = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # of many requests, which it takes by then
        count = max(100, tokens / 2, tokens * (((many + 1) * self.error / inside) ** 2 - 1))
        step = 10 ** max(0, int(math.log10(count)) - 1)  # two digits: it is an estimate
        return int(math.ceil(count / step) * step)


def judge(tallies: Sequence[Tally], sampling: Sampling, *, is_last: bool = True) -> Sampled:
    """Returns the verdict on the requests so far.

    `is_last`: no more tokens will come, and what is likely is said.
    """
    every, used = total(tallies), [item for item in tallies if item.tokens]
    points = _ratio([(100 * item.excess, item.tokens) for item in used], variance=every.variance)
    heat = _ratio([(100 * item.heat, item.information) for item in used], variance=every.information)
    strays = _strays(every)
    likely = _reasons(points, heat, CONFIDENCE) + strays
    reasons = likely if is_last else _reasons(points, heat, LOOK_CONFIDENCE) + strays
    # few tokens say little of the temperature, which moves the cut
    is_cut = sampling.top_p < 1 or sampling.top_k > 0
    needed = max(
        points.tokens_needed(every.tokens, inside=MARGIN_POINTS),
        0 if is_cut else heat.tokens_needed(every.tokens, inside=COOL_PERCENT),
        max(100, every.tokens) if len(used) < _FEWEST_REQUESTS else 0,
    )
    if likely:
        needed = 0 if reasons else max(needed, 100)
    deviation, temperature = points.interval(), heat.interval()
    is_bounded = math.isfinite(points.error) and not reasons
    verdict = VerifyVerdict.NO_FAULT_FOUND if needed else VerifyVerdict.LOSSLESS
    if not is_bounded:
        verdict = VerifyVerdict.LOSSY if reasons else VerifyVerdict.INCONCLUSIVE
    largest_points = _end(deviation) if is_bounded else math.inf
    largest_heat = _end(temperature) if is_bounded and not is_cut else math.inf
    return Sampled(
        sampling=sampling,
        verdict=verdict,
        requests=len(tallies),
        tokens=every.tokens,
        skipped=every.skipped,
        z=every.excess / math.sqrt(every.variance) if every.variance else 0.0,
        deviation_points=deviation,
        temperature_error_percent=temperature,
        outside=every.outside[0],
        outside_expected=every.outside_expected[0],
        tokens_needed=needed,
        excluded_points=largest_points if largest_points <= 100 else None,
        excluded_temperature_percent=largest_heat if largest_heat <= WIDEST_PERCENT else None,
        reasons=reasons,
    )


def _ratio(pairs: Sequence[tuple[float, float]], *, variance: float) -> _Ratio:
    """Returns sum over sum, with the larger of two standard errors: that of the requests and that of the model."""
    below, degrees = math.fsum(b for _, b in pairs), len(pairs) - 1
    if below <= 0:
        return _Ratio(0.0, math.inf, degrees)
    ratio = math.fsum(a for a, _ in pairs) / below
    spread = math.fsum((a - ratio * b) ** 2 for a, b in pairs)
    clustered = math.sqrt(spread * len(pairs) / degrees) if degrees else math.inf
    return _Ratio(ratio, max(clustered, 100 * math.sqrt(variance)) / below, degrees)


def _end(found: Interval) -> float:
    """Returns the end that is further from 0: what lies beyond it is excluded."""
    return max(abs(found.low), abs(found.high))


def _reasons(points: _Ratio, heat: _Ratio, confidence: float) -> tuple[str, ...]:
    """Returns what shows that the tokens are not sampled as they should be."""
    found = []
    if points.is_beyond(MARGIN_POINTS, confidence):
        often = "too often" if points.value > 0 else "too rarely"
        found.append(f"the most likely token is sampled {often}")
    if heat.is_beyond(HOT_PERCENT, confidence):
        higher = "higher" if heat.value > 0 else "lower"
        found.append(f"the tokens are sampled at a {higher} temperature than requested")
    return tuple(found)


def _strays(every: Tally) -> tuple[str, ...]:
    """Returns the first level below which far more tokens came than should."""
    for level, count, most in zip(LEVELS, every.outside, every.outside_expected, strict=True):
        if _chance(count, most) < STRAY_CHANCE:
            which = f"less likely than {math.exp(level):.0e}" if level else "outside the most likely ones"
            return (f"{count:,} sampled tokens are {which}; at most {most:,.1f} are expected",)
    return ()


def _chance(outside: int, expected: float) -> float:
    """Returns the most that the chance of so many stray tokens can be (Chernoff; it holds for martingales)."""
    allowed = _STRAY_SLACK * expected + 0.5
    if outside <= allowed:
        return 1.0
    return math.exp(outside - allowed - outside * math.log(outside / allowed))


def _quantile(confidence: float, degrees: int) -> float:
    """Returns that of Student's distribution, two-sided."""
    return statistics.quantile((1 + confidence) / 2, freedom=degrees) if degrees >= 1 else math.inf
