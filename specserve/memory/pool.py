"""The pool of KV blocks: which layers share a block table, and what the pool holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specserve.memory.kv import LayerKv

Layers = Mapping[str, LayerKv]


def group_layers(layers: Layers, *, is_hybrid_off: bool = False) -> tuple[Layers, ...]:
    """The block tables of a model with its draft; layers in the order in which vLLM registers them.

    `is_hybrid_off`: `disable_hybrid_kv_cache_manager`. Raises ValueError if vLLM refuses the mixture.
    """
    if is_hybrid_off:
        layers = _as_full(layers)
    if not layers:
        return ()
    if _share_table(layers):
        return (layers,)
    largest = max(layer.page_bytes for layer in layers.values())
    try:
        return _split(
            {
                name: layer if layer.page_bytes == largest else layer.resized(largest)
                for name, layer in layers.items()
            }
        )
    except ValueError:
        promoted = _as_full(layers)
        kinds = {layer.kind for layer in layers.values()}
        if "chunked" in kinds or "sliding" not in kinds or not _are_one_family(list(promoted.values())):
            raise
        return (promoted,)


def _share_table(layers: Layers) -> bool:
    return _are_one_kind(list(layers.values())) or _are_one_family(list(layers.values()))


def _are_one_kind(layers: Sequence[LayerKv]) -> bool:
    """vLLM's `merge`: alike in all that the cache's shape depends on. A full layer's window is no part of it."""
    first = layers[0]
    if first.kind != "full":
        return all(layer == first for layer in layers)
    windows = {layer.window for layer in layers if layer.window is not None}
    return len(windows) <= 1 and all(
        replace(layer, window=None) == replace(first, window=None) for layer in layers
    )


def _are_one_family(layers: Sequence[LayerKv]) -> bool:
    """vLLM's `UniformTypeKVCacheSpecs`: every layer needs the same number of token slots."""

    def slots(layer: LayerKv) -> tuple[object, ...]:
        states = (layer.page_bytes, layer.state_blocks) if layer.base == "state" else ()
        return (layer.base, layer.block_size, None if layer.base == "full" else layer.window, *states)

    return len(set(map(slots, layers))) == 1


def _as_full(layers: Layers) -> Layers:
    """vLLM's `_promote_local_kv_cache_specs`: windows keep all their tokens."""
    sizes = {layer.block_size for layer in layers.values() if layer.base == "full"}
    if not sizes or _share_table(layers):
        return layers
    (only,) = sizes if len(sizes) == 1 else (None,)
    return {
        name: replace(layer, kind="full", block_size=only or layer.block_size)
        if layer.kind in ("sliding", "chunked")
        else layer
        for name, layer in layers.items()
    }


def _split(layers: Layers) -> tuple[Layers, ...]:
    """Groups of equal layer count (vLLM's `_get_kv_cache_groups_uniform_page_size`)."""
    buckets: list[dict[str, LayerKv]] = []
    homes: dict[LayerKv, dict[str, LayerKv]] = {}
    for name, layer in layers.items():
        if layer not in homes:
            fitting = (held for held in buckets if _are_one_kind([*dict.fromkeys(held.values()), layer]))
            homes[layer] = next(fitting, {})
            if not homes[layer]:
                buckets.append(homes[layer])
        homes[layer][name] = layer
    fewest, most = min(map(len, buckets)), max(map(len, buckets))
    size = most if most < fewest * 1.5 else fewest
    groups: list[Layers] = []
    for bucket in buckets:
        count, names = -(-len(bucket) // size), list(bucket)
        groups += [{name: layers[name] for name in names[i::count]} for i in range(count)]
    return tuple(groups)


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
    """Weights and KV cache of one variant.

    `kv_bytes` is what is left for the KV cache: on the fullest GPU, or by stage.
    """

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
