"""Weights and KV cache of target and draft: which layers share a block table, one pool, weights by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specserve.errors import FactError
from specserve.memory.kv import (
    KvFormat,
    LayerKind,
    LayerKv,
    default_block_size,
    element_bytes,
    hybrid_blocks,
    kv_dtype,
    kv_format,
    layer_kv,
    served_bytes,
)
from specserve.memory.pool import BlockTable, Demand, Layers, PipelineStage, group_layers
from specserve.memory.situation import HEADS, NOT_SPECULATIVE, WITHOUT_CACHE, Settings, Speculative
from specserve.memory.weights import Weights, moe_backend, stage_of_layers, tallied, weigh
from specserve.models.config import UnknownArchitecture, quantization_of
from specserve.models.facts import ModelFacts
from specserve.models.shape import Mixer, Shape, State, bare_shape, read_mtp, read_shape
from specserve.models.tensors import brings_embeddings


@dataclass(frozen=True, slots=True)
class Placed:
    """One layer's cache: on which stage, and of which model."""

    layer: LayerKv
    stage: int
    is_draft: bool


def demand(target: ModelFacts, speculative: Speculative = NOT_SPECULATIVE, *, settings: Settings) -> Demand:
    """Weights and KV cache of a target, with the draft of a speculative method.

    Raises FactError if config.json lacks a figure or has one of a wrong type, and if neither headers nor a formula tell
    the weights. The KV cache of an unknown architecture is left out: nothing is guessed.
    """
    draft = speculative.draft
    if speculative.method == "mtp" and draft is not None and draft.model == target.model:
        draft, speculative = (
            None,
            replace(speculative, draft=None),
        )  # vLLM's default: the layers of the target
    shape, is_known = _shape_of(target)
    weight_bytes = served_bytes(settings.dtype, given=shape.dtype)
    strange = [] if is_known else [target]
    strange += [draft] if draft is not None and not _shape_of(draft)[1] else []
    placed = {} if strange else _placed(target, speculative, shape, weight_bytes, settings=settings)
    kinds = tallied(target, online=settings.quantization)
    weights = weigh(kinds, shape, settings=settings, weight_bytes=weight_bytes)
    head = _draft_weights(target, speculative, shape, weights, settings=settings)
    stages, groups = _in_one_pool(
        placed, weights.stages, [*[0] * (settings.pipeline_parallel_size - 1), head], settings=settings
    )
    notes = _notes(target, draft, speculative.method, shape, is_known=is_known, settings=settings)
    return Demand(
        stages,
        groups,
        settings.max_model_len,
        speculative.lookahead_tokens,
        notes=(*map(_strange, strange), *notes),
        is_kv_known=not strange,
    )


def _shape_of(facts: ModelFacts) -> tuple[Shape, bool]:
    """The shape of a model, and whether its KV cache is known."""
    try:
        return read_shape(facts.model, facts.config), True
    except UnknownArchitecture:
        return bare_shape(facts.model, facts.config), False


def _strange(facts: ModelFacts) -> str:
    name = next(iter(facts.architectures), None) or facts.config.get("model_type")
    return (
        f"the architecture `{name}` is not known: weights from the safetensors headers, KV cache not computed, "
        "other bounds assumed"
    )


def _placed(
    target: ModelFacts, speculative: Speculative, shape: Shape, weight_bytes: int, *, settings: Settings
) -> dict[str, Placed]:
    """The caches of all layers, in the order in which vLLM registers them; the draft lies on the last stage."""
    cache = kv_format(
        shape,
        settings=settings,
        dtype=kv_dtype(settings.kv_cache_dtype, quantization=quantization_of(target.config)),
        weight_bytes=weight_bytes,
        draft_tokens=speculative.tokens if speculative.method else 0,
    )
    stages = settings.pipeline_parallel_size
    own = (
        Placed(layer, stage, is_draft=False)
        for stage, mixers in zip(stage_of_layers(len(shape.layers), stages), shape.layers, strict=True)
        for mixer in mixers
        for layer in layer_kv(mixer, cache)
    )
    drafted = (
        Placed(layer, stages - 1, is_draft=True) for layer in _draft_layers(target, speculative, cache=cache)
    )
    return {str(place): held for place, held in enumerate([*own, *drafted])}


