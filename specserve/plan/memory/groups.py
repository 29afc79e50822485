"""Which layers share a block table: vLLM's grouping rules, as they are. Knows no model and no budget.

Source: `get_kv_cache_groups` in vllm/v1/core/kv_cache_utils.py 0.32, in kv_cache_planning.py 0.33. Left out:
block-outermost layouts (DeepSeek-V4), host pools, decode context parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specserve.plan.memory.layerkv import LayerKv

Layers = Mapping[str, LayerKv]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one block table."""

    layers: Layers

    @property
    def first(self) -> LayerKv:
        """Speaks for all where a request's blocks are counted."""
        return next(iter(self.layers.values()))


def group_layers(layers: Layers, *, is_hybrid_off: bool = False) -> tuple[LayerGroup, ...]:
    """The block tables of a model with its draft; layers in the order in which vLLM registers them.

    `is_hybrid_off`: `disable_hybrid_kv_cache_manager`. Raises ValueError where vLLM refuses the mixture.
    """
    if is_hybrid_off:
        layers = _as_full(layers)
    if not layers:
        return ()
    if _are_one_kind(list(layers.values())) or _are_one_family(list(layers.values())):
        return (LayerGroup(layers),)
    try:
        unified = _unify_pages(layers)
    except ValueError:
        promoted = _as_full(layers)
        kinds = {layer.kind for layer in layers.values()}
        if "chunked" in kinds or "sliding" not in kinds or not _are_one_family(list(promoted.values())):
            raise
        return (LayerGroup(promoted),)
    return _split(unified)


def _are_one_kind(layers: Sequence[LayerKv]) -> bool:
    """vLLM's `merge`: alike in all that the cache's shape depends on. A full layer's window is no part of it."""
    first = layers[0]
    if first.kind == "full":
        windows = {layer.window for layer in layers if layer.window is not None}
        return len(windows) <= 1 and all(
            replace(layer, window=None) == replace(first, window=None) for layer in layers
        )
    return all(layer == first for layer in layers)


def _are_one_family(layers: Sequence[LayerKv]) -> bool:
    """vLLM's `UniformTypeKVCacheSpecs`: every layer needs the same number of token slots."""
    first = layers[0]
    return all(
        layer.base == first.base
        and layer.block_size == first.block_size
        and (first.base == "full" or layer.window == first.window)
        and (
            first.base != "state"
            or (layer.page_bytes, layer.state_blocks) == (first.page_bytes, first.state_blocks)
        )
        for layer in layers
    )


def _as_full(layers: Layers) -> Layers:
    """vLLM's `_promote_local_kv_cache_specs`: windows keep all their tokens."""
    if _are_one_kind(list(layers.values())) or _are_one_family(list(layers.values())):
        return layers
    sizes = {layer.block_size for layer in layers.values() if layer.base == "full"}
    if not sizes:
        return layers
    return {
        name: replace(
            layer, kind="full", block_size=sizes.copy().pop() if len(sizes) == 1 else layer.block_size
        )
        if layer.kind in ("sliding", "chunked")
        else layer
        for name, layer in layers.items()
    }


def _unify_pages(layers: Layers) -> Layers:
    largest = max(layer.page_bytes for layer in layers.values())
    return {
        name: layer if layer.page_bytes == largest else layer.resized(largest)
        for name, layer in layers.items()
    }


def _split(layers: Layers) -> tuple[LayerGroup, ...]:
    """Groups of equal layer count (vLLM's `_get_kv_cache_groups_uniform_page_size`)."""
    alike: dict[LayerKv, list[str]] = {}
    for name, layer in layers.items():
        alike.setdefault(layer, []).append(name)
    buckets: list[tuple[list[LayerKv], list[str]]] = []
    for layer, names in alike.items():
        for kinds, members in buckets:
            if _are_one_kind([*kinds, layer]):
                kinds.append(layer)
                members.extend(names)
                break
        else:
            buckets.append(([layer], list(names)))
    fewest, most = min(len(names) for _, names in buckets), max(len(names) for _, names in buckets)
    size = most if most < fewest * 1.5 else fewest
    groups = []
    for _, names in buckets:
        count = -(-len(names) // size)
        groups += [LayerGroup({name: layers[name] for name in names[i::count]}) for i in range(count)]
    return tuple(groups)
