"""The gaps between a stream's chunks that are steps at the full load. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence

from specserve.measure.bench.records import Pass, Request

LEAST = 8
"""Fewer gaps say nothing of a step."""
_TINY_S = 1e-4
_EARLY = 0.5
"""Of the median: no step of the same work is so short."""


def steady_gaps_s(done: Pass) -> list[float]:
    """Seconds between chunks while just as many requests ran as were meant to, and none was in its prefill.

    A chunk is a step. Where there is no such time, all gaps at that load; where there is none of it either, all.
    """
    good = [request for request in done.requests if request.ok and request.chunk_gaps_ms]
    load = _Load(good)
    at_load: list[float] = []
    alone: list[float] = []
    every: list[float] = []
    for request in good:
        at = request.start_s + request.ttft_s
        for gap in _read_in_time(request.chunk_gaps_ms):
            began, at = at, at + gap / 1000
            every.append(gap / 1000)
            if load.at(began + _TINY_S) == load.at(at - _TINY_S) == (done.point.concurrency or 1):
                at_load.append(gap / 1000)
                if not load.prefills(began, at):
                    alone.append(gap / 1000)
    return next((found for found in (alone, at_load) if len(found) >= LEAST), every)


def _read_in_time(gaps_ms: Sequence[float]) -> list[float]:
    """A chunk that was read late makes the next one seem early: the two share their time."""
    found = list(gaps_ms)
    least = statistics.median(found) * _EARLY if found else 0.0
    for index in range(1, len(found)):
        if found[index] < least:
            found[index - 1 : index + 1] = [(found[index - 1] + found[index]) / 2] * 2
    return found


class _Load:
    """How many requests ran when."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._starts = sorted(request.start_s for request in requests)
        self._ends = sorted(request.start_s + request.latency_s for request in requests)
        self._firsts = sorted(request.start_s + request.ttft_s for request in requests)

    def at(self, time_s: float) -> int:
        return bisect_right(self._starts, time_s) - bisect_right(self._ends, time_s)

    def prefills(self, begin_s: float, end_s: float) -> bool:
        """Whether some request waited for its first token in that time."""
        return bisect_right(self._starts, end_s - _TINY_S) > bisect_right(self._firsts, begin_s + _TINY_S)
