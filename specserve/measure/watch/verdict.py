"""What the figures of a window come to: the profile's promises and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserve.diagnostics import Span
from specserve.measure.watch.figures import LENGTH, Collapse, Interval, WatchFigures
from specserve.metrics.counters import Histogram
from specserve.profile.schema import Expectation, Profile

_LATENCY_REQUESTS = 30
"""A promise about time needs this many: one hiccup delays several requests."""


class Kept(StrEnum):
    """What became of a promise."""

    KEPT = "kept"
    """The whole interval lies on its good side."""
    MISSED = "missed"
    """The whole interval lies on its bad side."""
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    """A server's metrics do not show it, or not at this load."""


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
    """Why it is not decided, in one clause."""

    @property
    def unit(self) -> str:
        """` ms`, or nothing."""
        return " ms" if self.key.endswith("_ms") else ""

    def number(self, value: float) -> str:
        """Return a value with the decimals that fit the unit."""
        return f"{value:.{0 if self.unit else 2}f}"


_KINDS: Mapping[str, Callable[..., tuple[int, Expectation]]] = {
    "min_mean_acceptance_length": min,
    "min_acceptance_rate": min,
    "max_ttft_p99_ms": max,
    "max_tpot_p99_ms": max,
    "min_speedup": min,
}
"""Which of several promises of a kind is the weakest."""


def promises(profile: Profile, seen: WatchFigures) -> tuple[JudgedPromise, ...]:
    """Return each kind of promise, once.

    Counters do not tell workloads apart, so of several promises of a kind the weakest one counts. A promise about time
    counts up to the concurrency that it was made for.
    """
    found = []
    for key, weakest in _KINDS.items():
        made = [(index, item) for index, item in enumerate(profile.expect) if getattr(item, key) is not None]
        fitting = [entry for entry in made if not key.startswith("max_") or _fits(entry[1], seen)]
        if not made:
            continue
        index, item = weakest(fitting or made, key=lambda entry: getattr(entry[1], key))
        promised, span = float(getattr(item, key)), profile.span(f"expect[{index}].{key}")
        why = ""
        if key == "min_speedup":
            why = "a server's metrics do not show it: `specserve bench` measures it"
        elif not fitting:
            running = f"{seen.running_requests:.0f} requests run in parallel"
            why = f"{running}, but the promise is for {item.concurrency}"
        if why:
            found.append(JudgedPromise(key, promised, Kept.NOT_JUDGED, span, why=why))
        else:
            found.append(_judged(key, promised, span, seen))
    return tuple(found)


def _fits(item: Expectation, seen: WatchFigures) -> bool:
    return item.concurrency is None or seen.running_requests <= item.concurrency + 0.5


def _judged(key: str, promised: float, span: Span, seen: WatchFigures) -> JudgedPromise:
    """One promise against its interval."""
    measured, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
    why = ""
    if key == "min_acceptance_rate":
        measured, interval = seen.known.acceptance_rate, seen.acceptance_rate_interval
    elif key.startswith("max_"):
        observed = seen.latency("ttft" if key == "max_ttft_p99_ms" else "tpot")
        value, found = observed.quantile(0.99), quantile_interval(observed, 0.99)
        measured = None if value is None else 1000 * value
        interval = found and (1000 * found[0], 1000 * found[1])
        if observed.count < _LATENCY_REQUESTS:
            why = f"a verdict needs {_LATENCY_REQUESTS} requests; {observed.count} are finished"
    if not seen.whole.speculates and not key.startswith("max_"):
        why = "the server does not speculate"
    kept = Kept.UNDECIDED
    if interval is None:
        why = why or "too few finished requests for an interval"
    elif not why:
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


def missed(found: Sequence[JudgedPromise]) -> tuple[JudgedPromise, ...]:
    """Return those that were not kept."""
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


OFF = WatchVerdict(WatchState.OFF, "the server does not speculate: it has no speculation counters")


