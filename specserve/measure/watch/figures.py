"""The figures of a window: what speculation did, how fast it was, how full, with intervals from counters alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specserve.measure.statistics import quantile
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram, since, total_acceptance
from specserve.metrics.prometheus import EngineMetrics, Metrics


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's metrics at a time, in seconds of a clock that never jumps."""

    at_s: float
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the engines counted in between, and how full they were."""

    began_s: float
    ended_s: float
    engines: Mapping[EngineName, Counters] = field(default_factory=dict)
    speculates: bool = False
    """Whether the server has speculation counters at all."""
    running_request_s: float = 0.0
    """Running requests times seconds, from the readings at both ends."""
    waiting_request_s: float = 0.0
    most_running: int = 0
    most_waiting: int = 0
    most_kv_cache_usage: float | None = None
    """Share of the fullest engine's KV cache, 0 to 1."""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.ended_s - self.began_s

    @property
    def counters(self) -> Counters:
        """The sum of all engines."""
        return sum(self.engines.values(), Counters())

    @property
    def acceptance(self) -> Acceptance:
        """The sum of all engines."""
        return total_acceptance(counted.acceptance for counted in self.engines.values())

    @property
    def request_s(self) -> float:
        """How long a request takes on average; Little's law also counts requests that still run."""
        counters = self.counters
        return max(counters.e2e_s.mean or 0.0, self.running_request_s / max(counters.finished_requests, 1))


def between(before: Reading, now: Reading) -> Stretch | None:
    """Return the stretch between two readings; None if the server was restarted in between.

    An engine that came or went is no restart of the others: what it counted before it was seen is left out.
    """
    engines: dict[EngineName, Counters] = {}
    for name, engine in now.metrics.engines.items():
        if earlier := before.metrics.engines.get(name):
            counted = since(earlier.counters, now=engine.counters)
            if counted is None or _is_other(earlier, engine):
                return None
            engines[name] = counted
    if not engines:
        return None
    seconds, (first, last) = now.at_s - before.at_s, (before.metrics, now.metrics)
    return Stretch(
        began_s=before.at_s,
        ended_s=now.at_s,
        engines=engines,
        speculates=last.speculates,
        running_request_s=(first.running_requests + last.running_requests) / 2 * seconds,
        waiting_request_s=(first.waiting_requests + last.waiting_requests) / 2 * seconds,
        most_running=max(first.running_requests, last.running_requests),
        most_waiting=max(first.waiting_requests, last.waiting_requests),
        most_kv_cache_usage=_most((first.kv_cache_usage, last.kv_cache_usage)),
    )


def _most(usage: Iterable[float | None]) -> float | None:
    return max((value for value in usage if value is not None), default=None)


def _is_other(before: EngineMetrics, now: EngineMetrics) -> bool:
    """Whether it began to count at another time: a new process may have overtaken the old one's counters."""
    return before.created_s is not None and now.created_s is not None and before.created_s != now.created_s


def joined(parts: Sequence[Stretch]) -> Stretch:
    """Return stretches that follow one another, as one. There must be one."""
    names = dict.fromkeys(name for part in parts for name in part.engines)
    return Stretch(
        began_s=parts[0].began_s,
        ended_s=parts[-1].ended_s,
        engines={
            name: sum((part.engines[name] for part in parts if name in part.engines), Counters())
            for name in names
        },
        speculates=parts[-1].speculates,
        running_request_s=sum(part.running_request_s for part in parts),
        waiting_request_s=sum(part.waiting_request_s for part in parts),
        most_running=max(part.most_running for part in parts),
        most_waiting=max(part.most_waiting for part in parts),
        most_kv_cache_usage=_most(part.most_kv_cache_usage for part in parts),
    )


MOST = 120
"""Stretches that are kept. Of more, neighbours are joined: a long time is kept in coarser pieces."""


class Window:
    """Stretches of one server, oldest first. `span_s`: how much of the past is kept; None: all of it."""

    def __init__(self, *, span_s: float | None = None) -> None:
        self.span_s = span_s
        self.stretches: tuple[Stretch, ...] = ()

    def add(self, stretch: Stretch) -> None:
        """Add one and drop what is too old, by more than half of its length."""
        kept = list(self.stretches)
        if self.span_s is not None:
            if kept and kept[-1].seconds < self.span_s / MOST:
                stretch = joined([kept.pop(), stretch])
            oldest_s = stretch.ended_s - self.span_s
            kept = [part for part in kept if part.began_s + part.seconds / 2 >= oldest_s]
        elif len(kept) == MOST:
            kept = [joined(kept[index : index + 2]) for index in range(0, MOST, 2)]
        self.stretches = (*kept, stretch)

    def clear(self) -> None:
        """Forget everything, because the server was restarted."""
        self.stretches = ()

    def acceptance_before(self, at_s: float) -> Acceptance:
        """Return that of the stretches that had ended by then."""
        return total_acceptance(part.acceptance for part in self.stretches if part.ended_s <= at_s)


