"""vLLM's /metrics text, read into the counters and gauges of each engine."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
    kv_cache_usage: float | None = None
    """Share of the KV cache in use, 0 to 1; None if the server does not say."""
    speculates: bool = False
    """Whether it has speculation counters; vLLM writes them from its start, before any draft."""
    created_s: float | None = None
    """Seconds since the epoch when it began to count; None if the server does not say."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """All engines of one server at one moment; figures without an engine are their sums since their start."""

    engines: Mapping[EngineName, EngineMetrics] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """The served names that there are."""
        return tuple(sorted({name.model_name for name in self.engines}))

    def of_model(self, model: str) -> Metrics:
        """Return the engines of that served name alone."""
        return Metrics({name: found for name, found in self.engines.items() if name.model_name == model})

    @property
    def speculates(self) -> bool:
        """Whether any engine has speculation counters."""
        return any(engine.speculates for engine in self.engines.values())

    @property
    def acceptance(self) -> dict[EngineName, Acceptance]:
        """That of each engine that speculates."""
        return {name: one.counters.acceptance for name, one in self.engines.items() if one.speculates}

    @property
    def finished_requests(self) -> int:
        """For whatever reason."""
        return sum(engine.counters.finished_requests for engine in self.engines.values())

    @property
    def running_requests(self) -> int:
        """At this moment."""
        return sum(engine.running_requests for engine in self.engines.values())

    @property
    def waiting_requests(self) -> int:
        """At this moment."""
        return sum(engine.waiting_requests for engine in self.engines.values())

    @property
    def kv_cache_usage(self) -> float | None:
        """That of the fullest engine."""
        usage = [engine.kv_cache_usage for engine in self.engines.values()]
        return max((value for value in usage if value is not None), default=None)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens."""
        counters = [engine.counters for engine in self.engines.values()]
        return sum(one.prompt_tokens + one.generation_tokens for one in counters)


