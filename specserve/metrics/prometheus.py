"""vLLM's /metrics text, read into the counters and gauges of each engine. Does not know how it was fetched."""

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

MOST_SAMPLES = 50_000
"""Of those that are read: a server with 64 engines writes about 10,000."""
MOST_ENGINES = 1024
_MOST_CHARACTERS = 8 << 20
_LONGEST_LINE, _MOST_LABELS = 1024, 32
_MOST_COUNT = 2.0**63
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
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The second is its name until vLLM 0.10."""
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
        _RUNNING,
        _WAITING,
        *_USAGE,
        *_COUNTERS,
        *(f"{name}_total" for name in _COUNTERS),
        *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum")),
    )
)
"""Every name that is read, with and without `_total`, which depends on the version of the exporter."""
_LINE = re.compile(rf"^(?:{'|'.join(map(re.escape, sorted(NAMES)))})(?=[{{ \t])[^\n]*", re.M)
_SGLANG = re.compile(r"^sglang:[a-z]", re.M)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{[^\n]{1,8192}$", re.M)


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
    """All engines of one server at one moment."""

    engines: Mapping[EngineName, EngineMetrics] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """The served names that there are."""
        return tuple(sorted({name.model_name for name in self.engines}))

    def of_model(self, model: str) -> Metrics:
        """Only the engines of that served name."""
        return Metrics({name: found for name, found in self.engines.items() if name.model_name == model})

    @property
    def speculates(self) -> bool:
        """Whether any engine has speculation counters."""
        return any(engine.speculates for engine in self.engines.values())

    @property
    def acceptance(self) -> dict[EngineName, Acceptance]:
        """That of each engine that speculates, since its start."""
        return {name: one.counters.acceptance for name, one in self.engines.items() if one.speculates}

    @property
    def finished_requests(self) -> int:
        """Of all engines, since their start, for whatever reason."""
        return sum(engine.counters.finished_requests for engine in self.engines.values())

    @property
    def running_requests(self) -> int:
        """Of all engines."""
        return sum(engine.running_requests for engine in self.engines.values())

    @property
    def waiting_requests(self) -> int:
        """Of all engines."""
        return sum(engine.waiting_requests for engine in self.engines.values())

    @property
    def kv_cache_usage(self) -> float | None:
        """That of the fullest engine."""
        usage = [engine.kv_cache_usage for engine in self.engines.values()]
        return max((value for value in usage if value is not None), default=None)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all engines, since their start."""
        counters = [engine.counters for engine in self.engines.values()]
        return sum(one.prompt_tokens + one.generation_tokens for one in counters)


class _Tally:
    """What the lines of one engine say, while they are read."""

    def __init__(self) -> None:
        self.values: dict[str, float] = defaultdict(float)
        self.finished: dict[str, int] = defaultdict(int)
        self.positions: dict[int, int] = defaultdict(int)
        self.buckets: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
        self.created_s: float | None = None

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        if name == _CREATED:
            self.created_s = value if math.isfinite(value) else None
            return
        if not 0 <= value < _MOST_COUNT:  # false for NaN
            raise _wrong(f"`{name}` has the impossible value {value:g}")
        if name == _FINISHED:
            self.finished[labels.get("finished_reason", "")] += int(value)
        elif name == _POSITIONS:
            position = labels.get("position", "")
            if not re.fullmatch("[0-9]{1,3}", position):
                raise _wrong(f"`{name}` has an invalid position, {position[:20]!r}")
            self.positions[int(position)] += int(value)
        elif name.endswith("_bucket"):
            self.buckets[name.removesuffix("_bucket")][_bound(name, labels)] += int(value)
        else:
            self.values[name] += value

    def engine(self, started_s: float | None) -> EngineMetrics:
        usage = [self.values[name] for name in _USAGE if name in self.values]
        counted: dict[str, Any] = {field: int(self.values[name]) for name, field in _NUMBERS.items()}
        counted |= {field: self._histogram(name) for name, field in _HISTOGRAMS.items()}
        return EngineMetrics(
            counters=Counters(acceptance=self._acceptance(), finished=dict(self.finished), **counted),
            running_requests=int(self.values[_RUNNING]),
            waiting_requests=int(self.values[_WAITING]),
            kv_cache_usage=min(usage[0], 1.0) if usage else None,
            speculates="vllm:spec_decode_num_drafts" in self.values,
            # with several API servers vLLM writes neither time
            created_s=started_s if self.created_s is None else self.created_s,
        )

    def _acceptance(self) -> Acceptance:
        counts = {field: int(self.values.get(name, 0)) for name, field in _SPECULATION.items()}
        positions = range(max(self.positions, default=-1) + 1)
        found = Acceptance(
            **counts, accepted_per_position=tuple(self.positions.get(index, 0) for index in positions)
        )
        # several API servers' counters are not read in one moment, so a little may be missing
        if found.accepted_tokens > 1.01 * found.draft_tokens + 100:
            raise _wrong(
                f"{found.accepted_tokens:,} draft tokens accepted, but only {found.draft_tokens:,} drafted"
            )
        return found

    def _histogram(self, name: str) -> Histogram:
        buckets = sorted(self.buckets.get(name, {}).items())
        if not buckets:
            return Histogram()
        counts = tuple(after - before for before, after in pairwise([0, *(count for _, count in buckets)]))
        if min(counts) < 0:
            raise _wrong(f"the buckets of the histogram `{name}` are not cumulative")
        if not math.isinf(buckets[-1][0]) or len(buckets) > _MOST_BUCKETS:
            raise _wrong(f"the histogram `{name}` has no bucket up to infinity, or too many buckets")
        return Histogram(tuple(bound for bound, _ in buckets), counts, self.values.get(f"{name}_sum", 0.0))


