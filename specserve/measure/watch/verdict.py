"""What the figures of a window come to: a verdict, and the profile's promises."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserve.diagnostics import Span
from specserve.measure.watch.figures import (
    LENGTH,
    NUMBER_DRAFTS,
    Collapse,
    Figures,
    Latency,
    quantile_interval,
)
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


FALLEN_SHARE = 0.85
"""A mean acceptance length whose whole interval lies under this share of what it was before has fallen."""


class State(StrEnum):
    """What is the matter, worst first."""

    UNSEEN = "UNSEEN"
    """No metrics: the server is missing, or it is none of vLLM's."""
    OFF = "OFF"
    """The server does not speculate."""
    COLLAPSED = "COLLAPSED"
    UNDRAFTED = "UNDRAFTED"
    """It speculates, and output tokens come without a single draft."""
    IDLE = "IDLE"
    UNDECIDED = "UNDECIDED"
    """What decides lies inside the interval, or there is no interval yet."""
    MISSED = "MISSED"
    """A promise of the profile is not kept."""
    FALLEN = "FALLEN"
    """The mean acceptance length is lower than before."""
    KEPT = "KEPT"
    """Every promise that can be seen is kept."""
    STEADY = "STEADY"
    """It works as it did; without promises, nothing more can be said of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word and one sentence."""

    state: State
    sentence: str
    traffic_factor: float | None = None
    """For UNDECIDED: how many times the traffic should decide it, if the figures stay as they are."""


def judge(
    seen: Figures,
    *,
    collapsed: tuple[Collapse, ...] = (),
    promised: tuple[Promise, ...] = (),
    before: float | None = None,
) -> Verdict:
    """The worst that the figures show. `before`: the mean acceptance length of the time before the window."""
    counted = seen.acceptance
    if not seen.speculates:
        return Verdict(State.OFF, "the server does not speculate: it has no speculation counters")
    if collapsed:
        return Verdict(State.COLLAPSED, _collapsed(collapsed, engines=len(seen.engines)))
    if not counted.drafts and seen.counters.generation_tokens >= NUMBER_DRAFTS:
        tokens = f"{seen.counters.generation_tokens:,} output tokens"
        return Verdict(State.UNDRAFTED, f"{tokens} came without a single draft")
    if not counted.drafts and not seen.counters.generation_tokens:
        return Verdict(State.IDLE, f"no traffic in the last {seen.window_s:.0f} s")
    broken = missed(promised)
    if broken:
        return Verdict(State.MISSED, "; ".join(_broken(promise) for promise in broken))
    length, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
    if length is None or interval is None:
        return Verdict(State.UNDECIDED, _too_little(seen))
    figure = f"{length:.2f} (95 % interval: {interval[0]:.2f} to {interval[1]:.2f})"
    if interval[1] < LENGTH:
        return Verdict(State.COLLAPSED, f"the draft is dead: the mean acceptance length is {figure}")
    if before is not None and interval[1] < FALLEN_SHARE * before:
        text = f"the mean acceptance length fell to {figure}; it was {before:.2f} before"
        return Verdict(State.FALLEN, text)
    if interval[0] < LENGTH:
        text = (
            f"not decided yet: the mean acceptance length is {figure}, and under {LENGTH} the draft is dead"
        )
        return Verdict(State.UNDECIDED, text, _factor(length, interval, LENGTH))
    open_ones = [promise for promise in promised if promise.kept is Kept.UNDECIDED and promise.is_acceptance]
    if open_ones:
        text = "; ".join(_open(promise) for promise in open_ones)
        factors = [
            _factor(promise.measured, promise.interval, promise.promised)
            for promise in open_ones
            if promise.measured is not None and promise.interval is not None
        ]
        return Verdict(
            State.UNDECIDED,
            f"not decided yet: {text}",
            max((factor for factor in factors if factor is not None), default=None),
        )
    if promised and all(promise.kept in {Kept.KEPT, Kept.UNSEEN} for promise in promised):
        kept = sum(promise.kept is Kept.KEPT for promise in promised)
        if kept:
            return Verdict(State.KEPT, f"{_count(kept, 'promise')} of the profile kept")
    return Verdict(
        State.STEADY,
        f"the mean acceptance length is {figure}: speculation pays if a step takes less than {length:.2f} times as "
        "long as without it",
    )


def _collapsed(collapsed: tuple[Collapse, ...], *, engines: int) -> str:
    worst = collapsed[0]
    text = f"the draft is dead: {worst.length:.2f} tokens per step in the last {worst.for_s:.0f} s"
    if worst.before is not None and worst.before > worst.length:
        text += f", {worst.before:.2f} before"
    if engines > 1:
        names = ", ".join(collapse.engine.engine for collapse in collapsed)
        text = f"engine{'s' if len(collapsed) > 1 else ''} {names} of {engines}: {text}"
    return text


def _broken(promise: Promise) -> str:
    assert promise.measured is not None
    unit = " ms" if promise.key.endswith("_ms") else ""
    digits = 0 if unit else 2
    return (
        f"`{promise.key}` is {promise.measured:.{digits}f}{unit}, "
        f"and {promise.promised:g}{unit} was promised ({promise.span})"
    )


def _open(promise: Promise) -> str:
    assert promise.measured is not None and promise.interval is not None
    low, high = promise.interval
    return (
        f"`{promise.key}` is {promise.measured:.2f} (95 % interval: {low:.2f} to {high:.2f}), and {promise.promised:g} "
        f"was promised ({promise.span})"
    )


def _factor(value: float, interval: tuple[float, float], boundary: float) -> float | None:
    """How many times the traffic brings the interval off the boundary: its width falls with the square root."""
    distance = abs(value - boundary)
    half = interval[1] - value if boundary > value else value - interval[0]
    return (half / distance) ** 2 if distance else None


def _too_little(seen: Figures) -> str:
    return (
        f"not decided yet: {_count(seen.acceptance.drafts, 'draft')} and "
        f"{_count(seen.counters.finished_requests, 'finished request')} are too few for an interval of the acceptance"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
