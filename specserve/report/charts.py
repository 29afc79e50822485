"""Small SVG charts: lines with intervals, bars, ranges."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specserve.errors import without_user
from specserve.report.console import clean

WIDTH, HEIGHT = 380, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 40
COLOURS = 6
"""Series have the classes s0 (the baseline, grey) to s5."""
_BAR_WIDTH, _WIDEST_BAR = 0.78, 42.0
_SMALLEST, _LARGEST = 1e-9, 1e12


def escaped(text: object) -> str:
    """Returns text for HTML and SVG, in content and in quoted attributes; control characters are made visible."""
    return html.escape(clean(without_user(str(text))), quote=True)


@dataclass(frozen=True, slots=True)
class Value:
    """One figure, with bounds if it has some."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds, or the value twice."""
        return (
            self.value if self.low is None else self.low,
            self.value if self.high is None else self.high,
        )


def clean_value(value: float | None, low: float | None = None, high: float | None = None) -> Value | None:
    """Returns the figure, without bounds that cannot be drawn, or None if it cannot be drawn itself."""
    if not _is_drawable(value):
        return None
    assert value is not None
    return Value(value, low, high) if _is_drawable(low) and _is_drawable(high) else Value(value)


def _is_drawable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and (value == 0 or _SMALLEST <= abs(value) <= _LARGEST)


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one arm, group by group; None if there is none."""

    name: str
    colour: int
    values: tuple[Value | None, ...]


def other_colour(index: int) -> int:
    """Returns the colour of the series with this number, from 0; grey is left to the baseline."""
    return 1 + index % (COLOURS - 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn. `lines` have a line at `reference`; `ranges` go from a median to a high percentile."""

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
        frame = _axes(self)
        body: list[str] = []
        if self.reference is not None:
            y = frame.y(self.reference)
            body.append(_segment("reference", frame.x(0, 0), y, frame.x(len(self.groups) - 1, 1), y))
        match self.kind:
            case "lines":
                body += [line for each in self.series for line in _band(frame, each)]
                body += [line for each in self.series for line in _line(frame, each)]
            case "bars":
                body += [line for at, each in enumerate(self.series) for line in _bars(frame, self, each, at)]
            case "ranges":
                body += [
                    line for at, each in enumerate(self.series) for line in _ranges(frame, self, each, at)
                ]
        return "\n".join(
            [
                f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{identity}-t {identity}-d">',
                f'<title id="{identity}-t">{escaped(self.title)}</title>',
                f'<desc id="{identity}-d">{escaped(self.described())}</desc>',
                *_grid(frame),
                *body,
                _words(WIDTH / 2 + _LEFT / 2, HEIGHT - 6, self.x_title, kind="axis"),
                "</svg>",
            ]
        )

    def described(self) -> str:
        """Returns every value in words, for those who cannot see it."""
        parts = []
        for each in self.series:
            known = [
                f"{group}: {self._described_value(value)}"
                for group, value in zip(self.groups, each.values, strict=True)
                if value is not None
            ]
            parts.append(f"{each.name} by {self.x_title}: {'; '.join(known) or 'nothing'}.")
        return f"{self.title}, {self.unit}. {' '.join(parts)}"

    def _described_value(self, value: Value) -> str:
        if value.low is None or value.high is None:
            return f"{value.value:.4g}"
        low = f"{value.low:.4g} to " if value.low != value.value else ""
        return f"{value.value:.4g} ({self.bounds} {low}{value.high:.4g})"


@dataclass(frozen=True, slots=True)
class _Axes:
    """Groups side by side over a linear scale."""

    groups: Sequence[str]
    ticks: tuple[float, ...]

    def x(self, group: int, part: float = 0.5) -> float:
        """A place within a group, `part` from 0 (its left edge) to 1."""
        return round(_LEFT + self.step * (group + part), 2)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _BOTTOM - _TOP), 2)

    @property
    def step(self) -> float:
        """The width of a group."""
        return (WIDTH - _LEFT - _RIGHT) / max(1, len(self.groups))


def _axes(chart: Chart) -> _Axes:
    """A scale that holds every value and ends at round numbers."""
    numbers = [
        number
        for each in chart.series
        for value in each.values
        if value
        for number in (value.value, *value.ends)
    ]
    around = (0.0,) if chart.reference is None else (chart.reference * 0.9, chart.reference * 1.1)
    low, high = min(*around, *numbers, math.inf), max(*around, *numbers, -math.inf)
    return _Axes(chart.groups, _ticks(low, high if high > low else low + 1))


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Four to eight round numbers around the range."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, max(last, first + 1) + 1))


