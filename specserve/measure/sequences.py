"""Confidence sequences: intervals that hold at all looks together, so that one may look often and stop at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_EFFECT = 1.0
"""Differences that are found fastest, in standard deviations of a block; others take a little longer."""
_RARE = (0.5, 49.5)
"""Prior of a share of errors, as a beta distribution: about 1 %. It changes the width, not the validity."""


@dataclass(frozen=True, slots=True)
class BoundedDifference:
    """A difference and the bounds of its confidence sequence; infinite while there is too little to bound it."""

    value: float
    low: float
    high: float


class PairedDifference:
    """The difference of two ratios of sums, second minus first, from blocks of time that both sides share.

    Each block compares both sides over the same minutes (Mantel and Haenszel's weights), so what changes for both sides
    alike, such as the traffic of the day, neither shifts nor widens the difference. Blocks are the sample: tokens of a
    request are correlated.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._whole = _joined(())

    def add(self, first: tuple[float, float], second: tuple[float, float]) -> None:
        """Add one block: numerator and denominator of each side. A block without a denominator says nothing."""
        (upper, lower), (other_upper, other_lower) = first, second
        if lower <= 0 or other_lower <= 0:
            return
        weight = lower * other_lower / (lower + other_lower)
        part = _Part(weight, weight * upper / lower, weight * other_upper / other_lower)
        self._parts.append(part)
        self._whole = _joined((self._whole, part))
        if len(self._parts) > _MOST_PARTS:  # neighbours as one: memory does not grow
            self._parts = [_joined(self._parts[at : at + 2]) for at in range(0, len(self._parts), 2)]

    @property
    def ratios(self) -> tuple[float, float]:
        """Both ratios over the blocks, each block with the same weight on both sides; 0 without a block."""
        weight = self._whole.weight or 1.0
        return self._whole.first / weight, self._whole.second / weight

    def interval(self, *, error: float, least_variance: float = 0.0) -> BoundedDifference | None:
        """Return the difference and an interval that at no look leaves out the true one, but for a share `error`.

        `least_variance` is the variance of the difference that cannot be undercut, such as that of independent tokens.
        None before the first block; infinite if there are too few blocks.
        """
        if not self._parts:
            return None
        whole = self._whole
        value = (whole.second - whole.first) / whole.weight
        # blocks of unequal weight are as good as fewer equal ones
        count = whole.weight**2 / sum(part.weight**2 for part in self._parts)
        if count <= 1 + 1e-9:
            return BoundedDifference(value, -math.inf, math.inf)
        residuals = [part.second - part.first - value * part.weight for part in self._parts]
        alone = sum(each**2 for each in residuals) * count / (count - 1)
        variance = max(alone, _correlated(residuals, alone))
        # blocks that are alike are as good as fewer independent ones
        alike = count * alone / variance if variance else count
        half = standard_errors(max(alike, min(count, _LEAST_GROUPS)), error=error)
        if math.isfinite(half):
            half *= math.sqrt(max(variance / whole.weight**2, least_variance))
        return BoundedDifference(value, value - half, value + half)


_MOST_PARTS = 256
_LEAST_GROUPS = 8


class _Part(NamedTuple):
    """One block: its weight, and the weight times the ratio of each side."""

    weight: float
    first: float
    second: float


def _joined(parts: Sequence[_Part]) -> _Part:
    return _Part(
        sum(part.weight for part in parts),
        sum(part.first for part in parts),
        sum(part.second for part in parts),
    )


def _correlated(residuals: Sequence[float], alone: float) -> float:
    """Return the variance of the sum if neighbours are alike: the largest over groups of 2, 4, 8, … blocks.

    Requests run on into the next block, and a load that only one server has lasts for several blocks.
    """
    most = alone + 2 * sum(one * other for one, other in pairwise(residuals))
    groups = list(residuals)
    while len(groups) >= 2 * _LEAST_GROUPS:
        if len(groups) % 2:
            groups.append(0.0)
        groups = [one + other for one, other in zip(groups[::2], groups[1::2], strict=True)]
        most = max(most, sum(each**2 for each in groups) * len(groups) / (len(groups) - 1))
    return most


def standard_errors(count: float, *, error: float) -> float:
    """Return how many standard errors the mean of `count` normal values is off at most, at all looks together.

    It is infinite if there are too few values. The bound inverts a test martingale: the Bayes factor of the t statistic
    for a normal prior of the effect size, which does not depend on the unknown variance (Gönen, Johnson, Lu, Westfall
    2005; as a confidence sequence: Wang and Ramdas, arXiv:2310.03722). For many values it becomes the asymptotic
    confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (arXiv:2103.06476), which needs no normality.
    """
    if count <= 1:
        return math.inf
    spread = 1 + count * _EFFECT**2
    power = (math.sqrt(spread) / error) ** (2 / count)
    if power >= spread:
        return math.inf
    return math.sqrt((count - 1) * (power - 1) / (1 - power / spread))


def share_bounds(count: int, *, of: int, error: float) -> tuple[float, float]:
    """Return the bounds of a probability of which `count` in `of` independent trials came true, valid at all looks.

    They are exact, also for rare events: the beta-binomial mixture martingale (Robbins 1970) against each probability.
    """
    if of == 0:
        return 0.0, 1.0
    mixture = _log_beta(_RARE[0] + count, _RARE[1] + of - count) - _log_beta(*_RARE)
    limit = -math.log(error)

    def is_refuted(share: float) -> bool:
        likelihood = count * math.log(share) if count else 0.0
        likelihood += (of - count) * math.log1p(-share) if count < of else 0.0
        return mixture - likelihood >= limit

    def edge(refuted: float, kept: float) -> float:
        for _ in range(40):
            middle = (refuted + kept) / 2
            refuted, kept = (middle, kept) if is_refuted(middle) else (refuted, middle)
        return refuted

    return edge(0.0, count / of) if count else 0.0, edge(1.0, count / of) if count < of else 1.0


def share_difference(
    first: tuple[int, int], second: tuple[int, int], *, error: float
) -> BoundedDifference | None:
    """Return the second probability minus the first, each given as a count and its trials; None without any."""
    if not first[1] or not second[1]:
        return None
    low, high = share_bounds(first[0], of=first[1], error=error / 2)
    other_low, other_high = share_bounds(second[0], of=second[1], error=error / 2)
    return BoundedDifference(second[0] / second[1] - first[0] / first[1], other_low - high, other_high - low)


def _log_beta(one: float, other: float) -> float:
    return math.lgamma(one) + math.lgamma(other) - math.lgamma(one + other)
