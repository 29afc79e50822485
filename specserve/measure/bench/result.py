"""What a benchmark found, as data and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from specserve.errors import FactError
from specserve.metrics.counters import Acceptance


class Verdict(StrEnum):
    """Whether a variant is faster than the one it is compared with (95 % interval of the speedup)."""

    PAYS = "PAYS"
    """The lower bound is above 1.03, and that of the 99.5 % interval above 1."""
    COSTS = "COSTS"
    """The upper bound is below 0.97, and that of the 99.5 % interval below 1."""
    NO_DIFFERENCE = "NO DIFFERENCE"
    """The interval lies inside 0.97 to 1.03."""
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def words(self) -> str:
        """The verdict in a sentence: `makes no difference`."""
        return {"NO DIFFERENCE": "makes no difference", "INCONCLUSIVE": "is inconclusive"}.get(
            self, self.lower()
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the bounds of its confidence interval; 95 % unless its place says otherwise."""

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
    speedup: Interval | None
    """Output tokens/s over those of `against`; None if a cell is invalid."""
    verdict: Verdict
    needed: str | None = None
    """INCONCLUSIVE: how much more would decide it, in one clause (`about 4 more blocks: …`)."""
    interval_99_5: Interval | None = None
    """At 99.5 %: only if it includes 1, and is the one reason against PAYS or COSTS."""
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
            or any(item.verdict is Verdict.INCONCLUSIVE for item in self.comparisons)
        )


VERSION = 1
RESULT_FILE = "result.json"
LARGEST_BYTES = 64 * 2**20
Content = TypeVar("Content")


def read_result(path: Path) -> Result:
    """Returns the result in a run directory or a file. Raises FactError, with the place in the file."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise FactError(f"`{file}` is too large to be a result: more than {LARGEST_BYTES // 2**20} MiB")
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "a run is the directory that `bench` prints at its end"
        if path.is_dir() and (path / "run.json").is_file():
            hint = f"nothing was measured in this run yet: `specserve bench --resume {path}`"
        raise FactError(f"cannot read `{file}`: {error.strerror or error}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise FactError(f"`{file}` is not JSON: {str(error)[:200]}") from error
    try:
        return result_from_json(content)
    except ValueError as error:
        raise FactError(f"`{file}` is not a benchmark result: {error}") from error


def result_from_json(content: object) -> Result:
    """Returns the result of JSON values. Keys that this version does not know are passed over. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    if (version := content.get("version")) != VERSION:
        raise ValueError(
            f"its format version is {json.dumps(version)[:40]}, but this specserve reads {VERSION}"
        )
    return from_json(Result, content)


def from_json(kind: type[Content], content: Any, path: str = "") -> Content:
    """Returns the data class of JSON values; other keys are passed over. Raises ValueError with the path of a fault."""
    values, hints, found = _of_kind(dict, content, path), _hints(kind), {}  # type: ignore[arg-type]
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        place = f"{path}.{entry.name}".lstrip(".")
        if entry.name in values:
            found[entry.name] = _read(hints[entry.name], values[entry.name], place)
        elif entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            raise ValueError(f"`{place}` is missing")
    return kind(**found)


_hints = cache(get_type_hints)


def _read(kind: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kind,) = (item for item in arguments if item is not type(None))
        return None if value is None else _read(kind, value, path)
    if origin is tuple:
        items = _of_kind(list, value, path)
        if arguments[0] is float and all(type(item) is float and math.isfinite(item) for item in items):
            return tuple(items)  # gaps between chunks: a run has a hundred thousand
        return tuple(_read(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(items))
    if kind is Any:
        return value
    if origin is not None:  # a mapping
        entries = _of_kind(dict, value, path).items()
        return {arguments[0](key): _read(arguments[1], item, f"{path}.{key}"[:80]) for key, item in entries}
    if dataclasses.is_dataclass(kind):
        return from_json(kind, value, path)  # type: ignore[arg-type]
    if issubclass(kind, Enum):
        if value not in [item.value for item in kind]:
            choices = ", ".join(str(item.value) for item in kind)
            raise ValueError(f"`{path}` must be one of {choices}")
        return kind(value)
    if kind is float and value is None:
        return math.nan
    return _of_kind(kind, value, path)


_KINDS: Mapping[type, tuple[Any, str]] = {
    dict: (dict, "an object"), list: (list, "a list"), str: (str, "text"), bool: (bool, "true or false"),
    int: (int, "a whole number"), float: (int | float, "a number"),
}  # fmt: skip


def _of_kind(kind: type, value: Any, path: str) -> Any:
    """Returns the value if JSON has it of that kind: true is no number, and half of a surrogate pair no text."""
    accepted, words = _KINDS[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"`{path}` must be {words}")
    try:
        if kind is str:
            value.encode()
        if kind is float and not math.isfinite(float(value)):
            raise OverflowError
    except UnicodeEncodeError:
        raise ValueError(
            f"`{path}` contains an unpaired surrogate, which is not valid Unicode text"
        ) from None
    except OverflowError:
        raise ValueError(f"`{path}` must be a finite number") from None
    return float(value) if kind is float else value
