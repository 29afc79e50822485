"""What one engine counted, since its start or in a stretch of time, and the acceptance of draft tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import NamedTuple, TypeVar


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket: `counts[i]` lie above `bounds[i - 1]` and at or below `bounds[i]`.

    The last bound is infinite. Unlike the samples of the text, the counts are not cumulative.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0.0
    """Of the observed values."""

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean of the observed values, which buckets do not blur; None without one."""
        return self.sum / self.count if self.count else None

    def __add__(self, other: Histogram) -> Histogram:
        """Two engines, or two stretches of time, together. Of unlike buckets nothing can be said: it is empty."""
        if not self.bounds or not other.bounds:
            return self if self.bounds else other
        if self.bounds != other.bounds:
            return Histogram()
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def quantile(self, share: float) -> float | None:
        """The value below which that share lies: PromQL's `histogram_quantile`; None without an observation.

        Inside a bucket the values are taken as evenly spread; of the last one only its lower bound is known.
        """
        if not self.count:
            return None
        rank = share * self.count
        index, before = self._find(rank)
        low, high = self._edges(index)
        if not math.isfinite(high):
            return low
        if index == 0 and high <= 0:
            return high
        return low + (high - low) * (rank - before) / self.counts[index]

    def around(self, rank: int) -> tuple[float, float]:
        """The edges of the bucket that holds the observation of that rank, the smallest one being 1."""
        index, _ = self._find(max(rank, 1))
        return self._edges(index)

    def _find(self, rank: float) -> tuple[int, int]:
        """The bucket of a rank, and how many observations lie before it."""
        for index, upto in enumerate(accumulate(self.counts)):
            if upto >= rank and self.counts[index]:
                return index, upto - self.counts[index]
        last = max(index for index, count in enumerate(self.counts) if count)
        return last, self.count - self.counts[last]

    def _edges(self, index: int) -> tuple[float, float]:
        low = self.bounds[index - 1] if index else 0.0
        return low, self.bounds[index]


def histogram_since(before: Histogram, *, now: Histogram) -> Histogram | None:
    """What was observed between two readings; None where that cannot be: a restart, or other buckets."""
    if not before.bounds:
        return now
    if before.bounds != now.bounds:
        return None
    counts = tuple(after - earlier for earlier, after in zip(before.counts, now.counts, strict=True))
    return Histogram(now.bounds, counts, now.sum - before.sum) if min(counts) >= 0 else None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What vLLM's four speculation counters say (vllm 0.33, v1/spec_decode/metrics.py).

    `drafts` counts verification steps of a request with at least one draft token, and
    `accepted_per_position[i]` those of them whose draft token i (from 0) was accepted.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of the drafted tokens, 0 to 1; None where nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification step, the target's own included: 1 to K + 1; None without a step."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of the steps that accepted draft token i. Where K varies, later positions read low."""
        return tuple(count / self.drafts for count in self.accepted_per_position) if self.drafts else ()

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Share of the steps in which draft token i was accepted, of those that accepted the one before it.

        None after a position that nothing reached.
        """
        reached = (self.drafts, *self.accepted_per_position)
        pairs = zip(reached, self.accepted_per_position, strict=False)
        return tuple(accepted / before if before else None for before, accepted in pairs)

    def __add__(self, other: Acceptance) -> Acceptance:
        """Two engines, or two stretches of time, taken together."""
        pairs = zip_longest(self.accepted_per_position, other.accepted_per_position, fillvalue=0)
        return Acceptance(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(mine + theirs for mine, theirs in pairs),
        )


def gain(before: Acceptance, *, now: Acceptance) -> Acceptance | None:
    """What one engine's counters gained; None where one of them dropped: the engine was started anew."""
    pairs = zip_longest(before.accepted_per_position, now.accepted_per_position, fillvalue=0)
    found = Acceptance(
        now.drafts - before.drafts,
        now.draft_tokens - before.draft_tokens,
        now.accepted_tokens - before.accepted_tokens,
        tuple(after - earlier for earlier, after in pairs),
    )
    counts = (found.drafts, found.draft_tokens, found.accepted_tokens, *found.accepted_per_position)
    return found if min(counts) >= 0 else None