MOST_SAMPLES = 50_000
"""Of those that are read: a server with 64 engines writes about 10,000."""
MOST_ENGINES = 1024
_LONGEST_LINE = 1024
_MOST_COUNT = 2.0**63
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos"
_FINISHED = "vllm:request_success"
_NUMBERS = {
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens",
    "vllm:num_preemptions": "preemptions",
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:request_time_per_output_token_seconds": "tpot_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_s",
    "vllm:request_prompt_tokens": "request_prompt_tokens",
}
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The second is its name until vLLM 0.10."""
_STARTED = "process_start_time_seconds"
_CREATED = "vllm:generation_tokens_created"
_COUNTERS = (_DRAFTS, _DRAFTED, _ACCEPTED, _POSITIONS, _FINISHED, *_NUMBERS)
_BUCKETS = {f"{name}_bucket" for name in _HISTOGRAMS}
_KEYS = {_FINISHED: "finished_reason", _POSITIONS: "position", **dict.fromkeys(_BUCKETS, "le")}
"""The label by which the samples of one name are distinguished."""
NAMES = frozenset(
    (
        *(_STARTED, _CREATED, _RUNNING, _WAITING, *_USAGE, *_COUNTERS, *_BUCKETS),
        *(f"{name}_total" for name in _COUNTERS),
        *(f"{name}_sum" for name in _HISTOGRAMS),
    )
)
"""Every name that is read, with and without `_total`, which depends on the version of the exporter."""
_LINE = re.compile(rf"^(?:{'|'.join(map(re.escape, sorted(NAMES)))})(?=[{{ \t])[^\n]*", re.M)
_SGLANG = re.compile(r"^sglang:[a-z]", re.M)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{[^\n]{1,8192}$", re.M)
_Values = defaultdict[str, defaultdict[str, float]]
"""Of one engine: by name and by the label in _KEYS, else under the empty text."""


def read(text: str) -> Metrics:
    """Parse a /metrics text. Raises FactError if it is none of vLLM's, or holds what vLLM cannot have counted.

    Metric names: vllm 0.26 to 0.33, v1/metrics/loggers.py and v1/spec_decode/metrics.py.
    """
    engines: dict[EngineName, _Values] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    started_s: float | None = None
    for full_name, labels, value in _samples(text):
        name = full_name.removesuffix("_total")
        if name == _STARTED:
            started_s = value
            continue
        if name != _CREATED and not 0 <= value < _MOST_COUNT:  # false for NaN
            raise _wrong(f"`{name}` has the impossible value {value:g}")
        engine = EngineName(labels.get("model_name", ""), labels.get("engine", ""))
        engines[engine][name][labels.get(_KEYS.get(name, ""), "")] += value
        if len(engines) > MOST_ENGINES:
            raise FactError(f"the metrics contain more than {MOST_ENGINES} engines")
    if not engines and _SGLANG.search(text):
        raise FactError(
            "the metrics are SGLang's: they hold averages, not the counts of draft and accepted tokens",
            hint="SGLang's own average is `sglang:spec_accept_length`, in tokens per verification step",
        )
    if not engines:
        raise FactError("the metrics are not vLLM's", hint="give the root URL of a vLLM server")
    return Metrics({engine: _engine(engines[engine], started_s) for engine in sorted(engines)})


def cache_config(text: str) -> Mapping[str, str]:
    """Return the labels of `vllm:cache_config_info`, vLLM's settings of its cache; empty if it says nothing."""
    from prometheus_client.parser import text_string_to_metric_families

    found = _CACHE_CONFIG.search(text)
    try:
        families = list(text_string_to_metric_families(found[0] + "\n")) if found else []
    except (ValueError, LookupError):
        return {}
    return next((sample.labels for family in families for sample in family.samples), {})


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name, labels and value of the samples in NAMES; of all other lines, a million take no time of ours."""
    from prometheus_client.parser import text_fd_to_metric_families

    lines: Any = (found[0] for found in _LINE.finditer(text))  # declared as a file, and only iterated over
    try:
        # without their types, each line is a family of its own to the parser, which keeps none of them
        for count, family in enumerate(text_fd_to_metric_families(map(_bounded, lines))):  # type: ignore[arg-type]
            if count == MOST_SAMPLES:
                raise FactError(f"the metrics contain more than {MOST_SAMPLES:,} vLLM samples")
            for sample in family.samples:
                yield sample.name, sample.labels, float(sample.value)
    except (ValueError, LookupError, OverflowError) as error:
        raise FactError(f"the metrics are not Prometheus text: {error}") from error


def _bounded(line: str) -> str:
    if len(line) > _LONGEST_LINE:
        raise FactError(f"the metrics contain a line of {len(line):,} characters, which vLLM never writes")
    return line


def _wrong(why: str) -> FactError:
    return FactError(f"the metrics are invalid: {why}")


def _engine(values: _Values, started_s: float | None) -> EngineMetrics:
    usage = next((values[name][""] for name in _USAGE if name in values), None)
    created_s = values[_CREATED][""] if _CREATED in values else started_s  # several API servers write neither
    counted: dict[str, Any] = {into: int(values[name][""]) for name, into in _NUMBERS.items()}
    counted |= {into: _histogram(name, values) for name, into in _HISTOGRAMS.items()}
    return EngineMetrics(
        counters=Counters(
            acceptance=_acceptance(values),
            finished={reason: int(value) for reason, value in values[_FINISHED].items()},
            **counted,
        ),
        running_requests=int(values[_RUNNING][""]),
        waiting_requests=int(values[_WAITING][""]),
        kv_cache_usage=None if usage is None else min(usage, 1.0),
        speculates=_DRAFTS in values,
        created_s=created_s if created_s is not None and math.isfinite(created_s) else None,
    )


def _acceptance(values: _Values) -> Acceptance:
    positions = values[_POSITIONS]
    if wrong := next((key for key in positions if not re.fullmatch("[0-9]{1,3}", key)), None):
        raise _wrong(f"`{_POSITIONS}` has an invalid position, {wrong[:20]!r}")
    counts = {int(key): int(value) for key, value in positions.items()}
    per_position = tuple(counts.get(index, 0) for index in range(max(counts, default=-1) + 1))
    drafts, drafted, accepted = (
        int(values[name][""]) if name in values else 0 for name in (_DRAFTS, _DRAFTED, _ACCEPTED)
    )
    # several API servers' counters are not read in one moment, so a little may be missing
    if accepted > 1.01 * drafted + 100:
        raise _wrong(f"{accepted:,} draft tokens accepted, but only {drafted:,} drafted")
    return Acceptance(drafts, drafted, accepted, per_position)


def _histogram(name: str, values: _Values) -> Histogram:
    buckets = sorted((_bound(name, le), int(value)) for le, value in values[f"{name}_bucket"].items())
    if not buckets:
        return Histogram()
    counts = tuple(after - before for before, after in pairwise([0, *(count for _, count in buckets)]))
    if min(counts) < 0:
        raise _wrong(f"the buckets of the histogram `{name}` are not cumulative")
    if not math.isinf(buckets[-1][0]):
        raise _wrong(f"the histogram `{name}` has no bucket up to infinity")
    return Histogram(tuple(bound for bound, _ in buckets), counts, values[f"{name}_sum"][""])


def _bound(name: str, le: str) -> float:
    with suppress(ValueError):
        if not math.isnan(bound := float(le)):
            return bound
    raise _wrong(f"a bucket of `{name}_bucket` has no valid upper bound (`le`)")
