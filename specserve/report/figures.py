"""Measured figures as short text: as many digits as a reader can use. Knows no table."""

from __future__ import annotations

import math
from datetime import datetime

from specserve.measure.bench.result import Interval, Quantiles

NONE = "-"


def rate(value: float | None) -> str:
    """Tokens/s, requests/s: `4.21`, `82.6`, `1,204`."""
    return _digits(value)


def milliseconds(value: float | None) -> str:
    """`4.21`, `82.6`, `1,204`."""
    return _digits(value)


def seconds(value_ms: float | None) -> str:
    """Milliseconds as seconds."""
    return _digits(None if value_ms is None else value_ms / 1000)


def number(value: float | None, digits: int = 2) -> str:
    """With so many decimals."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A share of 1: `65 %`."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def spread(interval: Interval | None, digits: int = 2) -> str:
    """The bounds: `2.08-2.25`; `2.08 or more` where too little was measured for an upper one."""
    if interval is None:
        return NONE
    low = number(interval.low, digits)
    return f"{low}-{number(interval.high, digits)}" if math.isfinite(interval.high) else f"{low} or more"


def pair_ms(quantiles: Quantiles | None) -> str:
    """Median and 99th percentile."""
    return NONE if quantiles is None else f"{milliseconds(quantiles.p50)}/{milliseconds(quantiles.p99)}"


def pair_s(quantiles: Quantiles | None) -> str:
    """The same in seconds."""
    return NONE if quantiles is None else f"{seconds(quantiles.p50)}/{seconds(quantiles.p99)}"


def thirds(quantiles: Quantiles, *, divisor: float = 1) -> str:
    """P50, P90 and P99."""
    return " / ".join(_digits(value / divisor) for value in (quantiles.p50, quantiles.p90, quantiles.p99))


def took(duration_s: float) -> str:
    """`42 s`, `12 min`, `3 h 07 min`."""
    if not math.isfinite(duration_s):
        return NONE
    whole = max(0, round(duration_s))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(created: str) -> str:
    """`2026-11-21 12:00 UTC`; a day and a text that is no time stay as they are."""
    if len(created) <= len("2026-11-21"):
        return created
    try:
        return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


def _digits(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 999.95 else 0
    return f"{value:,.{digits}f}"
