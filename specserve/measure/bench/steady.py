"""The part of a pass in which as many requests ran as were meant to. Pure.

A closed loop of so many requests ends with fewer and fewer of them: where answers are long for the time that a pass
takes, that end would make a rate at a high load partly one at a low load, and by more with speculation, where requests
that began together end apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specserve.measure.bench.records import Pass, Request

_LEAST_SHARE = 0.25
"""Of a pass: less says nothing, and the whole of it is taken."""


def steady(done: Pass) -> Pass:
    """The pass up to where for the last time as many ran as should: tokens and times after that are left out.

    Requests that failed stay as they are. The whole pass where it has no load, or where hardly anything would be left.
    """
    good = [request for request in done.requests if request.ok]
    if done.point.concurrency is None or done.point.concurrency < 2 or not good:
        return done
    end_s = _last_full_s(good, load=done.point.concurrency)
    if end_s < _LEAST_SHARE * done.duration_s or end_s >= done.duration_s:
        return done
    return replace(done, duration_s=end_s, requests=tuple(_until(each, end_s) for each in done.requests))


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


def _until(request: Request, end_s: float) -> Request:
    """What a request had got by then: its tokens in as many parts as its chunks are."""
    left_s = end_s - request.start_s
    if not request.ok or request.latency_s <= left_s:
        return request
    came, at_s = 0, request.ttft_s
    for gap_ms in request.chunk_gaps_ms:
        at_s += gap_ms / 1000
        if at_s > left_s:
            break
        came += 1
    share = came / len(request.chunk_gaps_ms) if request.chunk_gaps_ms else 0.0
    tokens = 1 + round((request.output_tokens - 1) * share) if request.ttft_s <= left_s else 0
    return replace(
        request,
        output_tokens=min(tokens, request.output_tokens),
        latency_s=left_s,
        chunk_gaps_ms=request.chunk_gaps_ms[:came],
    )
