"""Whether sampled tokens follow the target's distribution: a martingale, clustered by request. Pure.

For a token drawn from the target's own distribution, 1[best] - p(best) has mean 0 whatever came before, and so has the
score of the temperature. Knows nothing of servers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from specserve.measure.verify.known import known
from specserve.measure.verify.result import CONFIDENCE, Estimate, Sampled, Sampling, Verdict
from specserve.measure.verify.scored import Position

MARGIN_POINTS = 1.5
"""A deviation of the best token's share, in percentage points: inside it is LOSSLESS, outside LOSSY."""
HOT_PERCENT = 1.0
"""A temperature that is off by more, with the whole interval, is LOSSY."""
COOL_PERCENT = 5.0
"""A temperature that may be off by more leaves it open."""
LOOK_CONFIDENCE = 0.9995
"""For LOSSY before the end: the figures are looked at more than once."""
STRAY_CHANCE = 1e-4
"""Tokens that should not be there are LOSSY where they are this improbable."""
_STRAY_SLACK = 1.5
"""Decode and prefill round differently: so many times as many tokens beyond the known ones are allowed for."""
MOST_NEEDED = 1_000_000
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
    seen: int = 0
    """Tokens of which it is known how many may be beyond the known ones."""
    outside: int = 0
    outside_expected: float = 0.0


def tally(positions: Sequence[Position], sampling: Sampling) -> Tally:
    """One answer, from its first token on."""
    counts: Counter[int] = Counter()
    tokens = skipped = seen = outside = 0
    excess = variance = heat = information = expected = 0.0
    for position in positions:
        here = known(position, sampling, counts)
        counts[position.token] += 1
        if here is None:
            skipped += 1
            continue
        if here.beyond is not None:
            seen += 1
            outside += position.token not in here.tokens
            expected += here.beyond
        if position.token not in here.tokens:
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
    return Tally(tokens, skipped, excess, variance, heat, information, seen, outside, expected)


def is_cut(sampling: Sampling) -> bool:
    """Whether top-p or top-k leave few tokens: those say little of the temperature, and it moves the cut too."""
    return sampling.top_p < 1 or sampling.top_k > 0


def judge(tallies: Sequence[Tally], sampling: Sampling, *, is_last: bool = True) -> Sampled:
    """The verdict on the requests so far. `is_last`: no more tokens will come."""
    used = [item for item in tallies if item.tokens]
    tokens = sum(item.tokens for item in used)
    variance = math.fsum(item.variance for item in used)
    information = math.fsum(item.information for item in used)
    excess = math.fsum(item.excess for item in used)
    outside = sum(item.outside for item in tallies)
    expected = math.fsum(item.outside_expected for item in tallies)
    points, points_error = _ratio(
        [(100 * item.excess, item.tokens) for item in used], model=100 * math.sqrt(variance)
    )
    heat, heat_error = _ratio(
        [(100 * item.heat, item.information) for item in used], model=100 * math.sqrt(information)
    )
    quantile = _quantile(CONFIDENCE, len(used) - 1)
    strict = quantile if is_last else _quantile(LOOK_CONFIDENCE, len(used) - 1)
    reasons = _reasons((points, points_error), (heat, heat_error), strict, _chance(outside, expected))
    verdict: Verdict = Verdict.LOSSY
    needed: int | None = 0
    if not reasons:
        verdict, needed = _open(
            (points, points_error),
            None if is_cut(sampling) else (heat, heat_error),
            quantile,
            tokens=tokens,
            requests=len(used),
        )
    return Sampled(
        sampling=sampling,
        verdict=verdict,
        requests=len(tallies),
        tokens=tokens,
        skipped=sum(item.skipped for item in tallies),
        z=excess / math.sqrt(variance) if variance else 0.0,
        deviation_points=_interval(points, points_error, quantile),
        temperature_error_percent=_interval(heat, heat_error, quantile),
        outside=outside,
        outside_expected=expected,
        tokens_needed=needed,
        reasons=reasons,
    )


def _ratio(pairs: Iterable[tuple[float, float]], *, model: float) -> tuple[float, float]:
    """Sum over sum, with its standard error: the larger of the one that requests show and the one of the model."""
    pairs = list(pairs)
    below = math.fsum(b for _, b in pairs)
    if below <= 0:
        return 0.0, math.inf
    ratio = math.fsum(a for a, _ in pairs) / below
    spread = math.fsum((a - ratio * b) ** 2 for a, b in pairs)
    clustered = math.sqrt(spread * len(pairs) / (len(pairs) - 1)) if len(pairs) > 1 else math.inf
    return ratio, max(clustered, model) / below


def _interval(value: float, error: float, quantile: float) -> Estimate:
    return Estimate(value, value - quantile * error, value + quantile * error)


def _reasons(
    points: tuple[float, float], heat: tuple[float, float], quantile: float, chance: float
) -> tuple[str, ...]:
    """What shows that the tokens are not drawn as they should be."""
    found = []
    if abs(points[0]) - quantile * points[1] > MARGIN_POINTS:
        often = "too often" if points[0] > 0 else "too seldom"
        found.append(f"the best token comes {often}")
    if abs(heat[0]) - quantile * heat[1] > HOT_PERCENT:
        found.append(f"the tokens are drawn {'hotter' if heat[0] > 0 else 'colder'} than asked")
    if chance < STRAY_CHANCE:
        found.append("tokens come that the target all but rules out")
    return tuple(found)


def _open(
    points: tuple[float, float],
    heat: tuple[float, float] | None,
    quantile: float,
    *,
    tokens: int,
    requests: int,
) -> tuple[Verdict, int | None]:
    """LOSSLESS, or how many more tokens would decide it."""
    needed = [
        _needed(points, quantile, tokens, inside=MARGIN_POINTS, outside=MARGIN_POINTS),
    ]
    if heat is not None:
        needed.append(_needed(heat, quantile, tokens, inside=COOL_PERCENT, outside=HOT_PERCENT))
    if not tokens or requests < _FEWEST_REQUESTS:
        needed.append(max(100, tokens))
    if all(item == 0 for item in needed):
        return Verdict.LOSSLESS, 0
    if None in needed:
        return Verdict.INCONCLUSIVE, None
    return Verdict.INCONCLUSIVE, max(item for item in needed if item is not None)


def _needed(
    estimate: tuple[float, float], quantile: float, tokens: int, *, inside: float, outside: float
) -> int | None:
    """How many more tokens bring the interval inside one margin or outside of the other, if the value stays."""
    value, error = abs(estimate[0]), estimate[1]
    if value + quantile * error < inside:
        return 0
    if not math.isfinite(error):
        return 1000
    rooms = [room for room in (inside - value, value - outside) if room > 0]
    if not rooms:
        return None
    more = tokens * ((quantile * error / max(rooms)) ** 2 - 1)
    return None if more > MOST_NEEDED else max(100, _rounded_up(more))


def _rounded_up(count: float) -> int:
    """To two digits: it is an estimate."""
    step = 10 ** max(0, int(math.log10(max(count, 1))) - 1)
    return int(math.ceil(count / step) * step)


def _chance(outside: int, expected: float) -> float:
    """At most this is the chance of so many tokens beyond the known ones (Chernoff; it holds for martingales)."""
    allowed = _STRAY_SLACK * expected + 0.5
    if outside <= allowed:
        return 1.0
    return math.exp(outside - allowed - outside * math.log(outside / allowed))


def _quantile(confidence: float, degrees: int) -> float:
    """Of Student's distribution, two-sided (Cornish-Fisher; within 1 % from 10 degrees on)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    if degrees < 1:
        return math.inf
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
