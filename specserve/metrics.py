"""What vLLM counted, read from its /metrics text, and what was gained between two readings."""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, Self, TypeVar

from specserve.errors import FactError

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


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One engine at one moment."""

    counters: Counters = field(default_factory=Counters)
    running_requests: int = 0
    waiting_requests: int = 0
    speculates: bool = False
    """Whether it has speculation counters; vLLM writes them from its start, before any draft."""
    created_s: float | None = None
    """Seconds since the epoch when it began to count; None if the server does not say."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """All engines of one server at one moment; other figures are their sums since their start."""

    engines: Mapping[EngineName, EngineMetrics] = field(default_factory=dict)

    @property
    def speculates(self) -> bool:
        """Whether any engine has speculation counters."""
        return any(engine.speculates for engine in self.engines.values())

    @property
    def acceptance(self) -> dict[EngineName, Acceptance]:
        """That of each engine that speculates."""
        return {
            name: one.counters.acceptance for name, one in self.engines.items() if one.speculates
        }

    @property
    def total(self) -> Counters:
        """What all engines counted."""
        return sum((engine.counters for engine in self.engines.values()), Counters())

    @property
    def running_requests(self) -> int:
        """At this moment."""
        return sum(engine.running_requests for engine in self.engines.values())

    @property
    def waiting_requests(self) -> int:
        """At this moment."""
        return sum(engine.waiting_requests for engine in self.engines.values())


_MAX_COUNT = 2.0**63
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_NUMBERS = {
    "vllm:request_success_total": "finished_requests",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:request_time_per_output_token_seconds": "tpot_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_s",
}
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_CREATED = "vllm:generation_tokens_created"
NAMES = frozenset(
    [_DRAFTS, _DRAFTED, _ACCEPTED, _POSITIONS, _RUNNING, _WAITING, _CREATED, *_NUMBERS]
    + [f"{name}_{end}" for name in _HISTOGRAMS for end in ("bucket", "sum")]
)
"""Every name that is read."""
_LINE = re.compile(rf"^(?:{'|'.join(sorted(NAMES))})[{{ \t][^\n]{{0,1024}}$", re.M)
_Values = defaultdict[str, defaultdict[str, float]]
"""Of one engine: by name and by `position` or `le`, if the samples of a name have one."""


def read(text: str) -> Metrics:
    """Parse a /metrics text (vllm 0.33, v1/metrics/loggers.py, v1/spec_decode/metrics.py).

    Raises FactError if it is none of vLLM's, or holds what vLLM cannot have counted.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # of other lines, a million take no time; each of these is a family of its own to the parser
    lines = [found[0] for found in _LINE.finditer(text)]
    engines: dict[EngineName, _Values]
    engines = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    try:
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        samples = [sample for family in families for sample in family.samples]
        numbers = [float(sample.value) for sample in samples]
    except (ValueError, LookupError, OverflowError) as error:
        raise FactError(f"the metrics are not Prometheus text: {error}") from error
    for sample, value in zip(samples, numbers, strict=True):
        name, labels = sample.name, sample.labels
        if name != _CREATED and not 0 <= value < _MAX_COUNT:  # false for NaN
            raise _wrong(f"`{name}` has the impossible value {value:g}")
        engine = EngineName(labels.get("model_name", ""), labels.get("engine", ""))
        engines[engine][name][labels.get("position", labels.get("le", ""))] += value
    if not engines:
        hint = "give the root URL of a vLLM server; SGLang's own is `sglang:spec_accept_length`"
        raise FactError("the metrics are not vLLM's", hint=hint)
    return Metrics({engine: _engine(engines[engine]) for engine in sorted(engines)})


def _wrong(why: str) -> FactError:
    return FactError(f"the metrics are invalid: {why}")


def _engine(values: _Values) -> EngineMetrics:
    def number(name: str) -> float:
        return values[name][""] if name in values else 0.0

    created_s = number(_CREATED)
    counted: dict[str, Any] = {into: int(number(name)) for name, into in _NUMBERS.items()}
    counted |= {into: _histogram(name, values) for name, into in _HISTOGRAMS.items()}
    if wrong := [key for key in values[_POSITIONS] if not re.fullmatch("[0-9]{1,3}", key)]:
        raise _wrong(f"`{_POSITIONS}` has an invalid position, {wrong[0][:20]!r}")
    positions = {int(key): int(value) for key, value in values[_POSITIONS].items()}
    drafts, drafted, accepted = (int(number(name)) for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
    # several API servers' counters are not read in one moment, so a little may be missing
    if accepted > 1.01 * drafted + 100:
        raise _wrong(f"{accepted:,} draft tokens accepted, but only {drafted:,} drafted")
    every = tuple(positions.get(index, 0) for index in range(max(positions, default=-1) + 1))
    return EngineMetrics(
        counters=Counters(Acceptance(drafts, drafted, accepted, every), **counted),
        running_requests=int(number(_RUNNING)),
        waiting_requests=int(number(_WAITING)),
        speculates=_DRAFTS in values,
        created_s=created_s if 0 < created_s < math.inf else None,
    )


def _histogram(name: str, values: _Values) -> Histogram:
    try:
        buckets = sorted((float(le), int(n)) for le, n in values[f"{name}_bucket"].items())
    except ValueError:
        raise _wrong(f"a bucket of `{name}` has no valid upper bound (`le`)") from None
    if buckets and not (math.isinf(buckets[-1][0]) and all(bound >= 0 for bound, _ in buckets)):
        raise _wrong(f"the histogram `{name}` has no bucket up to infinity")
    counts = {bound: n - before for (_, before), (bound, n) in pairwise([(0.0, 0), *buckets])}
    if any(count < 0 for count in counts.values()):
        raise _wrong(f"the buckets of the histogram `{name}` are not cumulative")
    return Histogram(counts, values[f"{name}_sum"][""])
