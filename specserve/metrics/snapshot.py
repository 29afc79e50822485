"""One reading of vLLM's /metrics, whole: counters and gauges of each engine. Does not know how it was fetched."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from specserve.errors import FactError
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram
from specserve.metrics.prometheus import Sample, samples

MOST_ENGINES = 1024
_MOST_BUCKETS = 200
_SPECULATION = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
}
_POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos"
_FINISHED = "vllm:request_success"
_NUMBERS = {
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens",
    "vllm:num_preemptions": "preemptions",
}
_GAUGES = {
    "vllm:num_requests_running": "running_requests",
    "vllm:num_requests_waiting": "waiting_requests",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:gpu_cache_usage_perc": "kv_cache_usage",  # its name until vLLM 0.10
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:request_time_per_output_token_seconds": "tpot_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_s",
    "vllm:request_prompt_tokens": "request_prompt_tokens",
    "vllm:request_generation_tokens": "request_generation_tokens",
}
_STARTED = "process_start_time_seconds"
_CREATED = "vllm:generation_tokens_created"
_COUNTERS = (*_SPECULATION, _POSITIONS, _FINISHED, *_NUMBERS)
NAMES = frozenset(
    (
        _STARTED,
        _CREATED,
        *_GAUGES,
        *_COUNTERS,
        *(f"{name}_total" for name in _COUNTERS),
        *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum")),
    )
)
"""Every name that is read, with and without `_total`, which depends on the version of the exporter."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine at one moment."""

    counters: Counters = field(default_factory=Counters)
    running_requests: int = 0
    waiting_requests: int = 0
    kv_cache_usage: float | None = None
    """Share of the KV cache in use, 0 to 1; None where the server does not tell."""
    speculates: bool = False
    """Whether it has speculation counters; vLLM writes them from its start, before any draft."""
    created_s: float | None = None
    """Seconds since the epoch when it began to count; None where the server does not tell."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All engines of one server at one moment."""

    engines: Mapping[EngineName, Engine]

    @property
    def models(self) -> tuple[str, ...]:
        """The served names that there are."""
        return tuple(sorted({name.model_name for name in self.engines}))

    def of_model(self, model: str) -> Snapshot:
        """Only the engines of that served name."""
        return Snapshot({name: found for name, found in self.engines.items() if name.model_name == model})


class _Tally:
    """What the lines of one engine say, while they are read."""

    def __init__(self) -> None:
        self.values: dict[str, float] = defaultdict(float)
        self.finished: dict[str, int] = defaultdict(int)
        self.positions: dict[int, int] = defaultdict(int)
        self.buckets: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
        self.created_s: float | None = None

    def add(self, sample: Sample) -> None:
        name = sample.name.removesuffix("_total")
        if name == _FINISHED:
            self.finished[sample.labels.get("finished_reason", "")] += int(sample.at_least_zero())
        elif name == _POSITIONS:
            self.positions[_position(sample)] += int(sample.at_least_zero())
        elif name == _CREATED:
            self.created_s = sample.value if math.isfinite(sample.value) else None
        elif name.endswith("_bucket"):
            self.buckets[name.removesuffix("_bucket")][_bound(sample)] += int(sample.at_least_zero())
        else:
            self.values[name] += sample.at_least_zero()

    def engine(self) -> Engine:
        usage = [self.values[name] for name in _GAUGES if name in self.values and "cache_usage" in name]
        counted: dict[str, Any] = {field: int(self.values[name]) for name, field in _NUMBERS.items()}
        counted |= {field: self._histogram(name) for name, field in _HISTOGRAMS.items()}
        return Engine(
            counters=Counters(
                acceptance=self._acceptance(),
                finished=dict(self.finished),
                **counted,
            ),
            running_requests=int(self.values["vllm:num_requests_running"]),
            waiting_requests=int(self.values["vllm:num_requests_waiting"]),
            kv_cache_usage=min(usage[0], 1.0) if usage else None,
            speculates="vllm:spec_decode_num_drafts" in self.values,
            created_s=self.created_s,
        )

    def _acceptance(self) -> Acceptance:
        counts = {field: int(self.values.get(name, 0)) for name, field in _SPECULATION.items()}
        per_position = tuple(
            self.positions.get(index, 0) for index in range(max(self.positions, default=-1) + 1)
        )
        found = Acceptance(**counts, accepted_per_position=per_position)
        # Several API servers' counters are not read in one moment, so a little may be missing.
        if found.accepted_tokens > 1.01 * found.draft_tokens + 100:
            raise FactError(
                f"the metrics cannot be right: {found.accepted_tokens:,} draft tokens were accepted "
                f"of {found.draft_tokens:,}"
            )
        return found

    def _histogram(self, name: str) -> Histogram:
        buckets = sorted(self.buckets.get(name, {}).items())
        if not buckets:
            return Histogram()
        upto = [count for _, count in buckets]
        if any(after < before for before, after in pairwise(upto)):
            raise FactError(f"the metrics cannot be right: the buckets of `{name}` are not cumulative")
        if not math.isinf(buckets[-1][0]) or len(buckets) > _MOST_BUCKETS:
            raise FactError(f"the metrics cannot be right: the buckets of `{name}` are not complete")
        counts = tuple(after - before for before, after in pairwise([0, *upto]))
        return Histogram(
            _kept(tuple(bound for bound, _ in buckets)), counts, self.values.get(f"{name}_sum", 0.0)
        )


@lru_cache(maxsize=64)
def _kept(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same tuple for all readings: whoever watches keeps hundreds of histograms with these bounds."""
    return bounds


def read(text: str) -> Snapshot:
    """Parse a /metrics text. Raises FactError where it is none of vLLM's, or holds what vLLM cannot have counted.

    Metric names: vllm 0.26 to 0.33, v1/metrics/loggers.py and v1/spec_decode/metrics.py.
    """
    tallies: dict[EngineName, _Tally] = defaultdict(_Tally)
    started_s: float | None = None
    for sample in samples(text, names=NAMES):
        if sample.name == _STARTED:
            started_s = sample.value if math.isfinite(sample.value) else None
            continue
        name = EngineName(sample.labels.get("model_name", ""), sample.labels.get("engine", ""))
        tallies[name].add(sample)
        if len(tallies) > MOST_ENGINES:
            raise FactError(f"the metrics hold more than {MOST_ENGINES} engines")
    if not tallies:
        raise FactError("the metrics hold nothing of vLLM", hint="a URL is the root of a vLLM server")
    return Snapshot(dict(_engines(tallies, started_s)))


def _engines(
    tallies: Mapping[EngineName, _Tally], started_s: float | None
) -> Iterator[tuple[EngineName, Engine]]:
    for name in sorted(tallies):
        tally = tallies[name]
        # with several API servers vLLM writes neither time
        tally.created_s = tally.created_s if tally.created_s is not None else started_s
        yield name, tally.engine()


def _position(sample: Sample) -> int:
    text = sample.labels.get("position", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise FactError(f"the metrics cannot be right: `{sample.name}` has a position {text[:20]!r}")
    return int(text)


def _bound(sample: Sample) -> float:
    try:
        bound = float(sample.labels.get("le", ""))
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise FactError(f"the metrics cannot be right: a bucket of `{sample.name}` has no bound")
    return bound
