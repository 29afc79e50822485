"""A chart of speedups: their intervals by load or by K, as the places that the page draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specserve.measure.intervals import Estimate

LEFT, RIGHT, TOP, BOTTOM = 46, 370, 12, 196
"""The edges of the drawing area, in a picture of 380 by 236."""
_COLOURS = 5
_MOST = 1e6
"""What is larger is not drawn."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A line for each variant or load, its values by load or K; 1 is no difference."""

    title: str
    unit: str
    x_title: str
    values: Mapping[str, Mapping[str, Estimate]]

    @property
    def groups(self) -> list[str]:
        """Return all loads or K, rising."""
        return sorted({group for values in self.values.values() for group in values}, key=int)

    def lines(self) -> Iterator[tuple[str, int, list[tuple[str, Estimate]]]]:
        """Yield each line's name, its colour, and its values that have an interval."""
        for at, (name, values) in enumerate(self.values.items()):
            known = [(group, values[group]) for group in self.groups if group in values]
            shown = [
                (group, each)
                for group, each in known
                if max(map(abs, (each.value, each.low, each.high))) <= _MOST
            ]
            yield name, 1 + at % _COLOURS, shown

    def ticks(self) -> list[float]:
        """Return four to eight round numbers around every value."""
        shown = [value for _, _, values in self.lines() for _, value in values]
        low = min([0.9, *(value.low for value in shown)])
        high = max([1.1, *(value.high for value in shown)])
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return [number * step for number in range(first, last + 1)]

    def x(self, group: str) -> float:
        """Return where a group stands."""
        groups = self.groups
        return round(LEFT + (RIGHT - LEFT) * (groups.index(group) + 0.5) / len(groups), 2)

    def y(self, value: float) -> float:
        """Return how far down a value stands."""
        ticks = self.ticks()
        return round(BOTTOM - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (BOTTOM - TOP), 2)
