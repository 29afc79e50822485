"""The fitted constants: what is not exact, by vLLM version and runner. Knows no model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from specserve.plan.memory.estimate import Interval

Runner = Literal["v1", "v2", "cpu"]
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Regime:
    """One row of constants.toml, in bytes; what each figure means stands there."""

    runner: Runner
    since: str
    """The first vLLM minor it holds for."""
    logit_bytes: Interval
    hidden_copies: float
    spread: Interval
    one_gpu_bytes: Interval
    several_gpus_bytes: Interval
    graphs_bytes: Interval
    graphs_deducted: bool
    verify_bytes: int
    verify_chunk_bytes: int | None
    source: str


@lru_cache
def regimes() -> tuple[Regime, ...]:
    """Every row of constants.toml, in the order of the file."""
    import tomllib

    text = (resources.files(__package__) / "constants.toml").read_text(encoding="utf-8")
    return tuple(_regime(row) for row in tomllib.loads(text)["regime"])


def _regime(row: dict[str, Any]) -> Regime:
    return Regime(
        runner=row["runner"],
        since=row["from"],
        logit_bytes=_interval(row["logit_bytes"]),
        hidden_copies=float(row["hidden_copies"]),
        spread=_interval(row["spread"]),
        one_gpu_bytes=_interval(row["tp1_gib"], unit=_GIB),
        several_gpus_bytes=_interval(row["tp_gib"], unit=_GIB),
        graphs_bytes=_interval(row["graphs_gib"], unit=_GIB),
        graphs_deducted=row["graphs_deducted"],
        verify_bytes=int(row["verify_bytes"]),
        verify_chunk_bytes=int(row["verify_chunk_gib"] * _GIB) or None,
        source=row["source"],
    )


def _interval(pair: list[float], *, unit: int = 1) -> Interval:
    low, high = pair
    return Interval(low * unit, high * unit)


def regime(version: str, *, runner: Runner) -> Regime:
    """The constants of a vLLM version: those of the newest row that is not newer; of older ones, the oldest row's."""
    rows = [row for row in regimes() if row.runner == runner]
    return max(
        (row for row in rows if minor(row.since) <= minor(version)), key=_since, default=min(rows, key=_since)
    )


def _since(row: Regime) -> tuple[int, int]:
    return minor(row.since)


def minor(version: str) -> tuple[int, int]:
    """(0, 32) of `0.32.1+cpu`; (0, 0) for a text that starts with no version."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
