"""The KV cache pool: block tables that draw blocks of one size from one pool, and the stages that hold it.

Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
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
            return _ceil(min(self.retained_tokens, tokens), self.block_size) + self.spare_blocks
        return _ceil(tokens, self.block_size)


@dataclass(frozen=True, slots=True)
class Stage:
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


def _ceil(value: int, step: int) -> int:
    return -(-value // step)
