"""What a benchmark found, as data: arms, cells, comparisons. Computes nothing; `report` draws it, files hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from specserve.metrics.acceptance import Acceptance


class Verdict(StrEnum):
    """Whether an arm is faster than the arm it is compared with (95 % interval of the speedup)."""

    PAYS = "PAYS"
    """The lower bound is above 1.03, and that of the 99.5 % interval above 1."""
    COSTS = "COSTS"
    """The upper bound is below 0.97, and that of the 99.5 % interval below 1."""
    NO_DIFFERENCE = "NO DIFFERENCE"
    """The interval lies inside 0.97 to 1.03."""
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """Where is measured: one workload, temperature and load. Either `concurrency` (closed loop) or `request_rate`."""

    workload: str
    temperature: float
    concurrency: int | None = None
    request_rate: float | None = None
    """Requests/s, Poisson."""
    prefix_cache: bool = True


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
    """Only where specserve did not start it."""
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
    """What one arm did at one point."""

    requests: int
    blocks: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    inter_chunk_p99_ms: float
    """Gap between two chunks of a stream; with speculation a chunk holds several tokens: not comparable over arms."""
    goodput_per_s: float | None = None
    """Requests/s within the profile's limits; None without limits."""
    cost_per_million_tokens: float | None = None
    """Output tokens, in the unit of `--gpu-hour-price`; None without a price."""
    acceptance: Acceptance | None = None
    client_cpu: float | None = None
    """Share of one core that the load generator used."""
    failed_requests: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one point."""

    arm: str
    point: Point
    figures: Figures | None
    invalid: str | None = None
    """Why its figures count for nothing (the client's CPU was saturated, requests failed, …)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against the baseline (or the first arm, where there is none) at one point."""

    arm: str
    against: str
    point: Point
    speedup: Interval | None
    """Output tokens/s over those of `against`; None where a cell is invalid."""
    verdict: Verdict
    needed: str | None = None
    """INCONCLUSIVE: how much more would decide it, in one clause (`about 4 more blocks`)."""
    tpot_p50_ratio: float | None = None
    ttft_p99_ratio: float | None = None
    e2e_p99_ratio: float | None = None
    """P99 is told even where P50 is better."""
    break_even_mean_acceptance_length: float | None = None
    mean_acceptance_length: float | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """One entry of the profile's `expect`, one limit of it, and what was measured."""

    point: Point
    key: str
    """`min_speedup`, `max_ttft_p99_ms`, …"""
    promised: float
    measured: Interval | None
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
    """Why its acceptance is not to be believed (random tokens, ignore_eos), else None."""


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
    """Launches per arm; 1: everything is `within one launch`."""
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
    """blocks, requests per block, seed, max_tokens, … as told."""
