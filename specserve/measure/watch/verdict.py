"""What the figures of a window come to: a verdict, and the profile's promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserve.diagnostics import Span
from specserve.measure.watch.figures import (
    LENGTH,
    NUMBER_DRAFTS,
    Collapse,
    Latency,
    WatchFigures,
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
class JudgedPromise:
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


def promises(profile: Profile, seen: WatchFigures) -> tuple[JudgedPromise, ...]:
    """Each kind of promise, once.

    Traffic of several workloads cannot be told apart by counters, so of several promises of a kind the weakest
    one is held against it. A promise about time counts up to the concurrency that it was made for.
    """
    found = []
    for key, weakest in _KINDS.items():
        made = [(index, item) for index, item in enumerate(profile.expect) if getattr(item, key) is not None]
        if not made:
            continue
        fitting = [entry for entry in made if not key.startswith("max_") or _fits(entry[1], seen)]
        index, item = weakest(fitting or made, key=lambda entry: getattr(entry[1], key))
        promised, span = float(getattr(item, key)), profile.span(f"expect[{index}].{key}")
        if fitting:
            found.append(_judged(key, promised, span, seen))
        else:
            running = f"{seen.running_requests:.0f} requests run in parallel"
            why = f"{running}, but the promise is for {item.concurrency}"
            found.append(JudgedPromise(key, promised, Kept.UNSEEN, span, why=why))
    return tuple(found)


_KINDS: Mapping[str, Callable[..., tuple[int, Expectation]]] = {
    "min_mean_acceptance_length": min,
    "min_acceptance_rate": min,
    "max_ttft_p99_ms": max,
    "max_tpot_p99_ms": max,
    "min_speedup": min,
}
"""Which of several promises of a kind is the weakest."""


def _fits(item: Expectation, seen: WatchFigures) -> bool:
    return item.concurrency is None or seen.running_requests <= item.concurrency + 0.5


def _judged(key: str, promised: float, span: Span, seen: WatchFigures) -> JudgedPromise:
    """One promise against its interval."""
    few = ""
    if key == "min_speedup":
        why = "a server's metrics do not show it: `specserve bench` measures it"
        return JudgedPromise(key, promised, Kept.UNSEEN, span, why=why)
    if key == "min_mean_acceptance_length":
        measured, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
    elif key == "min_acceptance_rate":
        measured, interval = seen.acceptance_rate, seen.acceptance_rate_interval
    else:
        latency = seen.ttft if key == "max_ttft_p99_ms" else seen.tpot
        measured, interval = _p99_ms(latency)
        if latency.count < _LATENCY_REQUESTS:
            few = f"{latency.count} of {_LATENCY_REQUESTS} requests"
    kept, why = Kept.UNDECIDED, few
    if interval is None:
        why = few or "too few finished requests for an interval"
    elif not few:
        kept, why = _against(promised, interval, is_least=key.startswith("min_"))
    return JudgedPromise(key, promised, kept, span, measured, interval, why)


def _against(promised: float, interval: Interval, *, is_least: bool) -> tuple[Kept, str]:
    """What the interval says of a promise, and why if it is undecided."""
    low, high = interval
    if high < promised or (high == promised and not is_least):
        return (Kept.MISSED if is_least else Kept.KEPT), ""
    if low >= promised:
        return (Kept.KEPT if is_least else Kept.MISSED), ""
    if math.isinf(high):
        return Kept.UNDECIDED, "too few requests to bound a 99th percentile"
    return Kept.UNDECIDED, "the promise is inside the interval"


def _p99_ms(latency: Latency) -> tuple[float | None, Interval | None]:
    value, found = latency.observed.quantile(0.99), quantile_interval(latency.observed, 0.99)
    return None if value is None else 1000 * value, found and (1000 * found[0], 1000 * found[1])


def missed(found: Sequence[JudgedPromise]) -> tuple[JudgedPromise, ...]:
    """Those that were not kept."""
    return tuple(promise for promise in found if promise.kept is Kept.MISSED)


FALLEN_SHARE = 0.85
"""A mean acceptance length whose whole interval lies under this share of what it was before has fallen."""


class WatchState(StrEnum):
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
class WatchVerdict:
    """One word and one sentence."""

    state: WatchState
    sentence: str
    traffic_factor: float | None = None
    """For UNDECIDED: how many times the traffic should decide it, if the figures stay as they are."""


def judge(
    seen: WatchFigures,
    *,
    collapsed: tuple[Collapse, ...] = (),
    promised: tuple[JudgedPromise, ...] = (),
    before: float | None = None,
) -> WatchVerdict:
    """The worst that the figures show. `before`: the mean acceptance length of the time before the window."""
    counted = seen.acceptance
    if not seen.speculates:
        return WatchVerdict(WatchState.OFF, "the server does not speculate: it has no speculation counters")
    if collapsed:
        return WatchVerdict(WatchState.COLLAPSED, _collapsed(collapsed, engines=len(seen.engines)))
    if not counted.drafts and seen.counters.generation_tokens >= NUMBER_DRAFTS:
        tokens = f"{seen.counters.generation_tokens:,} output tokens"
        return WatchVerdict(WatchState.UNDRAFTED, f"{tokens} came without a single draft")
    if not counted.drafts and not seen.counters.generation_tokens:
        return WatchVerdict(WatchState.IDLE, f"no traffic in the last {seen.window_s:.0f} s")
    broken = missed(promised)
    if broken:
        return WatchVerdict(WatchState.MISSED, "; ".join(_broken(promise) for promise in broken))
    length, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
    if length is None or interval is None:
        return WatchVerdict(WatchState.UNDECIDED, _too_little(seen))
    figure = f"{length:.2f} (95 % interval: {interval[0]:.2f} to {interval[1]:.2f})"
    if interval[1] < LENGTH:
        return WatchVerdict(
            WatchState.COLLAPSED, f"the draft is dead: the mean acceptance length is {figure}"
        )
    if before is not None and interval[1] < FALLEN_SHARE * before:
        text = f"the mean acceptance length fell to {figure}; it was {before:.2f} before"
        return WatchVerdict(WatchState.FALLEN, text)
    if interval[0] < LENGTH:
        text = (
            f"not decided yet: the mean acceptance length is {figure}, and under {LENGTH} the draft is dead"
        )
        return WatchVerdict(WatchState.UNDECIDED, text, _factor(length, interval, LENGTH))
    open_ones = [promise for promise in promised if promise.kept is Kept.UNDECIDED and promise.is_acceptance]
    if open_ones:
        text = "; ".join(_open(promise) for promise in open_ones)
        factors = (_factor(item.measured, item.interval, item.promised) for item in open_ones)
        most = max((factor for factor in factors if factor is not None), default=None)
        return WatchVerdict(WatchState.UNDECIDED, f"not decided yet: {text}", most)
    kept = sum(promise.kept is Kept.KEPT for promise in promised)
    if kept and all(promise.kept in {Kept.KEPT, Kept.UNSEEN} for promise in promised):
        return WatchVerdict(WatchState.KEPT, f"{_count(kept, 'promise')} of the profile kept")
    return WatchVerdict(
        WatchState.STEADY,
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


def _broken(promise: JudgedPromise) -> str:
    assert promise.measured is not None
    unit = " ms" if promise.key.endswith("_ms") else ""
    digits = 0 if unit else 2
    return (
        f"`{promise.key}` is {promise.measured:.{digits}f}{unit}, "
        f"and {promise.promised:g}{unit} was promised ({promise.span})"
    )


def _open(promise: JudgedPromise) -> str:
    assert promise.measured is not None and promise.interval is not None
    low, high = promise.interval
    return (
        f"`{promise.key}` is {promise.measured:.2f} (95 % interval: {low:.2f} to {high:.2f}), and {promise.promised:g} "
        f"was promised ({promise.span})"
    )


def _factor(value: float | None, interval: Interval | None, boundary: float) -> float | None:
    """How many times the traffic brings the interval off the boundary: its width falls with the square root."""
    if value is None or interval is None:
        return None
    distance = abs(value - boundary)
    half = interval[1] - value if boundary > value else value - interval[0]
    return (half / distance) ** 2 if distance else None


def _too_little(seen: WatchFigures) -> str:
    return (
        f"not decided yet: {_count(seen.acceptance.drafts, 'draft')} and "
        f"{_count(seen.counters.finished_requests, 'finished request')} are too few for an interval of the acceptance"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
