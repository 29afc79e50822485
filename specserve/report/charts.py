"""Small SVG charts: lines with intervals, bars, ranges."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from specserve.errors import without_user
from specserve.report.console import escaped

WIDTH, HEIGHT = 380, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 370, 12, 196
"""The edges of the drawing area."""
COLOURS = 6
"""Series have the classes s0 (the baseline, grey) to s5."""
_MARKS = ("", "-4,-4 4,-4 4,4 -4,4", "0,-5 5,5 -5,5", "0,-6 6,0 0,6 -6,0")
"""Corners: series differ in shape, not only in colour; the first one has circles."""


@dataclass(frozen=True, slots=True)
class Value:
    """One figure, with bounds if it has some."""

    value: float
    low: float | None = None
    high: float | None = None


def clean_value(
    value: float | None, low: float | None = None, high: float | None = None
) -> Value | None:
    """Returns the figure, without bounds that cannot be drawn, or None."""
    if value is None or not _is_drawable(value):
        return None
    return Value(value, low, high) if _is_drawable(low) and _is_drawable(high) else Value(value)


def _is_drawable(value: float | None) -> bool:
    return value is not None and (value == 0 or 1e-9 <= abs(value) <= 1e12)


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one variant, group by group; None if there is none."""

    name: str
    colour: int
    values: tuple[Value | None, ...]


def other_colour(index: int) -> int:
    """Returns the colour of the series with this number, from 0; grey is left to the baseline."""
    return 1 + index % (COLOURS - 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn.

    `lines` have a line at `reference`; `ranges` go from a median to a high percentile.
    """

    kind: Literal["lines", "bars", "ranges"]
    title: str
    unit: str
    x_title: str
    groups: Sequence[str]
    series: Sequence[Series]
    reference: float | None = None
    bounds: str = "95 % interval"

    def svg(self, identity: str) -> str:
        """Returns the picture. `identity`: its own within the page."""
        ticks = self._ticks()
        lines = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-labelledby="{identity}-t {identity}-d">',
            f'<title id="{identity}-t">{_escaped(self.title)}</title>',
            f'<desc id="{identity}-d">{_escaped(self._described())}</desc>',
            *self._grid(ticks),
        ]
        if self.reference is not None:
            y = _y(self.reference, ticks)
            lines.append(_segment("reference", _LEFT, y, _RIGHT, y))
        for at in range(len(self.series)):
            lines += self._drawn(at, ticks)
        return "\n".join(
            [*lines, _text((_LEFT + WIDTH) / 2, HEIGHT - 6, self.x_title, kind="axis"), "</svg>"]
        )

    def _drawn(self, at: int, ticks: Sequence[float]) -> Iterator[str]:
        """One series.

        Its values side by side with those of the others, or on top of them and joined by lines.
        """
        colour, values = f"s{self.series[at].colour}", self.series[at].values
        width = min(42.0, self._step * 0.78 / len(self.series))
        aside = 0.0 if self.kind == "lines" else (at - (len(self.series) - 1) / 2) * width
        points = [(self._x(group) + aside, value) for group, value in enumerate(values)]
        for (x, value), (next_x, next_value) in pairwise(points) if self.kind == "lines" else ():
            if value and next_value:
                ends = (x, _y(value.value, ticks), next_x, _y(next_value.value, ticks))
                yield _segment(f"line {colour}", *ends)
        for x, value in points:
            if value is None:
                continue
            y = _y(value.value, ticks)
            if self.kind == "bars":
                size = (
                    f'width="{max(0.5, width - 1.5):.2f}" height="{max(0.0, _y(0, ticks) - y):.2f}"'
                )
                yield f'<rect class="bar {colour}" x="{x - width / 2 + 0.75:.2f}" y="{y}" {size}/>'
                continue
            if value.low is not None and value.high is not None:
                yield _segment(f"range {colour}", x, _y(value.low, ticks), x, _y(value.high, ticks))
            yield _mark(self.series[at].colour, x, y)

    def _grid(self, ticks: Sequence[float]) -> Iterator[str]:
        step = ticks[1] - ticks[0]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        digits += not math.isclose(round(step, digits), step)
        for tick in ticks:
            y = _y(tick, ticks)
            label = f"{tick / 1000:,g}k" if ticks[-1] >= 10_000 else f"{tick:,.{digits}f}"
            yield _segment("grid", _LEFT, y, _RIGHT, y)
            yield _text(_LEFT - 6, y + 4, label, kind="tick end")
        every = max(1, math.ceil(len(self.groups) / 8))
        for group in range(0, len(self.groups), every):
            yield _text(self._x(group), _BOTTOM + 16, self.groups[group], kind="tick")

    @property
    def _step(self) -> float:
        return (_RIGHT - _LEFT) / max(1, len(self.groups))

    def _x(self, group: int) -> float:
        return _LEFT + self._step * (group + 0.5)

    def _ticks(self) -> list[float]:
        """Four to eight round numbers around every value."""
        values = [value for each in self.series for value in each.values if value]
        numbers = [
            end for each in values for end in (each.value, each.low, each.high) if end is not None
        ]
        numbers += [0.0] if self.reference is None else [self.reference * 0.9, self.reference * 1.1]
        low, high = min(numbers), max(numbers)
        rough = (high - low or 1.0) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(
            factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999
        )
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return [number * step for number in range(first, max(last, first + 1) + 1)]

    def _described(self) -> str:
        """Every value in words, for those who cannot see it."""
        parts = []
        for each in self.series:
            pairs = zip(self.groups, each.values, strict=True)
            known = [f"{group}: {self._value_words(value)}" for group, value in pairs if value]
            parts.append(f"{each.name} by {self.x_title}: {'; '.join(known) or 'nothing'}.")
        return f"{self.title}, {self.unit}. {' '.join(parts)}"

    def _value_words(self, value: Value) -> str:
        if value.low is None or value.high is None:
            return f"{value.value:.4g}"
        low = f"{value.low:.4g} to " if value.low != value.value else ""
        return f"{value.value:.4g} ({self.bounds} {low}{value.high:.4g})"


def key(colour: int) -> str:
    """Returns the sign of a series in a legend."""
    return f"{_segment(f'line s{colour}', 0, 7, 30, 7)}{_mark(colour, 15, 7)}"


def _y(value: float, ticks: Sequence[float]) -> float:
    return round(_BOTTOM - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (_BOTTOM - _TOP), 2)


def _text(x: float, y: float, text: str, *, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{_escaped(text)}</text>'


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _mark(colour: int, x: float, y: float) -> str:
    corners = _MARKS[colour % 4]
    shape, size = ("polygon", f'points="{corners}"') if corners else ("circle", 'r="4"')
    return f'<{shape} class="mark s{colour}" {size} transform="translate({x:g} {y:g})"/>'


def _escaped(text: str) -> str:
    """Text for SVG; control characters are made visible."""
    return html.escape(escaped(without_user(text)))
