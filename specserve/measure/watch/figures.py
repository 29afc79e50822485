"""The figures of a window: what speculation did, how fast it was, how full, with intervals from counters alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specserve.measure.statistics import quantile
from specserve.metrics.counters import (
    Acceptance,
    Counters,
    EngineName,
    Histogram,
    since,
    total,
    total_acceptance,
)
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
        """All engines together."""
        return total(self.engines.values())

    @property
    def acceptance(self) -> Acceptance:
        """That of all engines together."""
        return total_acceptance(counted.acceptance for counted in self.engines.values())


def between(before: Reading, now: Reading) -> Stretch | None:
    """The stretch between two readings; None where the server was started anew in between.

    An engine that came or went is no restart of the others: what it counted before it was seen is left out.
    """
    engines: dict[EngineName, Counters] = {}
    for name, engine in now.metrics.engines.items():
        earlier = before.metrics.engines.get(name)
        if earlier is None:
            continue
        counted = since(earlier.counters, now=engine.counters)
        if counted is None or _is_other(earlier, engine):
            return None
        engines[name] = counted
    if not engines:
        return None
    seconds, ends = now.at_s - before.at_s, (before.metrics, now.metrics)
    running, waiting = (
        [getattr(end, name) for end in ends] for name in ("running_requests", "waiting_requests")
    )
    return Stretch(
        began_s=before.at_s,
        ended_s=now.at_s,
        engines=engines,
        speculates=now.metrics.speculates,
        running_request_s=sum(running) / 2 * seconds,
        waiting_request_s=sum(waiting) / 2 * seconds,
        most_running=max(running),
        most_waiting=max(waiting),
        most_kv_cache_usage=_most(end.kv_cache_usage for end in ends),
    )


def _most(usage: Iterable[float | None]) -> float | None:
    return max((value for value in usage if value is not None), default=None)


def _is_other(before: EngineMetrics, now: EngineMetrics) -> bool:
    """Whether it began to count at another time: a new process may have overtaken the old one's counters."""
    return before.created_s is not None and now.created_s is not None and before.created_s != now.created_s


def joined(parts: Sequence[Stretch]) -> Stretch:
    """Stretches that follow one another, as one. There must be one."""
    names = dict.fromkeys(name for part in parts for name in part.engines)
    return Stretch(
        began_s=parts[0].began_s,
        ended_s=parts[-1].ended_s,
        engines={name: total(part.engines[name] for part in parts if name in part.engines) for name in names},
        speculates=parts[-1].speculates,
        running_request_s=sum(part.running_request_s for part in parts),
        waiting_request_s=sum(part.waiting_request_s for part in parts),
        most_running=max(part.most_running for part in parts),
        most_waiting=max(part.most_waiting for part in parts),
        most_kv_cache_usage=_most(part.most_kv_cache_usage for part in parts),
    )


_Z = 1.959964
_GROUPS = 12
_LEAST_GROUPS = 3
_REQUESTS_PER_GROUP = 1.5
"""A group lasts so many times as long as a request: neighbours that share one are alike."""
_CORRELATION = 0.5
"""Of the drafts of one request, assumed: requests whose acceptance varies by 0.15 come to about 0.15."""
Ratio = Callable[[Acceptance], tuple[int, int]]


def ratio_interval(groups: Sequence[Acceptance], ratio: Ratio) -> tuple[float, float] | None:
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


def request_interval(whole: Acceptance, ratio: Ratio, *, requests: int) -> tuple[float, float] | None:
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


def quantile_interval(observed: Histogram, share: float) -> tuple[float, float] | None:
    """Where a quantile lies, by the ranks that it can have and the edges of their buckets; None without any.

    The upper end is infinite where there are too few observations to bound it (a 99th percentile: under 470).
    """
    count = observed.count
    if not count:
        return None
    spread = _Z * math.sqrt(count * share * (1 - share))
    low_rank, high_rank = math.floor(count * share - spread), math.ceil(count * share + spread) + 1
    low = observed.around(low_rank)[0]
    high = observed.around(high_rank)[1] if high_rank <= count else math.inf
    return low, high


NUMBER_DRAFTS = 200
"""Without an interval, a figure of acceptance needs this many drafts: of three tokens vLLM's log once said 4.00."""
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in seconds, by PromQL's rule; None where too few requests finished for one (p99: under 100)."""

    count: int = 0
    mean_s: float | None = None
    quantiles_s: tuple[float | None, ...] = (None, None, None)
    """At QUANTILES."""
    observed: Histogram = field(default_factory=Histogram, repr=False)


@dataclass(frozen=True, slots=True)
class WatchFigures:
    """Over `window_s` seconds. A figure is None where there is too little to tell it from."""

    window_s: float
    counters: Counters
    speculates: bool
    mean_acceptance_length: float | None = None
    """Tokens per step with drafts, the target's own included: 1 to K + 1."""
    mean_acceptance_length_interval: tuple[float, float] | None = None
    """95 %."""
    acceptance_rate: float | None = None
    acceptance_rate_interval: tuple[float, float] | None = None
    per_position: tuple[float, ...] = ()
    conditional: tuple[float | None, ...] = ()
    """Of the steps that accepted the position before, the share that accepted this one too."""
    mean_draft_tokens: float | None = None
    """Per step; below K where K varies: then later positions read low."""
    undrafted_share: float | None = None
    """Share of the output tokens after the first that came without a draft."""
    drafts_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    ttft: Latency = field(default_factory=Latency)
    tpot: Latency = field(default_factory=Latency)
    e2e: Latency = field(default_factory=Latency)
    queue: Latency = field(default_factory=Latency)
    running_requests: float = 0.0
    """The mean over the window."""
    waiting_requests: float = 0.0
    most_running: int = 0
    most_waiting: int = 0
    most_kv_cache_usage: float | None = None
    engines: Mapping[EngineName, Counters] = field(default_factory=dict)

    @property
    def acceptance(self) -> Acceptance:
        """The counts."""
        return self.counters.acceptance

    @property
    def num_speculative_tokens(self) -> int:
        """K, as vLLM's counters have positions; 0 where it does not speculate."""
        return len(self.acceptance.accepted_per_position)


