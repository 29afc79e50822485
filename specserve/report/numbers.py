"""Figures as short words: rates, shares, intervals, durations, plurals."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specserve.measure.bench.result import Interval, Quantiles

NONE = "-"
GIB, MIB = 1 << 30, 1 << 20


def count(number: int, word: str) -> str:
    """Returns `1 model`, `2 models`, `1,204 tokens`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def rate(value: float | None) -> str:
    """Returns three digits or more: `4.21`, `82.6`, `1,204`."""
    if value is None or not math.isfinite(value):
        return NONE
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 999.95 else 0
    return f"{value:,.{digits}f}"


def number(value: float | None, digits: int = 2) -> str:
    """Returns the value with that many decimals."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Returns a share of 1 as `65 %`."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def spread(interval: Interval | None, digits: int = 2) -> str:
    """Returns the bounds, `2.08-2.25`; `2.08 or more` if too little was measured for an upper one."""
    if interval is None:
        return NONE
    low = number(interval.low, digits)
    return f"{low}-{number(interval.high, digits)}" if math.isfinite(interval.high) else f"{low} or more"


def with_spread(interval: Interval | None, digits: int = 2, unit: str = "") -> str:
    """Returns the value and its bounds, `2.17 (2.08-2.25)`."""
    return f"{number(interval.value, digits)}{unit} ({spread(interval, digits)})" if interval else NONE


def low_to_high(low: str, high: str, *, between: str = "-") -> str:
    """Returns both ends of a range, or one if they read the same."""
    return low if low == high else f"{low}{between}{high}"


def quantiles_words(quantiles: Quantiles | None, *, divisor: float = 1) -> str:
    """Returns P50, P90 and P99, `26.2/28.8/31.5`."""
    if quantiles is None:
        return NONE
    return "/".join(rate(value / divisor) for value in (quantiles.p50, quantiles.p90, quantiles.p99))


def gib(size_bytes: float) -> str:
    """Returns bytes in GiB, without the unit."""
    return f"{size_bytes / GIB:.2f}"


def took(duration_s: float) -> str:
    """Returns the length of a run: `42 s`, `12 min`, `3 h 07 min`."""
    if not math.isfinite(duration_s):
        return NONE
    whole = max(0, round(duration_s))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def duration(seconds: float) -> str:
    """Returns how long something took: `3.1s`, `41s`, `2m05s`, `3h07m`, `5d02h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def moment(created: str) -> str:
    """Returns `2026-11-21 12:00 UTC`; a day, or a text that is not a time, as it is."""
    if len(created) <= len("2026-11-21"):
        return created
    try:
        return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created
