"""What one engine counted, since its start or in a stretch of time, and the acceptance of draft tokens."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple, Self, TypeVar

Counted = TypeVar("Counted")


class _Summed:
    """Counts of several engines, or of several stretches of time, add up field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        found: Self = _combined(operator.add, self, other)
        return found


def _combined(each: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """Both values, number by number; a number that only one of them has is combined with 0."""
    if isinstance(first, Histogram):
        return first.combined(each, second)
    if is_dataclass(first) and not isinstance(first, type):
        names = [one.name for one in fields(first)]
        values = {name: _combined(each, getattr(first, name), getattr(second, name)) for name in names}
        return replace(first, **values)
    if isinstance(first, Mapping):
        return {key: each(first.get(key, 0), second.get(key, 0)) for key in {**first, **second}}
    if isinstance(first, tuple):
        return tuple(each(mine, theirs) for mine, theirs in zip_longest(first, second, fillvalue=0))
    return each(first, second)


class _DroppedError(Exception):
    """A count is lower than before."""


def _gained(now: float, before: float) -> float:
    if isinstance(now, int) and now < before:
        raise _DroppedError
    return now - before


def since(before: Counted, *, now: Counted) -> Counted | None:
    """Return what one engine counted between two readings; None if a count dropped, because the engine restarted."""
    try:
        found: Counted = _combined(_gained, now, before)
    except _DroppedError:
        return None
    return found


@dataclass(frozen=True, slots=True)
class Histogram(_Summed):
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

    def combined(self, each: Callable[[Any, Any], Any], other: Histogram) -> Histogram:
        """Return both histograms, bucket by bucket."""
        bounds = self.bounds
        if bounds != other.bounds:
            bounds = tuple(sorted({*bounds, *other.bounds}))
        mine, theirs = (dict(zip(one.bounds, one.counts, strict=True)) for one in (self, other))
        counts = tuple(each(mine.get(bound, 0), theirs.get(bound, 0)) for bound in bounds)
        return Histogram(bounds, counts, each(float(self.sum), other.sum))

    def quantile(self, share: float) -> float | None:
        """Return the value below which that share lies: PromQL's `histogram_quantile`; None without an observation.

        Inside a bucket the values are taken as evenly spread; of the last one only its lower bound is known.
        """
        if not self.count:
            return None
        rank = share * self.count
        index, before = self._find(rank)
        low, high = self._edges(index)
        if not math.isfinite(high):
            return low
        return low + (high - low) * (rank - before) / self.counts[index]

    def around(self, rank: int) -> tuple[float, float]:
        """Return the edges of the bucket that holds the observation of that rank, the smallest one being 1."""
        return self._edges(self._find(max(rank, 1))[0])

    def _find(self, rank: float) -> tuple[int, int]:
        """The bucket of a rank, and how many observations lie before it."""
        last = max(index for index, count in enumerate(self.counts) if count)
        for index, upto in enumerate(accumulate(self.counts)):
            if self.counts[index] and (upto >= rank or index == last):
                return index, upto - self.counts[index]
        raise AssertionError("no observation")

    def _edges(self, index: int) -> tuple[float, float]:
        return (self.bounds[index - 1] if index else 0.0), self.bounds[index]


@dataclass(frozen=True, slots=True)
class Acceptance(_Summed):
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
        """Accepted share of the drafted tokens, 0 to 1; None if nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification step, the target's own included: 1 to K + 1; None without a step."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of the steps that accepted draft token i. If K varies, later positions read low."""
        return tuple(count / self.drafts for count in self.accepted_per_position) if self.drafts else ()

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Share of the steps in which draft token i was accepted, of those that accepted the one before it.

        None after a position that nothing reached.
        """
        reached = (self.drafts, *self.accepted_per_position)
        pairs = zip(reached, self.accepted_per_position, strict=False)
        return tuple(accepted / before if before else None for before, accepted in pairs)


def total_acceptance(parts: Iterable[Acceptance]) -> Acceptance:
    """Return the sum over several engines or requests."""
    return sum(parts, Acceptance())


EngineKey = TypeVar("EngineKey")


def since_by_engine(
    before: Mapping[EngineKey, Acceptance], *, now: Mapping[EngineKey, Acceptance]
) -> Acceptance:
    """Return the gain of several engines, each compared with itself; one that restarted counts from 0."""
    return total_acceptance(
        since(before.get(engine, Acceptance()), now=counted) or counted for engine, counted in now.items()
    )


def of_request(summary: object) -> Acceptance | None:
    """Read `metrics.speculative_decoding` of one response; None if it is not what vLLM writes.

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
class Counters(_Summed):
    """Everything that only grows while an engine lives."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    finished: Mapping[str, int] = field(default_factory=dict)
    """Finished requests by vLLM's reason: stop, length, abort, error, …"""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    ttft_s: Histogram = field(default_factory=Histogram)
    tpot_s: Histogram = field(default_factory=Histogram)
    """Of each finished request: (last - first token) / (output tokens - 1); 0 if it had but one."""
    e2e_s: Histogram = field(default_factory=Histogram)
    queue_s: Histogram = field(default_factory=Histogram)
    request_prompt_tokens: Histogram = field(default_factory=Histogram)

    @property
    def finished_requests(self) -> int:
        """For whatever reason."""
        return sum(self.finished.values())
