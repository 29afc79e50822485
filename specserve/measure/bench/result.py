"""What a benchmark found, as data and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specserve.errors import FactError
from specserve.measure.verdict import Estimate, Judged, Kept, Verdict
from specserve.metrics import Acceptance

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Point:
    """Where is measured: one workload, temperature and load."""

    workload: str
    temperature: float
    concurrency: int
    """0: as many as are running, at a request rate."""
    request_rate: float | None = None
    """Requests/s on average, sent at random (Poisson); None: one is sent when another ends."""

    @property
    def load(self) -> float:
        """The concurrency, or the request rate."""
        return self.request_rate or self.concurrency

    @property
    def load_kind(self) -> str:
        """What the load is."""
        return "request rate" if self.request_rate else "concurrency"

    def __str__(self) -> str:
        """Return `chat, concurrency 16, temperature 0.7`."""
        return f"{self.workload}, {self.load_kind} {self.load:g}, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """One of the variants that are compared."""

    name: str
    """`profile`, `baseline`, the name of an alternative, of another profile, or a URL."""
    is_baseline: bool = False
    """The same server without speculation."""
    model: str = ""
    speculation: Mapping[str, Any] | None = None
    """The block as it is launched. None: no speculation (or, for a URL, unknown)."""
    argv: tuple[str, ...] = ()
    url: str | None = None
    kv_cache_tokens: int | None = None
    """Room of its KV cache; None if the server does not say."""
    kv_cache_requests: float | None = None
    """How many requests of `max_model_len` it holds at once; None if the server does not say."""


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
    acceptance: Acceptance | None = None
    failed_requests: int = 0
    queue_ms: float | None = None
    """What a request waited before it ran, on average."""
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant at one point."""

    variant: str
    point: Point
    figures: Figures | None
    invalid: str | None = None
    """Why its figures count for nothing."""
    promises: tuple[Judged, ...] = ()
    """The limits of the profile's `expect` that hold here; only in the profile's own cells."""
    goodput: Estimate | None = None
    """At a request rate: the share of requests within each latency limit of `expect`."""


@dataclass(frozen=True, slots=True)
class LatencyPart:
    """A quantile of a latency at a request rate: how many times as fast it is."""

    latency: str
    """`tpot_ms`, `ttft_ms` or `e2e_ms`."""
    quantile: str
    """`p50` or `p99`."""
    speedup: Estimate
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """One variant against the baseline (or the first variant, if there is none) at one point."""

    variant: str
    against: str
    point: Point
    speedup: Estimate | None
    """Output tokens/s over those of `against`, or, at a request rate, the median E2E of `against`
    over its own; None if a cell is invalid."""
    verdict: Verdict
    break_even_mean_acceptance_length: float | None = None
    mean_acceptance_length: float | None = None
    latencies: tuple[LatencyPart, ...] = ()
    """At a request rate."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    name: str
    created: str
    """ISO 8601, UTC."""
    duration_s: float
    host: Mapping[str, str]
    """What servers run on: cores; of those that were started also accelerator and versions."""
    launches: int
    variants: tuple[VariantInfo, ...]
    workloads: Mapping[str, str]
    """The sha256 of the prompts, by name."""
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    stops_paying: Mapping[str, str] = field(default_factory=dict)
    """By `variant, workload, temperature`: from which concurrency it no longer pays, and why."""
    notes: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def is_missed(self) -> bool:
        """Whether the whole interval of some promise misses it."""
        return any(each.kept is Kept.MISSED for cell in self.cells for each in cell.promises)


RESULT_FILE = "result.json"
Content = TypeVar("Content")


def read_result(path: Path) -> Result:
    """Return the result in a run directory or a file. Raises FactError, with the place in it."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        return from_json(Result, file.read_bytes())
    except OSError as error:
        hint = "a run is the directory that `bench` prints at its end"
        raise FactError(f"cannot read `{file}`: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise FactError(f"`{file}` is not a benchmark result: {error}") from error


def from_json(kind: Callable[..., Content], text: str | bytes) -> Content:
    """Return the data class of JSON; keys that it does not have are passed over.

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