def total_acceptance(parts: Iterable[Acceptance]) -> Acceptance:
    """The sum over several engines or requests."""
    return sum(parts, Acceptance())


def acceptance_since(before: Acceptance, *, now: Acceptance) -> Acceptance:
    """What one engine's counters gained. A counter that dropped means a restart: then all of `now` is."""
    found = gain(before, now=now)
    return now if found is None else found


EngineKey = TypeVar("EngineKey")


def since_by_engine(
    before: Mapping[EngineKey, Acceptance], *, now: Mapping[EngineKey, Acceptance]
) -> Acceptance:
    """The gain of several engines, each compared with itself; an engine that is gone adds nothing."""
    return total_acceptance(
        acceptance_since(before.get(engine, Acceptance()), now=counts) for engine, counts in now.items()
    )


def of_request(summary: object) -> Acceptance | None:
    """Read `metrics.speculative_decoding` of one response; None where it is not what vLLM writes.

    Its `acceptance_histogram[j]` counts the steps that accepted exactly j draft tokens
    (vllm 0.33, v1/metrics/stats.py, RequestSpecDecodeMetrics).
    """
    if not isinstance(summary, Mapping):
        return None
    keys = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    numbers, histogram = [summary.get(key) for key in keys], summary.get("acceptance_histogram")
    if not isinstance(histogram, list):
        return None
    if not all(type(value) is int and value >= 0 for value in (*numbers, *histogram)):
        return None
    at_least = list(accumulate(reversed(histogram)))[::-1]
    drafts, draft_tokens, accepted_tokens = (int(str(value)) for value in numbers)
    return Acceptance(drafts, draft_tokens, accepted_tokens, tuple(at_least[1:]))


class EngineName(NamedTuple):
    """vLLM's labels of one engine; with data parallelism there are several."""

    model_name: str
    engine: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Everything that only grows while an engine lives."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    finished: Mapping[str, int] = field(default_factory=dict)
    """Finished requests by vLLM's reason: stop, length, abort, error, …"""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    ttft_s: Histogram = field(default_factory=Histogram)
    tpot_s: Histogram = field(default_factory=Histogram)
    """Of each finished request: (last - first token) / (output tokens - 1); 0 where it had but one."""
    e2e_s: Histogram = field(default_factory=Histogram)
    queue_s: Histogram = field(default_factory=Histogram)
    request_prompt_tokens: Histogram = field(default_factory=Histogram)
    request_generation_tokens: Histogram = field(default_factory=Histogram)

    @property
    def finished_requests(self) -> int:
        """For whatever reason."""
        return sum(self.finished.values())

    def __add__(self, other: Counters) -> Counters:
        """Two engines, or two stretches of time, together."""
        reasons = {**self.finished, **other.finished}
        return Counters(
            acceptance=self.acceptance + other.acceptance,
            finished={key: self.finished.get(key, 0) + other.finished.get(key, 0) for key in reasons},
            **{name: getattr(self, name) + getattr(other, name) for name in (*NUMBERS, *HISTOGRAMS)},
        )


NUMBERS = ("prompt_tokens", "generation_tokens", "preemptions")
HISTOGRAMS = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "request_prompt_tokens", "request_generation_tokens")


def total(parts: Iterable[Counters]) -> Counters:
    """The sum over engines or stretches of time."""
    return sum(parts, Counters())


def since(before: Counters, *, now: Counters) -> Counters | None:
    """What one engine counted between two readings; None where anything dropped: it was started anew."""
    finished = {key: count - before.finished.get(key, 0) for key, count in now.finished.items()}
    numbers = {name: getattr(now, name) - getattr(before, name) for name in NUMBERS}
    observed = {name: histogram_since(getattr(before, name), now=getattr(now, name)) for name in HISTOGRAMS}
    acceptance = gain(before.acceptance, now=now.acceptance)
    dropped = (
        min([*finished.values(), *numbers.values()]) < 0 or not before.finished.keys() <= now.finished.keys()
    )
    if dropped or acceptance is None or None in observed.values():
        return None
    return Counters(acceptance=acceptance, finished=finished, **numbers, **observed)  # type: ignore[arg-type]
