"""vLLM's /metrics text, read into the counters and gauges of each engine."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from specserve.errors import FactError
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram


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
