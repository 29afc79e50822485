"""Small SVG charts: intervals, bars, ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specserve.report.html import escaped

WIDTH, HEIGHT = 380, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 40


@dataclass(frozen=True, slots=True)
class Axes:
    """Groups side by side over a linear scale."""

    groups: tuple[str, ...]
    low: float
    high: float
    ticks: tuple[float, ...]

    def x(self, group: int, part: float = 0.5) -> float:
        """A place within a group, `part` from 0 (its left edge) to 1."""
        return round(_LEFT + self.step * (group + part), 2)

    def y(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP), 2)

    @property
    def step(self) -> float:
        """The width of a group."""
        return (WIDTH - _LEFT - _RIGHT) / max(1, len(self.groups))


def axes(groups: Sequence[str], values: Sequence[float], *, low: float = 0.0) -> Axes:
    """A scale that holds the values and `low`, and ends at round numbers."""
    least, most = min([low, *values]), max([low, *values])
    ticks = _ticks(least, most if most > least else least + 1)
    return Axes(tuple(groups), ticks[0], ticks[-1], ticks)


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Four to eight round numbers around the range."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, max(last, first + 1) + 1))


def chart(
    body: Sequence[str], frame: Axes, *, identity: str, title: str, description: str, x_title: str
) -> str:
    """The whole picture. `identity`: its own within the page."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{identity}-t {identity}-d">',
        f'<title id="{identity}-t">{escaped(title)}</title>',
        f'<desc id="{identity}-d">{escaped(description)}</desc>',
        *_grid(frame),
        *body,
        _words(WIDTH / 2 + _LEFT / 2, HEIGHT - 6, x_title, kind="axis"),
        "</svg>",
    ]
    return "\n".join(parts)


def _grid(frame: Axes) -> list[str]:
    lines = []
    for tick in frame.ticks:
        y = frame.y(tick)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        lines.append(_words(_LEFT - 6, y + 4, _tick_text(tick, frame), kind="tick end"))
    every = max(1, math.ceil(len(frame.groups) / 8))
    for index, name in enumerate(frame.groups):
        if index % every == 0:
            lines.append(_words(frame.x(index), HEIGHT - _BOTTOM + 16, name, kind="tick"))
    return lines


def _tick_text(tick: float, frame: Axes) -> str:
    if frame.high >= 10_000:
        return f"{tick / 1000:,g}k"
    step = frame.ticks[1] - frame.ticks[0]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    exact = math.isclose(round(step, digits), step)
    return f"{tick:,.{digits if exact else digits + 1}f}"


def _words(x: float, y: float, text: str, *, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escaped(text)}</text>'


COLOURS = 6
"""Series have the classes s0 (the baseline, grey) to s5."""
_BAR_WIDTH, _WIDEST_BAR = 0.78, 42.0
_SMALLEST, _LARGEST = 1e-9, 1e12


@dataclass(frozen=True, slots=True)
class Value:
    """One figure, with bounds where it has some."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def parts(self) -> list[float]:
        """All its numbers."""
        return [item for item in (self.value, self.low, self.high) if item is not None]


@dataclass(frozen=True, slots=True)
class Series:
    """One arm's values, group by group; None where there is none."""

    name: str
    colour: int
    values: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """What a chart is called and what it says."""

    identity: str
    title: str
    unit: str
    x_title: str

    def describe(self, groups: Sequence[str], series: Sequence[Series], *, bounds: str) -> str:
        """Every value in words, for those who cannot see it."""
        parts = []
        for each in series:
            known = [
                f"{group}: {_told(value, bounds)}"
                for group, value in zip(groups, each.values, strict=True)
                if value is not None
            ]
            parts.append(f"{each.name} by {self.x_title}: {'; '.join(known) or 'nothing'}.")
        return f"{self.title}, {self.unit}. {' '.join(parts)}"


def clean_value(value: float | None, low: float | None = None, high: float | None = None) -> Value | None:
    """The figure, or None where it is none that can be drawn; without bounds where these cannot."""
    if value is None or not _is_drawable(value):
        return None
    if low is None or high is None or not (_is_drawable(low) and _is_drawable(high)):
        return Value(value)
    return Value(value, low, high)


def _is_drawable(value: float) -> bool:
    return math.isfinite(value) and (value == 0 or _SMALLEST <= abs(value) <= _LARGEST)


