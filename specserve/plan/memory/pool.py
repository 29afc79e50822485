"""The KV cache pool: block tables that draw blocks of one size from one pool. Knows no model."""

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


def _ceil(value: int, step: int) -> int:
    return -(-value // step)
