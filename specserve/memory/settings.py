"""How a model is served and how it speculates, as far as memory depends on it, and the fitted constants for that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from specserve.memory.estimate import Bounds
from specserve.models.facts import ModelFacts
from specserve.vllm import fact
from specserve.vllm.facts import READ


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine arguments after vLLM's defaults: the caller resolves what depends on the machine."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    """None: what vLLM takes for the platform and the model."""
    enable_prefix_caching: bool = True
    mamba_cache_mode: str | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    disable_hybrid_kv_cache_manager: bool = False
    async_scheduling: bool = True
    version: str = READ[-1]
    platform: Literal["cuda", "cpu"] = "cuda"
    vendor: str = "nvidia"
    compute_capability: tuple[int, int] | None = None
    moe_backend: str = "auto"
    has_encoders: bool = True
    """Whether encoders of images and the like are loaded: not with `language_model_only`."""


HEADS = frozenset({"eagle", "eagle3", "dflash", "dspark", "medusa", "mtp", "p_eagle"})
"""Methods whose second model is no model of its own."""
WITHOUT_CACHE = frozenset({"medusa", "ngram", "ngram_gpu", "suffix", "custom_class"})
"""Methods that keep no keys and values."""


@dataclass(frozen=True, slots=True)
class Speculative:
    """How a launch speculates, as far as memory depends on it."""

    method: str | None
    tokens: int
    draft: ModelFacts | None
    kv_cache_dtype: str | None
    unknown: str | None = None
    """The name of a second model that could not be read: nothing of it is counted."""

    @property
    def lookahead_tokens(self) -> int:
        """Source: `num_lookahead_tokens` in vllm/config/vllm.py 0.32."""
        if self.method in (None, *WITHOUT_CACHE):
            return 0
        return self.tokens + 1 if self.method in ("dflash", "dspark") else self.tokens


Runner = Literal["v1", "v2", "cpu"]
_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Regime:
    """One row of memory.toml, in bytes; what each figure means stands there."""

    runner: Runner
    since: str
    """The first vLLM minor it holds for."""
    sampler_bytes: Bounds
    draft_bytes: Bounds
    layers: Bounds
    hidden_copies: float
    one_gpu_bytes: Bounds
    several_gpus_bytes: Bounds
    pcie_gpus_bytes: Bounds
    graph_bytes: Bounds
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


def _interval(given: list[float], *, unit: int = 1) -> Bounds:
    low, high, logs = given
    return Bounds(low * unit, high * unit, int(logs))


def regime(version: str, *, runner: Runner) -> Regime:
    """The constants of a vLLM version: those of the newest row that is not newer; of older ones, the oldest row's."""
    rows = [row for row in regimes() if row.runner == runner]
    return fact.in_force(rows, version, first=attrgetter("since"))