def figures(stretches: Sequence[Stretch]) -> WatchFigures:
    """All that can be said of these stretches, which follow one another. There must be one."""
    whole = joined(stretches)
    counters, seconds = whole.counters, max(whole.seconds, 1e-9)
    counted = counters.acceptance
    length = _interval(stretches, whole, lambda group: (group.accepted_tokens, group.drafts))
    rate = _interval(stretches, whole, lambda group: (group.accepted_tokens, group.draft_tokens))
    is_known = counted.drafts >= NUMBER_DRAFTS or length is not None
    most = len(counted.accepted_per_position)
    return WatchFigures(
        window_s=whole.seconds,
        counters=counters,
        speculates=whole.speculates,
        mean_acceptance_length=counted.mean_acceptance_length if is_known else None,
        mean_acceptance_length_interval=length and (1 + length[0], 1 + min(length[1], most)),
        acceptance_rate=counted.acceptance_rate if is_known else None,
        acceptance_rate_interval=rate and (rate[0], min(rate[1], 1.0)),
        per_position=counted.per_position if is_known else (),
        conditional=counted.conditional if is_known else (),
        mean_draft_tokens=counted.draft_tokens / counted.drafts if is_known else None,
        undrafted_share=_undrafted(counters),
        drafts_per_s=counted.drafts / seconds,
        output_tokens_per_s=counters.generation_tokens / seconds,
        requests_per_s=counters.finished_requests / seconds,
        ttft=latency(counters.ttft_s),
        tpot=latency(counters.tpot_s),
        e2e=latency(counters.e2e_s),
        queue=latency(counters.queue_s),
        running_requests=whole.running_request_s / seconds,
        waiting_requests=whole.waiting_request_s / seconds,
        most_running=whole.most_running,
        most_waiting=whole.most_waiting,
        most_kv_cache_usage=whole.most_kv_cache_usage,
        engines=whole.engines,
    )


def _interval(stretches: Sequence[Stretch], whole: Stretch, ratio: Ratio) -> tuple[float, float] | None:
    """Of groups of time; of the finished requests if the time holds too few groups."""
    counters = whole.counters
    finished = counters.finished_requests
    running_s = whole.running_request_s / max(finished, 1)  # Little's law: counts requests that go on, too
    groups = groups_of(stretches, request_s=max(counters.e2e_s.mean or 0.0, running_s))
    found = ratio_interval(groups, ratio)
    return found or request_interval(counters.acceptance, ratio, requests=finished)


def _undrafted(counters: Counters) -> float | None:
    """A step with drafts gives what was accepted and one token; a request's first token comes of its prompt.

    What a request's end cuts off is counted as accepted all the same, so short outputs hide some of it.
    """
    later = counters.generation_tokens - counters.ttft_s.count
    if later < NUMBER_DRAFTS:
        return None
    drafted = counters.acceptance.drafts + counters.acceptance.accepted_tokens
    return max(0.0, (later - drafted) / later)


def latency(observed: Histogram) -> Latency:
    """The quantiles of one of vLLM's histograms."""
    count = observed.count
    quantiles = (observed.quantile(share) if count * (1 - share) >= 0.999 else None for share in QUANTILES)
    return Latency(count, observed.mean, tuple(quantiles), observed)


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
    """The mean acceptance length earlier in the window, where there is one."""


def collapses(stretches: tuple[Stretch, ...]) -> tuple[Collapse, ...]:
    """The engines that collapsed. Each is judged alone: in the sum of eight, one dead one does not show.

    An engine is judged by the shortest newest time that holds 200 of its drafts and is 15 s long, or holds
    1,000, so that what went well before does not hide it.
    """
    names = dict.fromkeys(name for part in stretches for name in part.engines)
    found = (_collapse(stretches, name) for name in names)
    return tuple(collapse for collapse in found if collapse is not None)


def _collapse(stretches: tuple[Stretch, ...], name: EngineName) -> Collapse | None:
    newest = Acceptance()
    for index in range(len(stretches) - 1, -1, -1):
        counted = stretches[index].engines.get(name)
        newest += counted.acceptance if counted else Acceptance()
        for_s = stretches[-1].ended_s - stretches[index].began_s
        if newest.drafts < NUMBER_DRAFTS or (for_s < LEAST_S and newest.drafts < SURE_DRAFTS):
            continue
        length = newest.mean_acceptance_length
        if length is None or length >= LENGTH:
            return None
        earlier = total_acceptance(
            part.engines[name].acceptance for part in stretches[:index] if name in part.engines
        )
        is_known = earlier.drafts >= NUMBER_DRAFTS
        return Collapse(name, length, for_s, earlier.mean_acceptance_length if is_known else None)
    return None
