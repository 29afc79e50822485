"""Values as people write them in an option: lists of numbers, times."""

from __future__ import annotations

import re
from typing import NamedTuple

from specserve.errors import UsageError


class AssumedSpeed(NamedTuple):
    """What the minutes of a dry run rest on before anything was measured, prefill included."""

    start_s: float
    """Of a server."""
    tokens_per_s: float
    """Of one request alone."""
    together: int
    """So many requests at once are as fast as each alone; more of them share that."""

    def seconds(self, tokens: float, concurrency: int) -> float:
        """Returns how long so many output tokens take."""
        return tokens / (self.tokens_per_s * min(concurrency, self.together))


ASSUMED_SPEEDS = {"cpu": AssumedSpeed(30.0, 16.0, 2), "cuda": AssumedSpeed(120.0, 60.0, 64)}
"""The CPU's: the demo on two cores, with and without speculation. CUDA's are assumed."""


def numbers(text: str | None, option: str, *, least: float, most: float) -> tuple[float, ...]:
    """The numbers, each once, in their order; none of None. Raises UsageError."""
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        example = "1,4,16" if most >= 16 >= least else "0,0.7"
        raise UsageError(
            f"`{option}` is not a list of numbers: {text!r}", hint=f"such as {example}"
        ) from None
    if not all(least <= value <= most for value in found):
        raise UsageError(f"`{option}` is {text}, but each value must be {least:g} to {most:g}")
    return tuple(dict.fromkeys(found))


def whole_numbers(text: str | None, option: str, *, least: int, most: int) -> tuple[int, ...]:
    """The same for whole numbers. Raises UsageError."""
    found = numbers(text, option, least=least, most=most)
    if any(value != int(value) for value in found):
        raise UsageError(f"`{option}` takes whole numbers", hint="such as 1,4,16")
    return tuple(int(value) for value in found)


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str, *, option: str, least_s: float) -> float:
    """The seconds of `90`, `20m` or `1.5h`. Raises UsageError for no time, or one out of range."""
    form = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|[smhd]?)", text.strip())
    if form is None:
        raise UsageError(f"`{option}` is not a time: {text!r}", hint="such as 30s, 5m, 1.5h")
    value = float(form[1]) * _UNITS[form[2]]
    if not least_s <= value <= 7 * _UNITS["d"]:
        raise UsageError(f"`{option}` is {text}, but it must be {least_s:g} s to 7 days")
    return value
