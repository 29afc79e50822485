"""The promises of a profile (`expect`) held against what was seen. Pure; decides no exit code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserve.diagnostics import Span
from specserve.measure.watch.figures import Figures, Latency
from specserve.measure.watch.interval import quantile_interval
from specserve.profile.schema import Expectation, Profile

Interval = tuple[float, float]
_LATENCY_REQUESTS = 30
"""A promise about time needs this many: one hiccup delays several requests."""


class Kept(StrEnum):
    """What became of a promise."""

    KEPT = "kept"
    """The whole interval lies on its good side."""
    MISSED = "missed"
    """The whole interval lies on its bad side."""
    UNDECIDED = "undecided"
    UNSEEN = "unseen"
    """Not to be told from a server's metrics, or not at this load."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One limit, and what was measured; times in milliseconds, as in the profile."""

    key: str
    promised: float
    kept: Kept
    span: Span
    measured: float | None = None
    interval: Interval | None = None
    """95 %; the upper end may be infinite."""
    why: str = ""
    """Where it is not decided: why, in one clause."""

    @property
    def is_acceptance(self) -> bool:
        """Whether it is about acceptance, not about time or speed."""
        return self.key in ("min_mean_acceptance_length", "min_acceptance_rate")


def promises(profile: Profile, seen: Figures) -> tuple[Promise, ...]:
    """Each kind of promise, once.

    Traffic of several workloads cannot be told apart by counters, so of several promises of a kind the weakest
    one is held against it. A promise about time counts up to the concurrency that it was made for.
    """
    return tuple(_promises(profile, seen))


def _promises(profile: Profile, seen: Figures) -> Iterator[Promise]:
    for key, weakest in (
        ("min_mean_acceptance_length", min),
        ("min_acceptance_rate", min),
        ("max_ttft_p99_ms", max),
        ("max_tpot_p99_ms", max),
        ("min_speedup", min),
    ):
        made = [(index, item) for index, item in enumerate(profile.expect) if getattr(item, key) is not None]
        if not made:
            continue
        fitting = [entry for entry in made if not key.startswith("max_") or _fits(entry[1], seen)]
        index, item = weakest(fitting or made, key=lambda entry: getattr(entry[1], key))
        promised = float(getattr(item, key))
        span = profile.span(f"expect[{index}].{key}")
        if key == "min_speedup":
            why = "a server's metrics do not tell it: `specserve bench` measures it"
            yield Promise(key, promised, Kept.UNSEEN, span, why=why)
        elif not fitting:
            why = f"{seen.running_requests:.0f} requests run at once, and it was promised for {item.concurrency}"
            yield Promise(key, promised, Kept.UNSEEN, span, why=why)
        elif key == "min_mean_acceptance_length":
            measured, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
            yield _at_least(key, promised, span, measured=measured, interval=interval)
        elif key == "min_acceptance_rate":
            measured, interval = seen.acceptance_rate, seen.acceptance_rate_interval
            yield _at_least(key, promised, span, measured=measured, interval=interval)
        else:
            yield _at_most(key, promised, span, seen.ttft if key == "max_ttft_p99_ms" else seen.tpot)


def _fits(item: Expectation, seen: Figures) -> bool:
    return item.concurrency is None or seen.running_requests <= item.concurrency + 0.5


def _at_least(
    key: str,
    promised: float,
    span: Span,
    *,
    measured: float | None,
    interval: Interval | None,
) -> Promise:
    if interval is None:
        why = "too few finished requests for an interval"
        return Promise(key, promised, Kept.UNDECIDED, span, measured, interval, why)
    if interval[1] < promised:
        return Promise(key, promised, Kept.MISSED, span, measured, interval)
    if interval[0] >= promised:
        return Promise(key, promised, Kept.KEPT, span, measured, interval)
    return Promise(
        key, promised, Kept.UNDECIDED, span, measured, interval, "the promise is inside the interval"
    )


def _at_most(key: str, promised: float, span: Span, latency: Latency) -> Promise:
    found = quantile_interval(latency.observed, 0.99)
    value = latency.observed.quantile(0.99)
    measured = None if value is None else 1000 * value
    interval = found and (1000 * found[0], 1000 * found[1])
    if interval is None or latency.count < _LATENCY_REQUESTS:
        why = f"{latency.count} of {_LATENCY_REQUESTS} requests"
        return Promise(key, promised, Kept.UNDECIDED, span, measured, interval, why)
    if interval[0] >= promised:
        return Promise(key, promised, Kept.MISSED, span, measured, interval)
    if interval[1] <= promised:
        return Promise(key, promised, Kept.KEPT, span, measured, interval)
    few = math.isinf(interval[1])
    why = f"{latency.count} requests do not bound a 99th percentile" if few else "it lies inside the interval"
    return Promise(key, promised, Kept.UNDECIDED, span, measured, interval, why)


def missed(found: Sequence[Promise]) -> tuple[Promise, ...]:
    """Those that were not kept."""
    return tuple(promise for promise in found if promise.kept is Kept.MISSED)
