"""What a benchmark found, as data and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specserve.errors import FactError
from specserve.measure.statistics import Estimate, Verdict
from specserve.metrics.counters import Acceptance

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Point:
    """Where is measured: one workload, temperature and load. Either `concurrency` (closed loop) or `request_rate`."""

    workload: str
    temperature: float
    concurrency: int | None = None
    request_rate: float | None = None
    """Requests/s, Poisson."""


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """One of the servers that are compared."""

    name: str
    """`profile`, `baseline`, the name of an alternative, of another profile, or a URL."""
    is_baseline: bool = False
    """The same server without speculation."""
    model: str = ""
    method: str | None = None
    """None: no speculation (or, for a URL, unknown)."""
    draft_model: str | None = None
    num_speculative_tokens: int | None = None
    fingerprint: str | None = None
    """None for a URL."""
    argv: tuple[str, ...] = ()
    url: str | None = None
    """Only if specserve did not start it."""
    kv_cache_tokens: int | None = None
    """Room of its KV cache; None if the server does not say."""
    local_models: tuple[str, ...] = ()
    """Of model and draft, what was a folder where it was measured: `team/model` may be that as well as a repository."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Over requests, in milliseconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What one variant did at one point."""

    requests: int
    blocks: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    inter_chunk_p99_ms: float
    """Gap between two chunks of a stream; with speculation one chunk holds several tokens: do not compare variants."""
    goodput_per_s: float | None = None
    """Requests/s within the profile's limits; None without limits."""
    acceptance: Acceptance | None = None
    client_cpu: float | None = None
    """Share of one core that the load generator used."""
    failed_requests: int = 0
    queue_ms: float | None = None
    """What a request waited before it ran, on average."""
    preemptions: int = 0
    """How often a request had to give its place in the KV cache back."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant at one point."""

    arm: str
    point: Point
    figures: Figures | None
    invalid: str | None = None
    """Why its figures count for nothing (the client's CPU was saturated, requests failed, …)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One variant against the baseline (or the first variant, if there is none) at one point."""

    arm: str
    against: str
    point: Point
    speedup: Estimate | None
    """Output tokens/s over those of `against`; None if a cell is invalid."""
    verdict: Verdict
    tpot_p50_ratio: float | None = None
    ttft_p99_ratio: float | None = None
    e2e_p99_ratio: float | None = None
    """P99 is reported even if P50 is better."""
    break_even_mean_acceptance_length: float | None = None
    mean_acceptance_length: float | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """One entry of the profile's `expect`, one limit of it, and what was measured."""

    point: Point
    key: str
    """`min_speedup`, `max_ttft_p99_ms`, …"""
    promised: float
    measured: Estimate | None
    kept: bool | None
    """None: not decided, or not measured."""
    place: str | None = None
    """file:line of the promise."""


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """One set of prompts."""

    name: str
    prompts: int
    source: str
    """`specserve`, a file, a log."""
    sha256: str
    """Over the prompts."""
    note: str | None = None
    """Why its acceptance is not to be believed (random tokens), else None."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    name: str
    fingerprint: str | None
    created: str
    """ISO 8601, UTC."""
    duration_s: float
    versions: Mapping[str, str]
    """specserve, vllm, torch, python."""
    host: Mapping[str, str]
    """Allow-listed: accelerator, cpu, cores, memory."""
    launches: int
    """Launches of each variant."""
    arms: tuple[ArmInfo, ...]
    workloads: tuple[WorkloadInfo, ...]
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    promises: tuple[Promise, ...] = ()
    stops_paying: Mapping[str, str] = field(default_factory=dict)
    """Per `arm/workload/temperature`: the concurrency at which it no longer pays, in one clause."""
    notes: tuple[str, ...] = ()
    is_complete: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    """blocks, launches, max_tokens, budget, …"""

    @property
    def is_missed(self) -> bool:
        """Whether the whole interval of some promise misses it."""
        return any(promise.kept is False for promise in self.promises)

    @property
    def is_open(self) -> bool:
        """Whether anything is not decided, for `--strict`."""
        return (
            not self.is_complete
            or any(promise.kept is None for promise in self.promises)
            or any(item.verdict.level == "open" for item in self.comparisons)
        )


RESULT_FILE = "result.json"
LARGEST_BYTES = 64 * 2**20
Content = TypeVar("Content")


def read_result(path: Path) -> Result:
    """Returns the result in a run directory or a file. Raises FactError, with the place in the file."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise FactError(f"`{file}` is too large to be a result: more than {LARGEST_BYTES // 2**20} MiB")
        return from_json(Result, file.read_bytes())
    except OSError as error:
        hint = "a run is the directory that `bench` prints at its end"
        if path.is_dir() and (path / "run.json").is_file():
            hint = f"nothing was measured in this run yet: `specserve bench --resume {path}`"
        raise FactError(f"cannot read `{file}`: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise FactError(f"`{file}` is not a benchmark result: {error}") from error


def from_json(kind: Callable[..., Content], text: str | bytes) -> Content:
    """Returns the data class of JSON; keys that it does not have are passed over.

    Raises ValueError with the path of a fault. A bound that is null is infinite.
    """
    from pydantic import ValidationError

    whole = text.encode() if isinstance(text, str) else text
    try:
        found: Content = _reader(kind).validate_json(_NO_BOUND.sub(rb"\1Infinity", whole))
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"`{place}`: {first['msg']}") from None


_NO_BOUND = re.compile(rb'("high": ?)null')


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