def _draft_layers(target: ModelFacts, speculative: Speculative, *, cache: KvFormat) -> list[LayerKv]:
    """The caches of the draft's layers, in the target's blocks."""
    mixers: tuple[Mixer, ...] = ()
    method, draft, weight_bytes = speculative.method, speculative.draft, cache.weight_bytes
    if method is None or speculative.unknown or method in WITHOUT_CACHE:
        return []
    if draft is not None:
        shape = read_shape(draft.model, draft.config)
        mixers = tuple(mixer for layer in shape.layers for mixer in layer)
        if method == "draft_model":
            weight_bytes = served_bytes(cache.settings.dtype, given=shape.dtype)
    elif method == "mtp":
        mixers = read_mtp(target.model, target.config)
    mine = replace(cache, dtype=speculative.kv_cache_dtype or cache.dtype, weight_bytes=weight_bytes)
    return [layer for mixer in mixers for layer in layer_kv(mixer, mine)]


def _draft_weights(
    target: ModelFacts, speculative: Speculative, shape: Shape, weights: Weights, *, settings: Settings
) -> int:
    """Bytes of the draft on each GPU of the last stage."""
    method, draft, alone = speculative.method, speculative.draft, replace(settings, pipeline_parallel_size=1)
    if method is None or speculative.unknown or (draft is None and method != "mtp"):
        return 0
    given = served_bytes(settings.dtype, given=shape.dtype)
    if draft is None:
        if weights.mtp:
            return weights.mtp
        kinds = tallied(target, part="mtp", online=settings.quantization)
        return weigh(kinds, shape, settings=alone, weight_bytes=given).mtp
    mine, is_head = _shape_of(draft)[0], method in HEADS
    part = method if is_head else "model"
    if draft.config.get("model_type") == "gemma4_assistant":
        part = "assistant"
    kinds = tallied(draft, part=part, target_hidden_size=shape.hidden_size)
    if method == "draft_model":
        given = served_bytes(settings.dtype, given=mine.dtype)
    mine = replace(mine, is_tied=mine.is_tied and not is_head)
    weighed = weigh(kinds, mine, settings=alone, weight_bytes=given)
    return sum(weighed.stages) + (weighed.mtp if is_head else 0)


def _in_one_pool(
    placed: Mapping[str, Placed], weights: Sequence[int], drafts: Sequence[int], *, settings: Settings
) -> tuple[tuple[PipelineStage, ...], tuple[BlockTable, ...]]:
    """Stages and block tables of these layers. Raises FactError if vLLM cannot keep them in one pool."""
    layers = {name: held.layer for name, held in placed.items()}
    try:
        groups = group_layers(layers, is_hybrid_off=settings.disable_hybrid_kv_cache_manager)
    except ValueError as error:
        raise FactError(f"vLLM cannot keep the layers of target and draft in one pool: {error}") from error
    stages = []
    for stage in range(settings.pipeline_parallel_size):
        here = {name: held for name, held in placed.items() if held.stage == stage}
        pages = (sum(layer.page_bytes for name, layer in group.items() if name in here) for group in groups)
        tokens, fixed = [0, 0], [0, 0]
        for held in here.values():
            tokens[held.is_draft] += held.layer.bytes_per_token
            if held.layer.kind == "state":
                fixed[held.is_draft] += held.layer.page_bytes * held.layer.state_blocks
        rank = stage * settings.tensor_parallel_size
        blocks = max(pages, default=0)
        stages.append(PipelineStage(rank, weights[stage], drafts[stage], blocks, *tokens, *fixed))
    return tuple(stages), tuple(_as_table(group, settings) for group in groups)


def _as_table(layers: Layers, settings: Settings) -> BlockTable:
    """A block table as requests see it (`max_memory_usage_bytes` of each spec, v1/kv_cache_interface.py 0.32).

    As many batches are in flight as `max_concurrent_batches` of vllm/config/vllm.py says.
    """
    first, page = next(iter(layers.values())), sum(layer.page_bytes for layer in layers.values())
    is_async = settings.async_scheduling and settings.platform != "cpu"
    in_flight = settings.max_num_batched_tokens * (settings.pipeline_parallel_size + is_async)
    if first.kind == "state":
        return BlockTable(first.block_size, page, fixed_blocks=first.state_blocks)
    if first.kind == "sliding":
        return BlockTable(first.block_size, page, (first.window or 1) - 1 + in_flight, spare_blocks=1)
    if first.kind == "chunked":
        return BlockTable(first.block_size, page, (first.window or 0) + in_flight)
    return BlockTable(first.block_size, page)


