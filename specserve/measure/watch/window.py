"""A window of readings of one server, and its figures with their intervals, from counters alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from specserve.measure.intervals import Estimate, RateSample, quantile_ranks, rate
from specserve.metrics.counters import Acceptance, Counters, Histogram, since
from specserve.metrics.prometheus import Metrics

MAX_READINGS = 120
MIN_DRAFTS = 200
"""Fewer prove nothing: of three tokens vLLM's log once said a mean length of 4.00."""
_MIN_REQUESTS = 30
"""Of a P99: one hiccup delays several requests."""
_MAX_PARTS, _MIN_PARTS = 12, 3
_REQUESTS_PER_PART = 1.5
"""A part of the window lasts this many times as long as a request on average."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's metrics at a time, in seconds of a clock that never jumps."""

    at_s: float
    metrics: Metrics


def gained(before: Reading, now: Reading) -> Counters | None:
    """Return what the engines counted in between; None if one was restarted, came or went."""
    if before.metrics.engines.keys() != now.metrics.engines.keys():
        return None
    total = Counters()
    for name, engine in now.metrics.engines.items():
        earlier = before.metrics.engines[name]
        counted = since(earlier.counters, now=engine.counters)
        # counters of a new process may have overtaken the old one's
        if counted is None or earlier.created_s != engine.created_s:
            return None
        total += counted
    return total


class Window:
    """The newest readings of one server, oldest first, and never more than MAX_READINGS."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Add one and drop what is too old; all of it after a restart."""
        kept = self.readings
        if kept and gained(kept[-1], reading) is None:
            kept.clear()
        if len(kept) > 1 and kept[-1].at_s - kept[-2].at_s < self.span_s / MAX_READINGS:
            kept.pop()
        kept.append(reading)
        while len(kept) > 2 and reading.at_s - kept[1].at_s >= 0.999 * self.span_s:
            kept.popleft()


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What is known of a window. Estimates are of 95 %, and None if there is too little."""

    seconds: float
    speculates: bool
    counted: Counters
    running_requests: float
    mean_acceptance_length: Estimate | None
    acceptance_rate: Estimate | None
    ttft_p99_ms: Estimate | None
    """As coarse as vLLM's buckets, and open above for under 368 requests."""
    tpot_p99_ms: Estimate | None
    undrafted_share: float | None
    """Share of the output tokens that came without a draft; None for under 200 tokens."""


def figures(readings: Sequence[Reading]) -> WindowFigures:
    """Return all that can be said of readings without a restart in between; at least two."""
    first, last = readings[0], readings[-1]
    seconds, counted = last.at_s - first.at_s, gained(first, last) or Counters()
    drafts, later = counted.acceptance, counted.generation_tokens - counted.ttft_s.count
    running = fmean(reading.metrics.running_requests for reading in readings)
    # drafts of one request are correlated: in parts that are shorter than one, neighbours would be
    # alike, and the interval too narrow; by Little's law also of requests that still run
    request_s = running * seconds / max(counted.finished_requests, 1)
    request_s = max(counted.e2e_s.mean or 0.0, request_s)
    least_s, cuts = max(seconds / _MAX_PARTS, _REQUESTS_PER_PART * request_s), [first]
    for reading in readings:
        if reading.at_s - cuts[-1].at_s >= 0.99 * least_s:
            cuts.append(reading)
    if len(cuts) > 1:
        cuts[-1] = last
    parts = [gained(before, now) or Counters() for before, now in pairwise(cuts)]
    length, rate = acceptance_intervals([part.acceptance for part in parts])
    return WindowFigures(
        seconds=seconds,
        speculates=last.metrics.speculates,
        counted=counted,
        running_requests=running,
        mean_acceptance_length=length,
        acceptance_rate=rate,
        ttft_p99_ms=p99_ms(counted.ttft_s),
        tpot_p99_ms=p99_ms(counted.tpot_s),
        # a request's first token comes of its prompt; a step gives one more token than it accepts
        undrafted_share=max(0.0, 1 - (drafts.drafts + drafts.accepted_tokens) / later)
        if later >= MIN_DRAFTS
        else None,
    )


def acceptance_intervals(parts: Sequence[Acceptance]) -> tuple[Estimate | None, Estimate | None]:
    """Return the mean acceptance length and the acceptance rate: a part of the window is a block.

    None for fewer than 3 parts with drafts, or 200 drafts: fewer can be alike by chance. The rate
    is None, too, if nothing was accepted.
    """
    used = [part for part in parts if part.drafts]
    if len(used) < _MIN_PARTS or sum(part.drafts for part in used) < MIN_DRAFTS:
        return None, None

    def interval(pairs: Iterable[tuple[int, int]], most: float) -> Estimate | None:
        samples = [RateSample("all", str(at), *pair) for at, pair in enumerate(pairs)]
        if (found := rate(samples)) is None:
            return None
        estimate = found.estimate
        return replace(estimate, low=min(estimate.low, most), high=min(estimate.high, most))

    longest = max(len(part.accepted_per_position) for part in used)
    length = interval(
        ((each.drafts + each.accepted_tokens, each.drafts) for each in used), 1 + longest
    )
    return length, interval(((each.accepted_tokens, each.draft_tokens) for each in used), 1.0)


def p99_ms(observed: Histogram) -> Estimate | None:
    """Return where P99 lies by the ranks that it can have, and the edges of their buckets."""
    value, count = observed.quantile(0.99), observed.count
    if value is None or count < _MIN_REQUESTS:
        return None
    low_rank, high_rank = quantile_ranks(count, 0.99)
    high = observed.bucket(high_rank)[1] if high_rank <= count else math.inf
    # a bucket does not hold its lower edge
    low = math.nextafter(1000 * observed.bucket(low_rank)[0], math.inf)
    return Estimate(1000 * value, low, 1000 * high, count, "95 %, ranks within buckets")