Interval = tuple[float, float]
_GROUPS = 12
_LEAST_GROUPS = 3
_REQUESTS_PER_GROUP = 1.5
"""A group lasts this many times as long as a request: neighbours that share one are alike."""
_CORRELATION = 0.5
"""Of the drafts of one request, assumed: requests whose acceptance varies by 0.15 come to about 0.15."""
Ratio = Callable[[Acceptance], tuple[int, int]]


def ratio_interval(groups: Sequence[Acceptance], ratio: Ratio) -> Interval | None:
    """Return the interval of accepted tokens over another count; None if there are fewer than 3 groups.

    The groups are the sample: batch means, ratio estimator, Student's t. It is never narrower than that of as many
    independent drafts: groups of few drafts can be alike by chance.
    """
    pairs = [(upper, lower) for upper, lower in map(ratio, groups) if lower]
    count = len(pairs)
    if count < _LEAST_GROUPS:
        return None
    uppers, lowers = sum(upper for upper, _ in pairs), sum(lower for _, lower in pairs)
    value = uppers / lowers
    spread = sum((upper - value * lower) ** 2 for upper, lower in pairs) * count / (count - 1)
    whole = total_acceptance(groups)
    variance = max(spread, whole.drafts * draft_variance(whole))
    half = quantile(0.975, freedom=count - 1) * math.sqrt(variance) / lowers
    return max(value - half, 0.0), value + half


def request_interval(whole: Acceptance, ratio: Ratio, *, requests: int) -> Interval | None:
    """Return a wide interval of the same ratio for time that is too short for groups; None for under 2 requests.

    The drafts of one request are correlated, and counters do not tell by how much: a high correlation is assumed.
    """
    upper, lower = ratio(whole)
    if requests < 2 or not lower:
        return None
    share = _CORRELATION / requests + (1 - _CORRELATION) / whole.drafts
    error = whole.drafts * math.sqrt(draft_variance(whole) * share) / lower
    half = quantile(0.975, freedom=requests - 1) * error
    return max(upper / lower - half, 0.0), upper / lower + half


def draft_variance(whole: Acceptance) -> float:
    """Return the variance of the tokens that one draft has accepted.

    Two drafts are added, one accepted and one refused as a whole (Agresti and Coull): few drafts that are all alike
    do not prove that all are.
    """
    most = len(whole.accepted_per_position)
    drafts = whole.drafts + 2
    squares = sum((2 * index + 1) * count for index, count in enumerate(whole.accepted_per_position))
    mean = (whole.accepted_tokens + most) / drafts
    return max(0.0, (squares + most**2) / drafts - mean**2)


def groups_of(stretches: Sequence[Stretch], *, request_s: float | None) -> list[Acceptance]:
    """Return the time in up to 12 groups, each 1.5 times as long as a request takes on average (`request_s`).

    Drafts of one request are correlated, and counters do not tell requests apart: in shorter groups, neighbours would
    be alike, and the interval too narrow.
    """
    if not stretches:
        return []
    seconds = stretches[-1].ended_s - stretches[0].began_s
    least_s = max(seconds / _GROUPS, _REQUESTS_PER_GROUP * (request_s or 0.0))
    groups: list[Acceptance] = []
    kept, kept_s = Acceptance(), 0.0
    for part in stretches:
        kept, kept_s = kept + part.acceptance, kept_s + part.seconds
        if kept_s >= 0.99 * least_s:
            groups.append(kept)
            kept, kept_s = Acceptance(), 0.0
    if kept_s and groups:
        groups[-1] += kept
    return groups


NUMBER_DRAFTS = 200
"""Without an interval, a figure of acceptance needs this many drafts: of three tokens vLLM's log once said 4.00."""
QUANTILES = (0.5, 0.9, 0.99)


def quantiles_s(observed: Histogram) -> tuple[float | None, ...]:
    """Return those at QUANTILES, by PromQL's rule; None if too few requests finished for one (p99: under 100)."""
    count = observed.count
    return tuple(observed.quantile(share) if count * (1 - share) >= 0.999 else None for share in QUANTILES)


