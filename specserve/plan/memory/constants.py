"""The fitted constants: what is not exact, by vLLM version and runner."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from specserve.plan.memory.estimate import Interval
from specserve.vllm import fact

Runner = Literal["v1", "v2", "cpu"]
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Regime:
    """One row of memory.toml, in bytes; what each figure means stands there."""

    runner: Runner
    since: str
    """The first vLLM minor it holds for."""
    sampler_bytes: Interval
    draft_bytes: Interval
    layers: Interval
    hidden_copies: float
    one_gpu_bytes: Interval
    several_gpus_bytes: Interval
    pcie_gpus_bytes: Interval
    graph_bytes: Interval
    graphs_deducted: bool
    sampling_bytes: float
    verify_bytes: int
    verify_chunk_bytes: int | None
    source: str


@lru_cache
def regimes() -> tuple[Regime, ...]:
    """Every row of memory.toml, in the order of the file."""
    import tomllib

    text = (Path(fact.__file__).parent / "memory.toml").read_text(encoding="utf-8")
    return tuple(_regime(row) for row in tomllib.loads(text)["regime"])


def _regime(row: dict[str, Any]) -> Regime:
    return Regime(
        runner=row["runner"],
        since=row["from"],
        sampler_bytes=_interval(row["sampler_bytes"]),
        draft_bytes=_interval(row["draft_bytes"]),
        layers=_interval(row["layers"]),
        hidden_copies=float(row["hidden_copies"]),
        one_gpu_bytes=_interval(row["one_gpu_gib"], unit=_GIB),
        several_gpus_bytes=_interval(row["several_gpus_gib"], unit=_GIB),
        pcie_gpus_bytes=_interval(row["pcie_gpus_gib"], unit=_GIB),
        graph_bytes=_interval(row["graph_mib"], unit=_MIB),
        graphs_deducted=row["graphs_deducted"],
        sampling_bytes=float(row["sampling_bytes"]),
        verify_bytes=int(row["verify_bytes"]),
        verify_chunk_bytes=int(row["verify_chunk_gib"] * _GIB) or None,
        source=row["source"],
    )


def _interval(given: list[float], *, unit: int = 1) -> Interval:
    low, high, logs = given
    return Interval(low * unit, high * unit, int(logs))


def regime(version: str, *, runner: Runner) -> Regime:
    """The constants of a vLLM version: those of the newest row that is not newer; of older ones, the oldest row's."""
    rows = [row for row in regimes() if row.runner == runner]
    return fact.in_force(rows, version, first=attrgetter("since"))