def judge(
    seen: WatchFigures,
    *,
    collapsed: Sequence[Collapse] = (),
    promised: Sequence[JudgedPromise] = (),
    before: float | None = None,
) -> WatchVerdict:
    """Return the worst that the figures show. `before`: the mean acceptance length of the time before the window."""
    drafts, tokens = seen.counters.acceptance.drafts, seen.counters.generation_tokens
    if not seen.whole.speculates:
        return OFF
    if collapsed:
        return WatchVerdict(WatchState.COLLAPSED, _collapsed(collapsed, engines=len(seen.whole.engines)))
    if not drafts and seen.undrafted_share is not None:
        later = tokens - seen.counters.ttft_s.count
        text = f"{later:,} output tokens came without a single draft, the first of each request not counted"
        return WatchVerdict(WatchState.UNDRAFTED, text)
    if not drafts and not tokens:
        return WatchVerdict(WatchState.IDLE, f"no traffic in the last {seen.whole.seconds:.0f} s")
    if broken := missed(promised):
        return WatchVerdict(WatchState.MISSED, "; ".join(_compared(promise) for promise in broken))
    length, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
    if length is None or interval is None:
        finished = _count(seen.counters.finished_requests, "finished request")
        text = f"{_count(drafts, 'draft')} and {finished} are too few for an interval of the acceptance"
        return WatchVerdict(WatchState.UNDECIDED, f"not decided yet: {text}")
    figure = f"the mean acceptance length is {length:.2f}{_bounds(interval)}"
    if interval[1] < LENGTH:
        return WatchVerdict(WatchState.COLLAPSED, f"the draft is dead: {figure}")
    if before is not None and interval[1] < FALLEN_SHARE * before:
        fell = figure.replace(" is ", " fell to ", 1)
        return WatchVerdict(WatchState.FALLEN, f"{fell}; it was {before:.2f} before")
    if interval[0] < LENGTH:
        text = f"not decided yet: {figure}, and under {LENGTH} the draft is dead"
        return WatchVerdict(WatchState.UNDECIDED, text, _factor(length, interval, LENGTH))
    return _of_promises(promised) or WatchVerdict(
        WatchState.STEADY,
        f"{figure}: speculation pays if a step takes less than {length:.2f} times as long as without it",
    )


def _of_promises(promised: Sequence[JudgedPromise]) -> WatchVerdict | None:
    """UNDECIDED if one about acceptance is, KEPT if all are kept that can be seen."""
    undecided = [promise for promise in promised if promise.kept is Kept.UNDECIDED]
    about_acceptance = [promise for promise in undecided if not promise.unit]
    if about_acceptance:
        text = "; ".join(_compared(item, has_interval=True) for item in about_acceptance)
        factors = (_factor(item.measured, item.interval, item.promised) for item in about_acceptance)
        most = max((factor for factor in factors if factor is not None), default=None)
        return WatchVerdict(WatchState.UNDECIDED, f"not decided yet: {text}", most)
    kept = sum(promise.kept is Kept.KEPT for promise in promised)
    if kept and not undecided:
        return WatchVerdict(WatchState.KEPT, f"{_count(kept, 'promise')} of the profile kept")
    return None


def _collapsed(collapsed: Sequence[Collapse], *, engines: int) -> str:
    worst = collapsed[0]
    text = f"the draft is dead: {worst.length:.2f} tokens per step in the last {worst.for_s:.0f} s"
    if worst.before is not None and worst.before > worst.length:
        text += f", {worst.before:.2f} before"
    if engines > 1:
        names = ", ".join(collapse.engine.engine for collapse in collapsed)
        text = f"engine{'s' if len(collapsed) > 1 else ''} {names} of {engines}: {text}"
    return text


def _compared(promise: JudgedPromise, *, has_interval: bool = False) -> str:
    assert promise.measured is not None
    shown = f"{promise.number(promise.measured)}{promise.unit}"
    if has_interval and promise.interval is not None:
        shown += _bounds(promise.interval)
    return f"`{promise.key}` is {shown}, and {promise.promised:g}{promise.unit} was promised ({promise.span})"


def _bounds(interval: Interval) -> str:
    return f" (95 % interval: {interval[0]:.2f} to {interval[1]:.2f})"


def _factor(value: float | None, interval: Interval | None, boundary: float) -> float | None:
    """How many times the traffic brings the interval off the boundary: its width falls with the square root."""
    if value is None or interval is None or value == boundary:
        return None
    half = interval[1] - value if boundary > value else value - interval[0]
    return (half / (value - boundary)) ** 2


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


_Z = 1.959964


def quantile_interval(observed: Histogram, share: float) -> Interval | None:
    """Return where a quantile lies, by the ranks that it can have and the edges of their buckets.

    None without an observation. The upper end is infinite if there are too few to bound it (a p99: under 470).
    """
    count = observed.count
    if not count:
        return None
    spread = _Z * math.sqrt(count * share * (1 - share))
    low_rank, high_rank = math.floor(count * share - spread), math.ceil(count * share + spread) + 1
    high = observed.around(high_rank)[1] if high_rank <= count else math.inf
    return observed.around(low_rank)[0], high
