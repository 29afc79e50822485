"""The memory verdict of one arm on one machine: its shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MemoryVerdict = Literal["fit", "tight", "does_not_fit"]
VERDICTS: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
"""From best to worst."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of an estimate; equal where it is exact."""

    low: float
    high: float
    logs: int | None = None
    """How many public boot logs support the bounds; 0: none, they are assumed; None: no fitted constant in them."""

    @property
    def support(self) -> str:
        """What the bounds rest on, in words: `from 23 logs`; empty if no fitted constant is in them."""
        if self.logs is None:
            return ""
        if not self.logs:
            return "assumed: no log of this kind"
        return f"from {self.logs} log{'s' if self.logs > 1 else ''}"


@dataclass(frozen=True, slots=True)
class PerGpu:
    """Bytes on the fullest GPU."""

    total: int
    budget: int
    target_weights: int
    draft_weights: int
    activation: Bounds
    other: Bounds
    """CUDA context, communication, graphs, sampler and draft buffers."""
    kv_cache: Bounds


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn, by how much, and the verdict it would give."""

    path: str
    """Dotted path in the profile, such as `engine.max_num_seqs`."""
    value: int | float | str | bool
    frees_bytes: int
    verdict: MemoryVerdict


@dataclass(frozen=True, slots=True)
class StateBlocks:
    """Blocks of the KV cache, each of which can hold the recurrent state of a request."""

    blocks: Bounds
    max_num_seqs: int
    """Requests that may run: vLLM aborts if there are more of them than blocks."""
    largest_max_num_seqs: int
    """What surely boots."""


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
    kv_cache_tokens: Bounds
    max_concurrency: Bounds
    largest_max_model_len: Bounds
    without_speculation_kv_cache_tokens: Bounds | None
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
    ranks: int = 1
    """Worker processes on each node. On the CPU they share the memory, and the figures are those of one."""
    is_kv_cache_default: bool = False
    """Whether specserve set the size of the KV cache because the profile sets none."""
    states: StateBlocks | None = None
    """None for a model without recurrent states, or if vLLM does not compare their number with the blocks."""
    is_short_of_states_only: bool = False
    """Whether the verdict would be better but for the states."""
    unknown_draft: str | None = None
    """The name of a second model that could not be read: the figures are those of the target alone."""
    is_only_in_doubt: bool = False
    """Whether it is tight only because a model is not known."""
    is_kv_known: bool = True
    """False for an unknown architecture: the figures of the KV cache's tokens are zeros then, and mean nothing."""
