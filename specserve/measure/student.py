"""Student's t distribution, for as many degrees of freedom as are wanted. Pure."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


@lru_cache(maxsize=4096)
def quantile(probability: float, *, freedom: float) -> float:
    """The value below which a t variable lies with this probability. `freedom` may be a fraction, above 0.

    Raises ValueError outside of 0 to 1.
    """
    if not (0.0 < probability < 1.0 and freedom > 0.0):
        raise ValueError(f"no quantile at {probability} with {freedom} degrees of freedom")
    if probability < 0.5:
        return -quantile(1.0 - probability, freedom=freedom)
    low, high = 0.0, 1.0
    while cumulative(high, freedom=freedom) < probability:
        low, high = high, high * 2.0
        if high > 1e150:
            return math.inf
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if cumulative(middle, freedom=freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def cumulative(value: float, *, freedom: float) -> float:
    """The probability that a t variable is at most `value`."""
    square = value * value
    if square < freedom:  # near the middle the tail would lose half of its digits
        half = 0.5 * _beta(square / (freedom + square), 0.5, freedom / 2.0)
        return 0.5 + half if value >= 0 else 0.5 - half
    tail = 0.5 * _beta(freedom / (freedom + square), freedom / 2.0, 0.5)
    return 1.0 - tail if value >= 0 else tail


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Its continued fraction (Lentz), which converges fast below (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1.0 / _away(1.0 + even * d), _away(1.0 + even / c)
        result *= c * d
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1.0 / _away(1.0 + odd * d), _away(1.0 + odd / c)
        result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
