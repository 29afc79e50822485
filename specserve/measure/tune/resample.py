"""Intervals by drawing requests anew: steps of one request are alike, and so are answers to one prompt. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from specserve.measure.bench.result import Interval
from specserve.measure.tune.walk import Steps

T = TypeVar("T")
TIMES = 1000
_SEED = 20260101


def interval(
    items: Sequence[T], *, of: Callable[[Sequence[T]], float | None], times: int = TIMES
) -> Interval | None:
    """A figure of all items with the bounds that hold it in 95 of 100 draws (cluster bootstrap).

    The same items give the same bounds. None where the figure is not there for all items.
    """
    value = of(items)
    if value is None:
        return None
    if len(items) < 2:
        return Interval(value, 0.0, float("inf"))
    draw = random.Random(_SEED)  # noqa: S311 - statistics, not secrets
    found = []
    for _ in range(times):
        drawn = of(draw.choices(items, k=len(items)))
        if drawn is not None:
            found.append(drawn)
    found.sort()
    return Interval(value, found[int(0.025 * (len(found) - 1))], found[-1 - int(0.025 * (len(found) - 1))])


def length_interval(requests: Sequence[Steps], *, tokens: int, times: int = TIMES) -> Interval | None:
    """Of the mean acceptance length with so many draft tokens; prompts are drawn, with all their copies."""
    counted: dict[str, tuple[int, int]] = {}
    for index, each in enumerate(requests):
        if each.tokens:
            name = each.prompt or f"#{index}"
            made, steps = counted.get(name, (0, 0))
            counted[name] = made + each.tokens, steps + each.steps_with(tokens)
    return interval(list(counted.values()), of=_ratio, times=times)


def _ratio(pairs: Sequence[tuple[int, int]]) -> float | None:
    below = sum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / below if below else None
