"""Bounds of what cannot be computed exactly, and the fitted constants of each vLLM version in memory.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from specserve.vllm import fact

MIB = 2**20
GIB = 2**30
Runner = Literal["v1", "v2", "cpu"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of an estimate; equal if it is exact."""

    low: float
    high: float
    logs: int | None = None
    """How many public boot logs support the bounds; 0: none, they are assumed; None: no fitted constant in them."""

    @property
    def support(self) -> str:
        """What the bounds rest on, in words: `from 23 logs`, `assumed`; empty if no fitted constant is in them."""
        if not self.logs:
            return "" if self.logs is None else "assumed"
        return f"from {self.logs} log{'s' if self.logs > 1 else ''}"

    def __add__(self, other: Bounds | float) -> Bounds:
        if not isinstance(other, Bounds):
            return Bounds(self.low + other, self.high + other, self.logs)
        logs = fewest_logs(self, other)
        return Bounds(self.low + other.low, self.high + other.high, logs)

    def __mul__(self, factor: Bounds | float) -> Bounds:
        if not isinstance(factor, Bounds):
            return Bounds(self.low * factor, self.high * factor, self.logs)
        return Bounds(self.low * factor.low, self.high * factor.high, fewest_logs(self, factor))

    def left_of(self, total: float) -> Bounds:
        """What these leave of a total: least if they are at their highest."""
        return Bounds(total - self.high, total - self.low, self.logs)


NOTHING = Bounds(0, 0)


def fewest_logs(*parts: Bounds) -> int | None:
    """The logs behind a sum of intervals: those of the part that has the fewest."""
    return min((part.logs for part in parts if part.logs is not None), default=None)


@dataclass(frozen=True, slots=True)
class Regime:
    """One row of memory.toml; what each figure means stands there."""

    runner: Runner
    since: str
    """The first vLLM minor it holds for."""
    sampler_bytes: Bounds
    draft_bytes: Bounds
    layers: Bounds
    hidden_copies: float
    one_gpu_gib: Bounds
    several_gpus_gib: Bounds
    pcie_gpus_gib: Bounds
    graph_mib: Bounds
    graphs_deducted: bool
    sampling_bytes: float
    verify_bytes: int
    verify_chunk_gib: float
    source: str


@lru_cache
def regimes() -> tuple[Regime, ...]:
    """Every row of memory.toml, in the order of the file."""
    import tomllib

    text = (Path(fact.__file__).parent / "memory.toml").read_text(encoding="utf-8")
    return tuple(_regime(**row) for row in tomllib.loads(text)["regime"])


def _regime(**row: Any) -> Regime:
    row["since"] = row.pop("from")
    values: dict[str, Any] = {
        key: Bounds(*value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Regime(**values)


def regime(version: str, *, runner: Runner) -> Regime:
    """The constants of a vLLM version: those of the newest row that is not newer; of older ones, the oldest row's."""
    rows = [row for row in regimes() if row.runner == runner]
    return fact.in_force(rows, version, first=attrgetter("since"))
