"""The KV cache of one layer on one GPU, in figures: vLLM's KVCacheSpec. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

LayerKind = Literal["full", "mla", "indexer", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's cache. Equal ones share a block table. Source: vllm/v1/kv_cache_interface.py 0.32."""

    kind: LayerKind
    block_size: int
    """Tokens in a block; for a state, vLLM's `mamba_block_size`."""
    bytes_per_token: int = 0
    """0 for a state."""
    cell: tuple[int, ...] = ()
    """Heads, sizes and bytes of an element: layers of one size that differ here are not alike."""
    window: int | None = None
    """Tokens of a sliding window, or of an attention chunk."""
    state_bytes: int = 0
    state_blocks: int = 1
    """States that a request holds: one, one more for each draft token, one more for prefix caching."""
    padded_bytes: int | None = None

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer."""
        return self.padded_bytes or self.state_bytes or self.block_size * self.bytes_per_token

    @property
    def base(self) -> str:
        """The family whose layers may share a block table though their sizes differ."""
        return "full" if self.kind in ("full", "mla", "indexer") else self.kind

    def resized(self, page_bytes: int) -> LayerKv:
        """The same with pages of so many bytes: longer blocks where that divides, else padding.

        Raises ValueError for MLA, which vLLM cannot pad (`unify_kv_cache_spec_page_size`).
        """
        if self.kind == "state":
            return replace(self, padded_bytes=page_bytes)
        ratio, rest = divmod(page_bytes, self.page_bytes)
        if rest == 0:
            padded = None if self.padded_bytes is None else page_bytes
            return replace(self, block_size=self.block_size * ratio, padded_bytes=padded)
        if self.kind in ("mla", "indexer"):
            raise ValueError("pages of MLA layers cannot be padded")
        return replace(self, padded_bytes=page_bytes)