def intervals(words: Words, groups: Sequence[str], series: Sequence[Series], *, reference: float) -> str:
    """Lines with the band of their intervals, and a line at `reference`."""
    frame = axes(groups, [*_numbers(series), reference * 1.1], low=reference * 0.9)
    body = [_reference(frame, reference)]
    for each in series:
        body += _band(frame, each)
    for each in series:
        body += _line(frame, each)
    told = words.describe(groups, series, bounds="95 % interval")
    return chart(
        body, frame, identity=words.identity, title=words.title, description=told, x_title=words.x_title
    )


def bars(words: Words, groups: Sequence[str], series: Sequence[Series]) -> str:
    """Bars side by side in each group."""
    frame = axes(groups, _numbers(series))
    width = _slot(frame, series)
    body = []
    for index, each in enumerate(series):
        for group, value in enumerate(each.values):
            if value is not None:
                x = frame.x(group) + (index - len(series) / 2) * width
                y, zero = frame.y(value.value), frame.y(0)
                body.append(
                    f'<rect class="bar s{each.colour}" x="{x + 0.75:.2f}" y="{y}" '
                    f'width="{max(0.5, width - 1.5):.2f}" height="{max(0.0, zero - y):.2f}"/>'
                )
    told = words.describe(groups, series, bounds="")
    return chart(
        body, frame, identity=words.identity, title=words.title, description=told, x_title=words.x_title
    )


def ranges(words: Words, groups: Sequence[str], series: Sequence[Series], *, bounds: str) -> str:
    """From a median (a filled mark) up to a high percentile (a bar's end), side by side in each group."""
    frame = axes(groups, _numbers(series))
    body = []
    for index, each in enumerate(series):
        aside = (index - (len(series) - 1) / 2) * _slot(frame, series)
        for group, value in enumerate(each.values):
            if value is not None:
                x, high = (
                    round(frame.x(group) + aside, 2),
                    value.high if value.high is not None else value.value,
                )
                body.append(_stroke(each, (x, frame.y(value.value)), (x, frame.y(high))))
                body.append(_stroke(each, (x - 5, frame.y(high)), (x + 5, frame.y(high))))
                body.append(mark(each.colour, x, frame.y(value.value)))
    told = words.describe(groups, series, bounds=bounds)
    return chart(
        body, frame, identity=words.identity, title=words.title, description=told, x_title=words.x_title
    )


def mark(colour: int, x: float, y: float) -> str:
    """A circle, square, triangle or diamond: the series is told without its colour too."""
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


def _slot(frame: Axes, series: Sequence[Series]) -> float:
    """The width of one series within a group."""
    return min(_WIDEST_BAR, frame.step * _BAR_WIDTH / max(1, len(series)))


def _reference(frame: Axes, value: float) -> str:
    y = frame.y(value)
    return f'<line class="reference" x1="{frame.x(0, 0)}" x2="{frame.x(len(frame.groups) - 1, 1)}" y1="{y}" y2="{y}"/>'


def _band(frame: Axes, series: Series) -> Iterator[str]:
    for run in _runs(series):
        low = [(frame.x(at), frame.y(item.low if item.low is not None else item.value)) for at, item in run]
        high = [
            (frame.x(at), frame.y(item.high if item.high is not None else item.value)) for at, item in run
        ]
        if len(run) > 1:
            yield f'<polygon class="band s{series.colour}" points="{_points([*low, *reversed(high)])}"/>'


def _line(frame: Axes, series: Series) -> Iterator[str]:
    for run in _runs(series):
        points = [(frame.x(at), frame.y(item.value)) for at, item in run]
        if len(run) > 1:
            yield f'<polyline class="line s{series.colour}" points="{_points(points)}"/>'
        for (at, item), (x, y) in zip(run, points, strict=True):
            if item.low is not None and item.high is not None:
                yield _stroke(series, (x, frame.y(item.low)), (frame.x(at), frame.y(item.high)))
            yield mark(series.colour, x, y)


def _runs(series: Series) -> Iterator[list[tuple[int, Value]]]:
    """Stretches without a gap."""
    run: list[tuple[int, Value]] = []
    for at, value in enumerate(series.values):
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _stroke(series: Series, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="range s{series.colour}" x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"/>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _numbers(series: Sequence[Series]) -> list[float]:
    return [number for each in series for value in each.values if value is not None for number in value.parts]


def _told(value: Value, bounds: str) -> str:
    known = f"{value.value:.4g}"
    if value.low is None or value.high is None:
        return known
    span = f"{value.low:.4g} to {value.high:.4g}" if value.low != value.value else f"{value.high:.4g}"
    return f"{known} ({bounds} {span})"
