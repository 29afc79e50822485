"""Whether sampled tokens follow the target's distribution: a martingale, clustered by request. Pure.

For a token drawn from the target's own distribution, 1[best] - p(best) has mean 0 whatever came before, and so has the
score of the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

from specserve.measure import statistics
from specserve.measure.verify.result import CONFIDENCE, ErrorInterval, Sampled, Sampling, VerifyVerdict
from specserve.measure.verify.session import LEVELS, Position, known

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
class Tally:
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


def tally(positions: Sequence[Position], sampling: Sampling) -> Tally:
    """One answer, from its first token on."""
    tokens = skipped = 0
    excess = variance = heat = information = 0.0
    outside, expected = [0] * len(LEVELS), [0.0] * len(LEVELS)
    for position in positions:
        here = known(position, sampling)
        if here is None:
            skipped += 1
            continue
        is_outside = position.token not in here.tokens
        for index, share in enumerate(here.beyond or ()):
            outside[index] += is_outside and position.logprob < LEVELS[index]
            expected[index] += share
        if is_outside:
            continue
        tokens += 1
        best, score = here.probabilities[0], here.scores[here.tokens.index(position.token)]
        mean = math.fsum(p * s for p, s in zip(here.probabilities, here.scores, strict=True))
        excess += (position.token == here.tokens[0]) - best
        variance += best * (1 - best)
        heat += mean - score
        information += math.fsum(
            p * (s - mean) ** 2 for p, s in zip(here.probabilities, here.scores, strict=True)
        )
    return Tally(tokens, skipped, excess, variance, heat, information, tuple(outside), tuple(expected))


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
        """The verdict when no more will come."""
        return judge(self.tallies, self.sampling)


class _Ratio(NamedTuple):
    """A mean with its standard error."""

    value: float
    error: float

    def is_beyond(self, limit: float, quantile: float) -> bool:
        """Whether the whole interval lies further from 0 than the limit."""
        return abs(self.value) - quantile * self.error > limit

    def interval(self, quantile: float) -> ErrorInterval:
        """The value and the ends of its interval."""
        return ErrorInterval(
            self.value, self.value - quantile * self.error, self.value + quantile * self.error
        )


def judge(tallies: Sequence[Tally], sampling: Sampling, *, is_last: bool = True) -> Sampled:
    """The verdict on the requests so far. `is_last`: no more tokens will come, and what is likely is said."""
    used = [item for item in tallies if item.tokens]
    tokens = sum(item.tokens for item in used)
    variance = math.fsum(item.variance for item in used)
    information = math.fsum(item.information for item in used)
    outside = [sum(item.outside[level] for item in tallies) for level in range(len(LEVELS))]
    expected = [math.fsum(item.outside_expected[level] for item in tallies) for level in range(len(LEVELS))]
    points = _ratio([(100 * item.excess, item.tokens) for item in used], model=100 * math.sqrt(variance))
    heat = _ratio([(100 * item.heat, item.information) for item in used], model=100 * math.sqrt(information))
    quantile = _quantile(CONFIDENCE, len(used) - 1)
    strays = _strays(outside, expected)
    likely = _reasons(points, heat, quantile) + strays
    strict = _quantile(LOOK_CONFIDENCE, len(used) - 1)
    reasons = likely if is_last else _reasons(points, heat, strict) + strays
    # few tokens say little of the temperature, which moves the cut
    is_cut = sampling.top_p < 1 or sampling.top_k > 0
    needed = _tokens_needed(points, None if is_cut else heat, quantile, tokens=tokens, requests=len(used))
    if likely:
        needed = 0 if reasons else max(needed, 100)
    deviation, temperature = points.interval(quantile), heat.interval(quantile)
    is_measured = math.isfinite(points.error)
    is_bounded = is_measured and not reasons
    verdict = VerifyVerdict.NO_FAULT_FOUND if needed else VerifyVerdict.LOSSLESS
    if not is_bounded:
        verdict = VerifyVerdict.LOSSY if reasons else VerifyVerdict.INCONCLUSIVE
    return Sampled(
        sampling=sampling,
        verdict=verdict,
        requests=len(tallies),
        tokens=tokens,
        skipped=sum(item.skipped for item in tallies),
        z=math.fsum(item.excess for item in used) / math.sqrt(variance) if variance else 0.0,
        deviation_points=deviation,
        temperature_error_percent=temperature,
        outside=outside[0],
        outside_expected=expected[0],
        tokens_needed=needed,
        excluded_points=_largest(deviation, most=100.0) if is_bounded else None,
        excluded_temperature_percent=_largest(temperature, most=WIDEST_PERCENT)
        if is_bounded and not is_cut
        else None,
        reasons=reasons,
    )


def _ratio(pairs: Sequence[tuple[float, float]], *, model: float) -> _Ratio:
    """Sum over sum, with its standard error: the larger of the one that requests show and the one of the model."""
    below = math.fsum(b for _, b in pairs)
    if below <= 0:
        return _Ratio(0.0, math.inf)
    ratio = math.fsum(a for a, _ in pairs) / below
    spread = math.fsum((a - ratio * b) ** 2 for a, b in pairs)
    clustered = math.sqrt(spread * len(pairs) / (len(pairs) - 1)) if len(pairs) > 1 else math.inf
    return _Ratio(ratio, max(clustered, model) / below)


def _largest(estimate: ErrorInterval, *, most: float) -> float | None:
    """The end of the interval that is further from 0: what lies beyond it is excluded. None if that is over `most`."""
    end = max(abs(estimate.low), abs(estimate.high))
    return end if end <= most else None


def _reasons(points: _Ratio, heat: _Ratio, quantile: float) -> tuple[str, ...]:
    """What shows that the tokens are not sampled as they should be."""
    found = []
    if points.is_beyond(MARGIN_POINTS, quantile):
        often = "too often" if points.value > 0 else "too rarely"
        found.append(f"the most likely token is sampled {often}")
    if heat.is_beyond(HOT_PERCENT, quantile):
        higher = "higher" if heat.value > 0 else "lower"
        found.append(f"the tokens are sampled at a {higher} temperature than requested")
    return tuple(found)


def _strays(outside: Sequence[int], expected: Sequence[float]) -> tuple[str, ...]:
    """The first level below which far more tokens came than should."""
    for level, count, most in zip(LEVELS, outside, expected, strict=True):
        if _chance(count, most) < STRAY_CHANCE:
            which = f"less likely than {math.exp(level):.0e}" if level else "outside the most likely ones"
            return (f"{count:,} sampled tokens are {which}; at most {most:,.1f} are expected",)
    return ()


def _tokens_needed(
    points: _Ratio, heat: _Ratio | None, quantile: float, *, tokens: int, requests: int
) -> int:
    """How many more tokens LOSSLESS should take; 0 if the intervals are inside the margins."""
    needed = [_needed(points, quantile, tokens, inside=MARGIN_POINTS)]
    if heat is not None:
        needed.append(_needed(heat, quantile, tokens, inside=COOL_PERCENT))
    if requests < _FEWEST_REQUESTS:
        needed.append(max(100, tokens))
    return max(needed)


def _needed(ratio: _Ratio, quantile: float, tokens: int, *, inside: float) -> int:
    """How many more tokens bring the interval inside, if nothing is wrong: the value falls with its error then."""
    if abs(ratio.value) + quantile * ratio.error < inside:
        return 0
    if not math.isfinite(ratio.error):
        return _FIRST_GUESS
    many = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # of many requests, which it takes by then
    count = max(100, tokens / 2, tokens * (((many + 1) * ratio.error / inside) ** 2 - 1))
    step = 10 ** max(0, int(math.log10(count)) - 1)  # two digits: it is an estimate
    return int(math.ceil(count / step) * step)


def _chance(outside: int, expected: float) -> float:
    """At most this is the chance of so many tokens beyond the known ones (Chernoff; it holds for martingales)."""
    allowed = _STRAY_SLACK * expected + 0.5
    if outside <= allowed:
        return 1.0
    return math.exp(outside - allowed - outside * math.log(outside / allowed))


def _quantile(confidence: float, degrees: int) -> float:
    """Of Student's distribution, two-sided."""
    return statistics.quantile((1 + confidence) / 2, freedom=degrees) if degrees >= 1 else math.inf
