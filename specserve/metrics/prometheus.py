"""vLLM's /metrics text, read into the counters that specserve needs."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from specserve.errors import FactError
from specserve.metrics.counters import Acceptance, total_acceptance

MOST_SAMPLES = 50_000
"""Of those asked for: a server with 64 engines writes about 10,000."""
_MOST_CHARACTERS = 8 << 20
_LONGEST_LINE, _MOST_LABELS = 1024, 32
_MOST_COUNT = 2.0**63


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float

    def at_least_zero(self) -> float:
        """The value of a counter, a bucket, or a gauge that counts. Raises FactError where it can be none."""
        if not 0 <= self.value < _MOST_COUNT:  # false for NaN
            raise FactError(f"the metrics cannot be right: `{self.name}` is {self.value:g}")
        return self.value


def samples(text: str, *, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names. All other lines are passed over unread.

    Raises FactError where such a line is no sample, or where there are more of them than any server has.
    """
    from prometheus_client.parser import text_fd_to_metric_families

    lines: Any = _lines(text, frozenset(names))  # declared as a file, and only iterated over
    try:
        # Without their types, each line is a family of its own to the parser, which keeps none of them.
        for found, family in enumerate(text_fd_to_metric_families(lines)):
            if found == MOST_SAMPLES:
                raise FactError(f"the metrics hold more than {MOST_SAMPLES:,} samples of vLLM")
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, float(sample.value))
    except (ValueError, LookupError, OverflowError) as error:
        raise FactError(f"the metrics are not Prometheus text: {error}") from error


def _lines(text: str, names: frozenset[str]) -> Iterator[str]:
    """The lines of these names, found by one expression: a text of a million others takes no time of ours."""
    characters = 0
    for found in _beginning_with(names).finditer(text):
        length = found.end() - found.start()
        characters += length
        if length > _LONGEST_LINE or text.count('="', found.start(), found.end()) > _MOST_LABELS:
            raise FactError(f"the metrics hold a line of {length:,} characters, such as vLLM never writes")
        if characters > _MOST_CHARACTERS:
            raise FactError(f"the metrics hold more than {_MOST_CHARACTERS >> 20} MiB of vLLM")
        yield found[0]


@lru_cache(maxsize=4)
def _beginning_with(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"^(?:{'|'.join(map(re.escape, sorted(names)))})(?=[{{ \t])[^\n]*", re.M)


_PREFIX = "vllm:spec_decode_num_"
_PER_POSITION = "accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class Metrics:
    """One reading of /metrics: speculation per engine, and how many requests there are."""

    acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    """Per value of the label `engine`; empty where the server does not speculate."""
    finished_requests: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    tokens: int = 0
    """Prompt and output tokens since the start."""
    is_vllm: bool = False
    """Whether any of vLLM's own metrics is there at all."""

    @property
    def speculates(self) -> bool:
        """Whether vLLM exports speculation counters; it does so from its start, before any draft."""
        return bool(self.acceptance)

    @property
    def total(self) -> Acceptance:
        """All engines together, since their start."""
        return total_acceptance(self.acceptance.values())


def read(text: str, *, model: str | None = None) -> Metrics:
    """Parse Prometheus text. With `model`, only samples of that served model count.

    Counter names are read with and without `_total`, which depends on the version of the exporter
    (vllm 0.33, v1/spec_decode/metrics.py). Raises FactError where the text is not Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families

    engines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    requests: dict[str, float] = defaultdict(float)
    is_vllm = False
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.startswith("vllm:"):
                    continue
                is_vllm = True
                if model is not None and sample.labels.get("model_name", model) != model:
                    continue
                if not math.isfinite(sample.value):
                    continue
                name = sample.name.removesuffix("_total")
                requests[name] += sample.value
                if name.startswith(_PREFIX):
                    key = name.removeprefix(_PREFIX) + sample.labels.get("position", "")
                    engines[sample.labels.get("engine", "")][key] += int(sample.value)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise FactError(f"the metrics are not Prometheus text: {error}") from error
    return Metrics(
        acceptance={engine: _acceptance(counts) for engine, counts in sorted(engines.items())},
        finished_requests=int(requests["vllm:request_success"]),
        running_requests=int(requests["vllm:num_requests_running"]),
        waiting_requests=int(requests["vllm:num_requests_waiting"]),
        tokens=int(requests["vllm:prompt_tokens"] + requests["vllm:generation_tokens"]),
        is_vllm=is_vllm,
    )


def _acceptance(counts: Mapping[str, int]) -> Acceptance:
    positions = {key.removeprefix(_PER_POSITION): value for key, value in counts.items() if _is_position(key)}
    per_position = tuple(
        positions.get(str(index), 0) for index in range(max(map(int, positions), default=-1) + 1)
    )
    return Acceptance(
        drafts=counts.get("drafts", 0),
        draft_tokens=counts.get("draft_tokens", 0),
        accepted_tokens=counts.get("accepted_tokens", 0),
        accepted_per_position=per_position,
    )


def _is_position(key: str) -> bool:
    # At most three digits: the text comes from a server, and a huge position must not become a huge tuple.
    return re.fullmatch(rf"{_PER_POSITION}[0-9]{{1,3}}", key) is not None