def _wrong(why: str) -> FactError:
    return FactError(f"the metrics are invalid: {why}")


def _bound(name: str, labels: Mapping[str, str]) -> float:
    with suppress(ValueError):
        if not math.isnan(bound := float(labels.get("le", ""))):
            return bound
    raise _wrong(f"a bucket of `{name}` has no valid upper bound (`le`)")


def read(text: str) -> Metrics:
    """Parse a /metrics text. Raises FactError if it is none of vLLM's, or holds what vLLM cannot have counted.

    Metric names: vllm 0.26 to 0.33, v1/metrics/loggers.py and v1/spec_decode/metrics.py.
    """
    tallies: dict[EngineName, _Tally] = defaultdict(_Tally)
    started_s: float | None = None
    for name, labels, value in _samples(text):
        if name == _STARTED:
            started_s = value if math.isfinite(value) else None
            continue
        engine = EngineName(labels.get("model_name", ""), labels.get("engine", ""))
        tallies[engine].add(name.removesuffix("_total"), labels, value)
        if len(tallies) > MOST_ENGINES:
            raise FactError(f"the metrics contain more than {MOST_ENGINES} engines")
    if not tallies and _SGLANG.search(text):
        raise FactError(
            "the metrics are SGLang's: they hold averages, not the counts of draft and accepted tokens",
            hint="SGLang's own average is `sglang:spec_accept_length`, in tokens per verification step",
        )
    if not tallies:
        raise FactError("the metrics are not vLLM's", hint="give the root URL of a vLLM server")
    return Metrics({engine: tallies[engine].engine(started_s) for engine in sorted(tallies)})


def cache_config(text: str) -> Mapping[str, str]:
    """The labels of `vllm:cache_config_info`, in which vLLM writes its cache's settings; empty if it says nothing."""
    from prometheus_client.parser import text_string_to_metric_families

    found = _CACHE_CONFIG.search(text)
    try:
        families = list(text_string_to_metric_families(found[0] + "\n")) if found else []
    except (ValueError, LookupError):
        return {}
    return next((sample.labels for family in families for sample in family.samples), {})


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name, labels and value of the samples in NAMES. All other lines are passed over unread."""
    from prometheus_client.parser import text_fd_to_metric_families

    lines: Any = _lines(text)  # declared as a file, and only iterated over
    try:
        # without their types, each line is a family of its own to the parser, which keeps none of them
        for count, family in enumerate(text_fd_to_metric_families(lines)):
            if count == MOST_SAMPLES:
                raise FactError(f"the metrics contain more than {MOST_SAMPLES:,} vLLM samples")
            for sample in family.samples:
                yield sample.name, sample.labels, float(sample.value)
    except (ValueError, LookupError, OverflowError) as error:
        raise FactError(f"the metrics are not Prometheus text: {error}") from error


def _lines(text: str) -> Iterator[str]:
    """The lines of NAMES, found by one expression: a text of a million others takes no time of ours."""
    characters = 0
    for found in _LINE.finditer(text):
        length = found.end() - found.start()
        characters += length
        if length > _LONGEST_LINE or text.count('="', found.start(), found.end()) > _MOST_LABELS:
            raise FactError(f"the metrics contain a line of {length:,} characters, which vLLM never writes")
        if characters > _MOST_CHARACTERS:
            raise FactError(f"the metrics contain more than {_MOST_CHARACTERS >> 20} MiB of vLLM's data")
        yield found[0]
