"""What an engine counted, since its start or between two readings, acceptance among it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import zip_longest
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
    if isinstance(first, _Summed):
        names = [one.name for one in fields(first)]  # type: ignore[arg-type]
        return type(first)(
            *(_combined(each, getattr(first, name), getattr(second, name)) for name in names)
        )
    if isinstance(first, Mapping):
        return {key: each(first.get(key, 0), second.get(key, 0)) for key in {**first, **second}}
    if isinstance(first, tuple):
        return tuple(each(*pair) for pair in zip_longest(first, second, fillvalue=0))
    return each(first, second)


def since(before: Counted, *, now: Counted) -> Counted | None:
    """Return the gain between two readings of an engine; None if a count dropped: a restart."""

    def gained(after: float, earlier: float) -> float:
        if isinstance(after, int) and after < earlier:
            raise ArithmeticError
        return after - earlier

    try:
        found: Counted = _combined(gained, now, before)
    except ArithmeticError:
        return None
    return found


@dataclass(frozen=True, slots=True)
class Histogram(_Summed):
    """Observations by the upper bound of their bucket; those of the text are cumulative."""

    counts: Mapping[float, int] = field(default_factory=dict)
    sum: float = 0.0
    """Of the observed values."""

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """The mean of the observed values, which buckets do not blur; None without one."""
        return self.sum / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the value below which that share lies, as PromQL's `histogram_quantile` does.

        Inside a bucket the values are taken as evenly spread; of the last one only its lower bound
        is known. None without an observation.
        """
        if not self.count:
            return None
        rank = share * self.count
        low, high, before, count = self.bucket(rank)
        return low + (high - low) * (rank - before) / count if math.isfinite(high) else low

    def bucket(self, rank: float) -> tuple[float, float, int, int]:
        """Return both edges of the bucket of a rank, the count before it, and the count in it."""
        low, before = 0.0, 0
        for high, count in sorted(self.counts.items()):
            if count and before + count >= min(rank, self.count):
                return low, high, before, count
            low, before = high, before + count
        raise AssertionError("no observation")


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
        """Tokens per verification step, the target's own included: 1 to K + 1; None without one."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of the steps that accepted draft token i. If K varies, later ones read low."""
        return tuple(count / (self.drafts or 1) for count in self.accepted_per_position)


def total_acceptance(parts: Iterable[Acceptance]) -> Acceptance:
    """Return the sum over several engines or requests."""
    return sum(parts, Acceptance())


EngineKey = TypeVar("EngineKey")


def since_by_engine(
    before: Mapping[EngineKey, Acceptance], *, now: Mapping[EngineKey, Acceptance]
) -> Acceptance:
    """Return the gain of several engines, each compared with itself; a restarted one is from 0."""
    return total_acceptance(
        since(before.get(engine, Acceptance()), now=counted) or counted
        for engine, counted in now.items()
    )


class EngineName(NamedTuple):
    """vLLM's labels of one engine; with data parallelism there are several."""

    model_name: str
    engine: str


@dataclass(frozen=True, slots=True)
class Counters(_Summed):
    """Everything that only grows while an engine lives."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    finished_requests: int = 0
    """For whatever reason."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    ttft_s: Histogram = field(default_factory=Histogram)
    tpot_s: Histogram = field(default_factory=Histogram)
    """Of each finished request: (last - first token) / (output tokens - 1); 0 if it had but one."""
    e2e_s: Histogram = field(default_factory=Histogram)
    queue_s: Histogram = field(default_factory=Histogram)
