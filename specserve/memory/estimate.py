"""What a launch needs of every GPU, and the memory verdict of one arm on one machine: their shapes."""

from __future__ import annotations

from collections.abc import Sequence
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
            return "assumed: no public log of such a launch"
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


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Layers that share one block table; a request takes `blocks(tokens)` blocks for it.

    Source: vLLM's `KVCacheGroupSpec` (v1/kv_cache_interface.py 0.32).
    """

    block_size: int
    """Tokens in a block."""
    page_bytes: int
    """Bytes that its layers fill of a block, all together, on the fullest GPU."""
    retained_tokens: int | None = None
    """Tokens that a window keeps, those in flight included; None: all."""
    fixed_blocks: int | None = None
    """Blocks per request that do not depend on its length: the state of mamba and the like."""
    spare_blocks: int = 0
    """Blocks beyond those of its tokens: a window need not begin where a block does."""

    def blocks(self, tokens: int) -> int:
        """Blocks of one request of so many tokens, as vLLM reserves them."""
        if self.fixed_blocks is not None:
            return self.fixed_blocks
        if self.retained_tokens is not None:
            return -(-min(self.retained_tokens, tokens) // self.block_size) + self.spare_blocks
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One pipeline stage: each of its GPUs holds this."""

    rank: int
    """The first of its GPUs."""
    target_weights_bytes: int
    draft_weights_bytes: int
    bytes_per_block: int
    """What one block of the pool takes here, padding included."""
    target_kv_bytes_per_token: int
    """All attention layers, sliding-window layers as if full."""
    draft_kv_bytes_per_token: int
    target_kv_bytes_fixed: int
    """Per request, whatever its length: the state of mamba and the like."""
    draft_kv_bytes_fixed: int

    @property
    def weights_bytes(self) -> int:
        """Target and draft."""
        return self.target_weights_bytes + self.draft_weights_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """Weights and KV cache of one arm. `kv_bytes` is what is left for the KV cache: on the fullest GPU, or by stage."""

    stages: tuple[PipelineStage, ...]
    groups: tuple[BlockTable, ...]
    max_model_len: int
    lookahead_tokens: int = 0
    """KV slots that a running request needs beyond its tokens."""
    basis: Literal["vllm", "formula"] = "formula"
    notes: tuple[str, ...] = ()
    """What is not known exactly, and why."""
    is_kv_known: bool = True
    """False for an architecture whose KV cache cannot be computed: then there are no groups."""

    @property
    def fullest(self) -> PipelineStage:
        """The stage with the most weights; of equals, the one whose blocks are the largest."""
        return max(self.stages, key=lambda stage: (stage.weights_bytes, stage.bytes_per_block, -stage.rank))

    def blocks(self, kv_bytes: int | Sequence[int]) -> int:
        """Blocks in the pool: what the poorest stage can hold. 0 for no memory; a model without KV cache has 1."""
        if not self.groups:
            return 1
        if isinstance(kv_bytes, int):
            spare = self.fullest.weights_bytes
            kv_bytes = [kv_bytes + spare - stage.weights_bytes for stage in self.stages]
        counts = (
            max(given, 0) // stage.bytes_per_block
            for given, stage in zip(kv_bytes, self.stages, strict=True)
            if stage.bytes_per_block
        )
        return min(counts)

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks that vLLM reserves for one request of so many tokens (prompt and output)."""
        return sum(group.blocks(tokens) for group in self.groups)

    def concurrency(self, kv_bytes: int | Sequence[int], *, max_model_len: int | None = None) -> float:
        """vLLM's "Maximum concurrency": requests of max_model_len that the pool holds."""
        per_request = self.blocks_per_request(max_model_len or self.max_model_len)
        return self.blocks(kv_bytes) / per_request if per_request else float("inf")

    def tokens(self, kv_bytes: int | Sequence[int], *, max_model_len: int | None = None) -> int:
        """vLLM's "KV cache size: N tokens" (v1/core/kv_cache_utils.py 0.32, `get_kv_cache_capacity`)."""
        if not self.groups:
            return 0
        return int(
            self.concurrency(kv_bytes, max_model_len=max_model_len) * (max_model_len or self.max_model_len)
        )

    def is_enough(self, kv_bytes: int | Sequence[int], *, max_model_len: int | None = None) -> bool:
        """Whether vLLM starts: one request of max_model_len fits beside the null block."""
        if not self.groups:
            return True
        return self.blocks(kv_bytes) - 1 >= self.blocks_per_request(max_model_len or self.max_model_len)

    def largest_max_model_len(self, kv_bytes: int | Sequence[int], *, limit: int) -> int:
        """The largest max_model_len up to `limit` that vLLM would start with; 0 if there is none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.is_enough(kv_bytes, max_model_len=middle):
                low = middle
            else:
                high = middle - 1
        return low

    def bytes_for(self, requests: int, tokens: int) -> int:
        """KV bytes on the fullest GPU for so many running requests of so many tokens, null block included."""
        if not self.groups:
            return 0
        blocks = requests * self.blocks_per_request(tokens + self.lookahead_tokens) + 1
        return blocks * self.fullest.bytes_per_block
