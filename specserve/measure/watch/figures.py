"""The figures of a window: what speculation did, how fast it was, how full. Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specserve.measure.watch.interval import Ratio, groups_of, ratio_interval, request_interval
from specserve.measure.watch.stretch import Stretch, joined
from specserve.metrics.acceptance import Acceptance
from specserve.metrics.counters import Counters, EngineName
from specserve.metrics.histogram import Histogram

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
class Figures:
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


def figures(stretches: Sequence[Stretch]) -> Figures:
    """All that can be said of these stretches, which follow one another. There must be one."""
    whole = joined(stretches)
    counters, seconds = whole.counters, max(whole.seconds, 1e-9)
    counted = counters.acceptance
    length = _interval(stretches, whole, lambda group: (group.accepted_tokens, group.drafts))
    rate = _interval(stretches, whole, lambda group: (group.accepted_tokens, group.draft_tokens))
    told = counted.drafts >= NUMBER_DRAFTS or length is not None
    most = len(counted.accepted_per_position)
    return Figures(
        window_s=whole.seconds,
        counters=counters,
        speculates=whole.speculates,
        mean_acceptance_length=counted.mean_acceptance_length if told else None,
        mean_acceptance_length_interval=length and (1 + length[0], 1 + min(length[1], most)),
        acceptance_rate=counted.acceptance_rate if told else None,
        acceptance_rate_interval=rate and (rate[0], min(rate[1], 1.0)),
        per_position=counted.per_position if told else (),
        conditional=counted.conditional if told else (),
        mean_draft_tokens=counted.draft_tokens / counted.drafts if told else None,
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
    running_s = whole.running_request_s / max(
        finished, 1
    )  # Little's law; it knows of requests that go on, too
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