def _notes(
    target: ModelFacts,
    draft: ModelFacts | None,
    method: str | None,
    shape: Shape,
    *,
    is_known: bool,
    settings: Settings,
) -> tuple[str, ...]:
    notes = []
    if not shape.is_known and is_known:
        notes.append(
            f"model type `{shape.model_type}` is read by the usual keys, not compared with vLLM's figures"
        )
    if not shape.is_known and not target.tensors:
        notes.append(f"weights of `{target.model}` by formula: its safetensors headers are not known")
    if shape.mxfp4_expert is not None and settings.moe_backend == "auto" and settings.platform != "cpu":
        backend = moe_backend(settings)
        notes.append(
            f"MXFP4 experts are padded for the MoE backend `{backend}`, assumed for this accelerator"
        )
    if draft is not None and method in HEADS - {"mtp"} and _has_embeddings(draft):
        notes.append(
            f"`{draft.model}` has its own embeddings, which are counted; vLLM drops them if they equal the target's"
        )
    return tuple(notes)


def _has_embeddings(head: ModelFacts) -> bool:
    if head.tensors is None:
        return brings_embeddings(head.config)
    return any("embed_tokens" in name for name in head.tensors)


_KINDS: Mapping[str, LayerKind] = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "mla",
    "MambaSpec": "state",
}


def demand_by_vllm(
    answer: Mapping[str, Any], target: ModelFacts, speculative: Speculative, *, settings: Settings
) -> Demand:
    """The demand by vLLM's own figures.

    The probe builds on the CPU, so that no GPU is touched: bytes of a token are the same there, block sizes are
    set anew for the platform of `settings`, and so are states, which the CPU keeps in float32. Raises FactError for
    an answer with a kind of layer that is not known.
    """
    elements = _state_elements(target, settings=settings)
    placed = {
        f"{stage}.{layer['layer']}": Placed(_told_layer(layer, elements), stage, bool(layer["draft"]))
        for stage, figures in enumerate(answer["stages"])
        for layer in figures["kv"]
    }
    placed = _in_blocks(placed, settings=settings)
    weights, drafts = (
        [int(figures[part]["parameters"]) for figures in answer["stages"]] for part in ("target", "draft")
    )
    stages, groups = _in_one_pool(placed, weights, drafts, settings=settings)
    return Demand(stages, groups, settings.max_model_len, speculative.lookahead_tokens, basis="vllm")


def _state_elements(target: ModelFacts, *, settings: Settings) -> tuple[int, int] | None:
    """Bytes of an element of a convolution's state and of a recurrence; None: as the CPU has them."""
    if settings.platform == "cpu":
        return None
    try:
        shape = read_shape(target.model, target.config)
    except FactError:
        return None
    states = (mixer for layer in shape.layers for mixer in layer if isinstance(mixer, State))
    own = next((state.recurrent_dtype for state in states), None)
    given = served_bytes(settings.dtype, given=shape.dtype)
    return element_bytes(settings, recurrent=own, weight_bytes=given)


def _told_layer(told: Mapping[str, Any], elements: tuple[int, int] | None) -> LayerKv:
    kind, size = _KINDS.get(told["kind"]), int(told["block_size"])
    if kind is None:
        raise FactError(f"vLLM reported KV cache layers of an unknown kind, `{told['kind']}`")
    if kind == "state":
        held, shapes = int(told["state_bytes"]), told.get("state_shapes")
        if elements is not None and shapes:
            held = sum(math.prod(shape) * elements[min(place, 1)] for place, shape in enumerate(shapes))
        return LayerKv(kind, size, state_bytes=held, state_blocks=int(told["state_blocks"]))
    per_token = int(told["page_bytes"]) // size
    cell = (int(told["num_kv_heads"]), int(told["head_size"]), int(told.get("head_size_v", 0)), per_token)
    return LayerKv(
        kind, size, per_token, cell, told.get("sliding_window") or told.get("attention_chunk_size")
    )


def _in_blocks(placed: Mapping[str, Placed], *, settings: Settings) -> dict[str, Placed]:
    """Block sizes of the platform, and as long as the largest state asks for."""
    layers = [held.layer for held in placed.values()]
    is_latent = any(layer.kind == "mla" for layer in layers)
    per_token = next((layer.bytes_per_token for layer in layers if layer.kind != "state"), 0)
    page = max((layer.state_bytes for layer in layers), default=0)
    size = default_block_size(settings, is_latent=is_latent)
    padded = None
    if page and per_token:
        size, _ = hybrid_blocks(size, page, per_token=per_token, settings=settings, is_latent=is_latent)
        padded = size * per_token

    def resized(layer: LayerKv) -> LayerKv:
        if layer.kind != "state":
            return replace(layer, block_size=size)
        own = layer.block_size if layer.block_size == settings.max_model_len else size
        return replace(layer, block_size=own, padded_bytes=padded if padded != layer.state_bytes else None)

    return {name: replace(held, layer=resized(held.layer)) for name, held in placed.items()}