LATENCIES = ("ttft", "tpot", "e2e", "queue")


@dataclass(frozen=True, slots=True)
class WatchFigures:
    """What is known of one stretch of time."""

    whole: Stretch
    counters: Counters
    known: Acceptance
    """The counts if they suffice for figures of acceptance, else none."""
    mean_acceptance_length_interval: Interval | None
    """95 %."""
    acceptance_rate_interval: Interval | None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per step with drafts, the target's own included: 1 to K + 1; None if it is not known."""
        return self.known.mean_acceptance_length

    @property
    def undrafted_share(self) -> float | None:
        """Share of the output tokens after each request's first that came without a draft; None if it is not known.

        A step with drafts gives what was accepted and one token; a request's first token comes of its prompt. What a
        request's end cuts off is counted as accepted all the same, so short outputs hide some of it.
        """
        counted, later = (
            self.counters.acceptance,
            self.counters.generation_tokens - self.counters.ttft_s.count,
        )
        drafted = counted.drafts + counted.accepted_tokens
        return None if later < NUMBER_DRAFTS else max(0.0, (later - drafted) / later)

    @property
    def running_requests(self) -> float:
        """The mean over the window."""
        return self.per_s(self.whole.running_request_s)

    def per_s(self, amount: float) -> float:
        """Return an amount of the window per second."""
        return amount / max(self.whole.seconds, 1e-9)

    def latency(self, name: str) -> Histogram:
        """Return one of LATENCIES, in seconds."""
        found: Histogram = getattr(self.counters, f"{name}_s")
        return found


def figures(stretches: Sequence[Stretch]) -> WatchFigures:
    """Return all that can be said of these stretches, which follow one another. There must be one."""
    whole = joined(stretches)
    counters = whole.counters
    counted, requests = counters.acceptance, counters.finished_requests
    groups = groups_of(stretches, request_s=whole.request_s)
    most = len(counted.accepted_per_position)

    def interval(ratio: Ratio) -> Interval | None:
        """Of groups of time; of the finished requests if the time holds too few groups."""
        return ratio_interval(groups, ratio) or request_interval(counted, ratio, requests=requests)

    length = interval(lambda group: (group.accepted_tokens, group.drafts))
    rate = interval(lambda group: (group.accepted_tokens, group.draft_tokens))
    return WatchFigures(
        whole=whole,
        counters=counters,
        known=counted if counted.drafts >= NUMBER_DRAFTS or length is not None else Acceptance(),
        mean_acceptance_length_interval=length and (1 + length[0], 1 + min(length[1], most)),
        acceptance_rate_interval=rate and (rate[0], min(rate[1], 1.0)),
    )


LENGTH = 1.05
"""Mean acceptance length under which speculation is dead: of 20 steps, one accepts one draft token."""
LEAST_S = 15.0
SURE_DRAFTS = 1000
"""A collapse lasts so long, or shows in so many drafts: one odd request of a quiet server shall not raise an alarm."""


@dataclass(frozen=True, slots=True)
class Collapse:
    """One engine whose draft tokens are refused, in its newest stretch of time."""

    engine: EngineName
    length: float
    for_s: float
    """How long the stretch is that shows it."""
    before: float | None
    """The mean acceptance length earlier in the window, if there is one."""


def collapses(stretches: Sequence[Stretch]) -> tuple[Collapse, ...]:
    """Return the engines that collapsed. Each is judged alone: in the sum of eight, one dead one does not show.

    An engine is judged by the shortest newest time that holds 200 of its drafts and is 15 s long, or holds
    1,000, so that what went well before does not hide it.
    """
    names = dict.fromkeys(name for part in stretches for name in part.engines)
    found = (_collapse(stretches, name) for name in names)
    return tuple(collapse for collapse in found if collapse is not None)


def _collapse(stretches: Sequence[Stretch], name: EngineName) -> Collapse | None:
    counted = [part.engines[name].acceptance if name in part.engines else Acceptance() for part in stretches]
    newest = Acceptance()
    for index in reversed(range(len(stretches))):
        newest += counted[index]
        for_s = stretches[-1].ended_s - stretches[index].began_s
        if newest.drafts < NUMBER_DRAFTS or (for_s < LEAST_S and newest.drafts < SURE_DRAFTS):
            continue
        length = newest.mean_acceptance_length
        if length is None or length >= LENGTH:
            return None
        earlier = total_acceptance(counted[:index])
        is_known = earlier.drafts >= NUMBER_DRAFTS
        return Collapse(name, length, for_s, earlier.mean_acceptance_length if is_known else None)
    return None
