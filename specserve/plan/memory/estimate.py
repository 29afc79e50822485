"""The memory verdict of one arm on one machine: its shape. Knows no model and no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MemoryVerdict = Literal["fit", "tight", "does_not_fit"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of an estimate; equal where it is exact."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PerGpu:
    """Bytes on the fullest GPU."""

    total: int
    budget: int
    target_weights: int
    draft_weights: int
    activation: Interval
    other: Interval
    """CUDA context, communication, graphs, sampler and draft buffers."""
    kv_cache: Interval


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn, by how much, and the verdict it would give."""

    path: str
    """Dotted path in the profile, such as `engine.max_num_seqs`."""
    value: int | float | str | bool
    frees_bytes: int
    verdict: MemoryVerdict


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one arm needs and has. Token counts and concurrency are at the profile's max_model_len."""

    verdict: MemoryVerdict
    rank: int
    per_gpu_bytes: PerGpu
    target_kv_bytes_per_token: int
    draft_kv_bytes_per_token: int
    target_kv_bytes_fixed: int
    draft_kv_bytes_fixed: int
    max_model_len: int
    kv_cache_tokens: Interval
    max_concurrency: Interval
    largest_max_model_len: Interval
    without_speculation_kv_cache_tokens: Interval | None
    basis: Literal["vllm", "formula", "published"]
    """`published`: the formula, on a configuration that ships with specserve because the Hub did not answer."""
    calibration: str
    """Where the constants of the bounds come from."""
    certain: bool = False
    """Whether `does_not_fit` rests on exact figures alone, no fitted constant."""
    knobs: tuple[Knob, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    """Why it is tight, in a few words."""
    draft_logits_bytes: int = 0
    """What probabilistic drafts keep on every GPU, whether requests sample or not."""
