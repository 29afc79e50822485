"""The last stretches of time, or all of them, in bounded memory. Does not know what happened in them."""

from __future__ import annotations

from specserve.measure.watch.stretch import Stretch, joined

MOST = 120
"""Stretches that are kept. Of more, neighbours are joined: a long time is kept in coarser pieces."""


class Window:
    """Stretches of one server, oldest first. `span_s`: so much of the past; None: everything since the begin."""

    def __init__(self, *, span_s: float | None = None, most: int = MOST) -> None:
        self._span_s = span_s
        self._most = most
        self._least_s = span_s / most if span_s is not None else 0.0
        self._kept: list[Stretch] = []

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What is kept."""
        return tuple(self._kept)

    def add(self, stretch: Stretch) -> None:
        """One more, and away with what is too old. Half a stretch over the span is no reason to lose it."""
        if self._kept and self._kept[-1].seconds < self._least_s:
            stretch = joined([self._kept.pop(), stretch])
        self._kept.append(stretch)
        if self._span_s is not None:
            oldest_s = stretch.ended_s - self._span_s
            older = self._kept[:-1]
            self._kept = [part for part in older if part.began_s + part.seconds / 2 >= oldest_s] + [stretch]
        elif len(self._kept) > self._most:
            pairs = [self._kept[index : index + 2] for index in range(0, len(self._kept), 2)]
            self._kept = [joined(pair) for pair in pairs]

    def clear(self) -> None:
        """Forget it: the server is another one."""
        self._kept = []

    def before(self, at_s: float) -> tuple[Stretch, ...]:
        """Those that had ended by that time."""
        return tuple(part for part in self._kept if part.ended_s <= at_s)
