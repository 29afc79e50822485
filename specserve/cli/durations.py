"""Times as people write them on a command line: `90`, `90s`, `5m`, `1h`. Knows no option by name."""

from __future__ import annotations

import re

from specserve.errors import UsageError

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str, *, option: str, least_s: float, most_s: float = 365 * 86400.0) -> float:
    """The time in seconds. Raises UsageError where it is none, or not within the limits."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|[smhd]?)", text.strip())
    if found is None:
        raise UsageError(f"`{option}` is no time: {text!r}", hint="such as 30s, 5m, 1h")
    value = float(found[1]) * _UNITS[found[2]]
    if not least_s <= value <= most_s:
        most = f"{most_s / 86400:g} days" if most_s >= 86400 else f"{most_s:g} s"
        raise UsageError(f"`{option}` is {text}, and must be {least_s:g} s to {most}")
    return value