def _grid(frame: _Axes) -> Iterator[str]:
    for tick in frame.ticks:
        y = frame.y(tick)
        yield _segment("grid", _LEFT, y, WIDTH - _RIGHT, y)
        yield _words(_LEFT - 6, y + 4, _tick_text(tick, frame), kind="tick end")
    every = max(1, math.ceil(len(frame.groups) / 8))
    for index, name in enumerate(frame.groups):
        if index % every == 0:
            yield _words(frame.x(index), HEIGHT - _BOTTOM + 16, name, kind="tick")


def _tick_text(tick: float, frame: _Axes) -> str:
    if frame.ticks[-1] >= 10_000:
        return f"{tick / 1000:,g}k"
    step = frame.ticks[1] - frame.ticks[0]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    exact = math.isclose(round(step, digits), step)
    return f"{tick:,.{digits if exact else digits + 1}f}"


def _words(x: float, y: float, text: str, *, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escaped(text)}</text>'


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def mark(colour: int, x: float, y: float) -> str:
    """Returns a circle, square, triangle or diamond: a series is told from others without its colour too."""
    kind, size = f'class="mark s{colour}"', 4.5
    match colour % 4:
        case 0:
            return f'<circle {kind} cx="{x:g}" cy="{y:g}" r="4"/>'
        case 1:
            return f'<rect {kind} x="{x - 4:g}" y="{y - 4:g}" width="8" height="8"/>'
        case 2:
            points = [(x, y - size - 0.5), (x + size + 0.5, y + size - 0.5), (x - size - 0.5, y + size - 0.5)]
        case _:
            points = [(x, y - size - 1), (x + size + 1, y), (x, y + size + 1), (x - size - 1, y)]
    return f'<polygon {kind} points="{_points(points)}"/>'


def key(colour: int) -> str:
    """Returns the sign of a series in a legend."""
    return f"{_segment(f'range line s{colour}', 0, 7, 30, 7)}{mark(colour, 15, 7)}"


def _slot(frame: _Axes, chart: Chart) -> float:
    """The width of one series within a group."""
    return min(_WIDEST_BAR, frame.step * _BAR_WIDTH / max(1, len(chart.series)))


def _bars(frame: _Axes, chart: Chart, series: Series, index: int) -> Iterator[str]:
    width, zero = _slot(frame, chart), frame.y(0)
    for group, value in enumerate(series.values):
        if value is not None:
            x, y = frame.x(group) + (index - len(chart.series) / 2) * width, frame.y(value.value)
            yield (
                f'<rect class="bar s{series.colour}" x="{x + 0.75:.2f}" y="{y}" '
                f'width="{max(0.5, width - 1.5):.2f}" height="{max(0.0, zero - y):.2f}"/>'
            )


def _ranges(frame: _Axes, chart: Chart, series: Series, index: int) -> Iterator[str]:
    aside = (index - (len(chart.series) - 1) / 2) * _slot(frame, chart)
    kind = f"range s{series.colour}"
    for group, value in enumerate(series.values):
        if value is not None:
            x, y, top = round(frame.x(group) + aside, 2), frame.y(value.value), frame.y(value.ends[1])
            yield from (_segment(kind, x, y, x, top), _segment(kind, x - 5, top, x + 5, top))
            yield mark(series.colour, x, y)


def _band(frame: _Axes, series: Series) -> Iterator[str]:
    for run in _runs(series):
        low = [(frame.x(at), frame.y(item.ends[0])) for at, item in run]
        high = [(frame.x(at), frame.y(item.ends[1])) for at, item in run]
        if len(run) > 1:
            yield f'<polygon class="band s{series.colour}" points="{_points([*low, *reversed(high)])}"/>'


def _line(frame: _Axes, series: Series) -> Iterator[str]:
    for run in _runs(series):
        points = [(frame.x(at), frame.y(item.value)) for at, item in run]
        if len(run) > 1:
            yield f'<polyline class="line s{series.colour}" points="{_points(points)}"/>'
        for (_, item), (x, y) in zip(run, points, strict=True):
            if item.low is not None and item.high is not None:
                yield _segment(f"range s{series.colour}", x, frame.y(item.low), x, frame.y(item.high))
            yield mark(series.colour, x, y)


def _runs(series: Series) -> Iterator[list[tuple[int, Value]]]:
    """Stretches without a gap."""
    run: list[tuple[int, Value]] = []
    for at, value in enumerate([*series.values, None]):
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
