"""The frame of a small SVG chart: scales, ticks, labels, words for those who cannot see it. Draws no data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.report.markup import escaped

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
