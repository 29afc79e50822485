"""What a pass would have been, had as many requests run to its end as were meant to. Pure.

A closed loop of so many requests ends with fewer and fewer of them: where answers are long for the time that a pass
takes, that end makes a rate at a high load partly one at a low load, and by more with speculation, where requests that
began together end apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specserve.measure.bench.records import Pass, Request
from specserve.measure.tune.gaps import steady_gaps_s

_LEAST_SHARE = 0.25
"""Of a pass at the full load: less says nothing, and the pass is taken as it is."""


def steady(done: Pass) -> Pass:
    """The pass at its full load: each request goes on in its steps, and one follows another.

    A rate of it is the load times the tokens over the requests' times (Little's law). Waits for prefills stay those
    that were: each prefill came while all requests ran, and what it took of each of them is there once. Requests that
    failed stay as they are. The pass itself where it has no load above 1, or was hardly ever at it.
    """
    load = done.point.concurrency
    good = [request for request in done.requests if request.ok]
    if load is None or load < 2 or not good:
        return done
    end_s = _last_full_s(good, load=load)
    gaps_s = steady_gaps_s(done)
    if end_s < _LEAST_SHARE * done.duration_s or not gaps_s:
        return done
    step_s = statistics.median(gaps_s)
    requests = tuple(
        _gone_on(request, _until(request, end_s), step_s=step_s) if request.ok else request
        for request in done.requests
    )
    whole_s = math.fsum(request.latency_s for request in requests if request.ok)
    return replace(done, duration_s=whole_s / load, requests=requests)


@dataclass(frozen=True, slots=True)
class _Part:
    """Of one request, what lies after its first token and before the load fell."""

    time_s: float
    chunks: int


def _last_full_s(requests: Sequence[Request], *, load: int) -> float:
    """When so many ran for the last time; 0 where they never did."""
    # of what happens at one moment the ends come first: one that follows another is no second one
    events = sorted(
        event
        for each in requests
        for event in ((round(each.start_s, 6), 1), (round(each.start_s + each.latency_s, 6), -1))
    )
    running, found_s = 0, 0.0
    for at_s, change in events:
        if running >= load and change < 0:
            found_s = at_s
        running += change
    return found_s


def _until(request: Request, end_s: float) -> _Part:
    """Up to the last chunk that came by then."""
    left_s = end_s - request.start_s - request.ttft_s + 1e-6
    came, time_s = 0, 0.0
    for gap_ms in request.chunk_gaps_ms:
        if time_s + gap_ms / 1000 > left_s:
            break
        time_s += gap_ms / 1000
        came += 1
    return _Part(time_s, came)


def _gone_on(request: Request, part: _Part, *, step_s: float) -> Request:
    """The whole request, each of its other chunks after a step of the full load."""
    rest = len(request.chunk_gaps_ms) - part.chunks
    if not rest:
        return request
    latency_s = request.ttft_s + part.time_s + rest * step_s
    return replace(request, latency_s=latency_s, chunk_gaps_ms=request.chunk_gaps_ms[: part.chunks])
