"""Target and draft put together: which layers share a block table, one pool, weights by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specserve.errors import FactError
from specserve.memory.defaults import HEADS, WITHOUT_CACHE, Settings, Speculative, kv_dtype, served_bytes
from specserve.memory.estimate import BlockTable, Demand, PipelineStage
from specserve.memory.kv import KvFormat, LayerKv, cache_of, layer_kv
from specserve.memory.parts import is_by_formula, tallied
from specserve.memory.weights import Weights, moe_backend, stage_of_layers, weigh
from specserve.models.architecture import bare_shape, quantization_of, read_mtp, read_shape
from specserve.models.config import UnknownArchitecture
from specserve.models.facts import ModelFacts
from specserve.models.shape import Mixer, Shape
from specserve.models.tensors import brings_embeddings

Layers = Mapping[str, LayerKv]


def group_layers(layers: Layers, *, is_hybrid_off: bool = False) -> tuple[Layers, ...]:
    """The block tables of a model with its draft; layers in the order in which vLLM registers them.

    `is_hybrid_off`: `disable_hybrid_kv_cache_manager`. Raises ValueError where vLLM refuses the mixture.
    """
    if is_hybrid_off:
        layers = _as_full(layers)
    if not layers:
        return ()
    if _are_one_kind(list(layers.values())) or _are_one_family(list(layers.values())):
        return (layers,)
    try:
        unified = _unify_pages(layers)
    except ValueError:
        promoted = _as_full(layers)
        kinds = {layer.kind for layer in layers.values()}
        if "chunked" in kinds or "sliding" not in kinds or not _are_one_family(list(promoted.values())):
            raise
        return (promoted,)
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


def _split(layers: Layers) -> tuple[Layers, ...]:
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
        groups += [{name: layers[name] for name in names[i::count]} for i in range(count)]
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class Placed:
    """One layer's cache: on which stage, and of which model."""

    layer: LayerKv
    stage: int
    is_draft: bool


def demand(
    target: ModelFacts,
    draft: ModelFacts | None = None,
    *,
    settings: Settings,
    method: str | None = None,
    num_speculative_tokens: int = 0,
    draft_kv_cache_dtype: str | None = None,
    unknown_draft: str | None = None,
) -> Demand:
    """Weights and KV cache of a target, with the draft of a speculative method.

    `draft` is the second model or head of the method; None for methods without one (ngram, suffix, an `mtp` that
    lies in the target); `unknown_draft` names one that could not be read, and is not counted. Raises FactError if
    config.json lacks a figure or has one of a wrong type, and if neither headers nor a formula tell the weights. The
    KV cache of an unknown architecture is left out: nothing is guessed.
    """
    if method == "mtp" and draft is not None and draft.model == target.model:
        draft = None  # vLLM's own default: the layers lie in the target
    speculative = Speculative(method, num_speculative_tokens, draft, draft_kv_cache_dtype, unknown_draft)
    return compose(target, speculative, settings=settings)


def compose(target: ModelFacts, speculative: Speculative, *, settings: Settings) -> Demand:
    """The same for a way to speculate that is worked out already."""
    shape, _ = _shape_of(target)
    weight_bytes = served_bytes(settings.dtype, given=shape.dtype)
    draft = speculative.draft
    strange = [facts for facts in filter(None, (target, draft)) if not _shape_of(facts)[1]]
    placed = {} if strange else _placed(target, speculative, shape, weight_bytes, settings=settings)
    weights = weigh(
        tallied(target, part="model", online=settings.quantization),
        shape,
        settings=settings,
        weight_bytes=weight_bytes,
    )
    head = _draft_weights(target, speculative, shape, weights, settings=settings)
    drafts = [*[0] * (settings.pipeline_parallel_size - 1), head]
    stages, groups = put_together(placed, weights.stages, drafts, settings=settings)
    notes = (*map(_strange, strange), *_notes(target, speculative, shape, settings=settings))
    return Demand(
        stages,
        groups,
        settings.max_model_len,
        speculative.lookahead_tokens,
        notes=notes,
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
    """The caches of all layers of target and draft."""
    cache = cache_of(
        shape,
        settings=settings,
        dtype=kv_dtype(settings.kv_cache_dtype, quantization=quantization_of(target.config)),
        weight_bytes=weight_bytes,
        draft_tokens=speculative.tokens if speculative.method else 0,
    )
    drafted = _draft_layers(target, speculative, settings=settings, cache=cache)
    return _place(shape, cache, drafted, stages=settings.pipeline_parallel_size)


def put_together(
    placed: Mapping[str, Placed], weights: Sequence[int], drafts: Sequence[int], *, settings: Settings
) -> tuple[tuple[PipelineStage, ...], tuple[BlockTable, ...]]:
    """Stages and block tables of layers in the order in which vLLM registers them.

    Raises FactError where vLLM cannot keep them in one pool.
    """
    layers = {name: held.layer for name, held in placed.items()}
    try:
        groups = group_layers(layers, is_hybrid_off=settings.disable_hybrid_kv_cache_manager)
    except ValueError as error:
        raise FactError(f"vLLM cannot keep the layers of target and draft in one pool: {error}") from error
    stages = tuple(
        _stage(stage, weights[stage], drafts[stage], placed, groups, settings=settings)
        for stage in range(settings.pipeline_parallel_size)
    )
    return stages, tuple(_as_group(group, settings) for group in groups)


def _draft_layers(
    target: ModelFacts, speculative: Speculative, *, settings: Settings, cache: KvFormat
) -> list[LayerKv]:
    """The caches of the draft's layers, in the target's blocks."""
    mixers: tuple[Mixer, ...] = ()
    given = cache.weight_bytes
    if speculative.method is None or speculative.unknown or speculative.method in WITHOUT_CACHE:
        return []
    if speculative.draft is not None:
        shape = read_shape(speculative.draft.model, speculative.draft.config)
        mixers = tuple(mixer for layer in shape.layers for mixer in layer)
        if speculative.method == "draft_model":
            given = served_bytes(settings.dtype, given=shape.dtype)
    elif speculative.method == "mtp":
        mixers = read_mtp(target.model, target.config)
    mine = replace(cache, dtype=speculative.kv_cache_dtype or cache.dtype, weight_bytes=given)
    return [layer for mixer in mixers for layer in layer_kv(mixer, mine)]


def _place(shape: Shape, cache: KvFormat, drafted: list[LayerKv], *, stages: int) -> dict[str, Placed]:
    """All layers in the order in which vLLM registers them; the draft lies on the last stage."""
    placed: dict[str, Placed] = {}
    for index, stage in enumerate(stage_of_layers(len(shape.layers), stages)):
        for mixer in shape.layers[index]:
            for layer in layer_kv(mixer, cache):
                placed[f"{index}.{len(placed)}"] = Placed(layer, stage, False)
    for layer in drafted:
        placed[f"draft.{len(placed)}"] = Placed(layer, stages - 1, True)
    return placed


def _draft_weights(
    target: ModelFacts, speculative: Speculative, shape: Shape, weights: Weights, *, settings: Settings
) -> int:
    """Bytes of the draft on each GPU of the last stage."""
    method, draft, alone = speculative.method, speculative.draft, replace(settings, pipeline_parallel_size=1)
    if method is None or speculative.unknown or (draft is None and method != "mtp"):
        return 0
    if draft is None:
        if weights.mtp:
            return weights.mtp
        kinds = tallied(target, part="mtp", online=settings.quantization)
        given = served_bytes(settings.dtype, given=shape.dtype)
        return weigh(kinds, shape, settings=alone, weight_bytes=given).mtp
    mine, _ = _shape_of(draft)
    part = method if method in HEADS else "model"
    if draft.config.get("model_type") == "gemma4_assistant":
        part = "assistant"
    kinds = tallied(draft, part=part, online=None, target_hidden_size=shape.hidden_size)
    bytes_each = served_bytes(settings.dtype, given=mine.dtype if method == "draft_model" else shape.dtype)
    if method in HEADS:
        mine = replace(mine, is_tied=False)
    weighed = weigh(kinds, mine, settings=alone, weight_bytes=bytes_each)
    return sum(weighed.stages) + (weighed.mtp if method in HEADS else 0)


def _stage(
    stage: int,
    weights: int,
    draft: int,
    placed: Mapping[str, Placed],
    groups: tuple[Layers, ...],
    *,
    settings: Settings,
) -> PipelineStage:
    here = {name: held for name, held in placed.items() if held.stage == stage}
    pages = (sum(layer.page_bytes for name, layer in group.items() if name in here) for group in groups)
    tokens, fixed = [0, 0], [0, 0]
    for held in here.values():
        tokens[held.is_draft] += held.layer.bytes_per_token
        if held.layer.kind == "state":
            fixed[held.is_draft] += held.layer.page_bytes * held.layer.state_blocks
    return PipelineStage(
        rank=stage * settings.tensor_parallel_size,
        target_weights_bytes=weights,
        draft_weights_bytes=draft,
        bytes_per_block=max(pages, default=0),
        target_kv_bytes_per_token=tokens[0],
        draft_kv_bytes_per_token=tokens[1],
        target_kv_bytes_fixed=fixed[0],
        draft_kv_bytes_fixed=fixed[1],
    )


def _as_group(layers: Layers, settings: Settings) -> BlockTable:
    """A block table as requests see it (`max_memory_usage_bytes` of each spec, v1/kv_cache_interface.py 0.32)."""
    first, page = next(iter(layers.values())), sum(layer.page_bytes for layer in layers.values())
    in_flight = settings.max_num_batched_tokens * _batches(settings)
    if first.kind == "state":
        return BlockTable(first.block_size, page, fixed_blocks=first.state_blocks)
    if first.kind == "sliding":
        return BlockTable(first.block_size, page, (first.window or 1) - 1 + in_flight, spare_blocks=1)
    if first.kind == "chunked":
        return BlockTable(first.block_size, page, (first.window or 0) + in_flight)
    return BlockTable(first.block_size, page)


def _batches(settings: Settings) -> int:
    """Batches in flight at once (`max_concurrent_batches`, vllm/config/vllm.py 0.32)."""
    is_async = settings.async_scheduling and settings.platform != "cpu"
    return settings.pipeline_parallel_size + is_async


def _notes(
    target: ModelFacts, speculative: Speculative, shape: Shape, *, settings: Settings
) -> tuple[str, ...]:
    notes = []
    if not shape.is_known and _shape_of(target)[1]:
        notes.append(
            f"model type `{shape.model_type}` is read by the usual keys, not compared with vLLM's figures"
        )
    if not shape.is_known and is_by_formula(target):
        notes.append(f"weights of `{target.model}` by formula: its safetensors headers are not known")
    if shape.mxfp4_expert is not None and settings.moe_backend == "auto" and settings.platform != "cpu":
        backend = moe_backend(settings)
        notes.append(
            f"MXFP4 experts are padded for the MoE backend `{backend}`, assumed for this accelerator"
        )
    draft = speculative.draft
    if draft is not None and speculative.method in HEADS - {"mtp"} and _has_embeddings(draft):
        notes.append(
            f"`{draft.model}` has its own embeddings, which are counted; vLLM drops them if they equal the target's"
        )
    return tuple(notes)


def _has_embeddings(head: ModelFacts) -> bool:
    if head.tensors is None:
        return brings_embeddings(head.config)
    return any("embed_tokens" in name for name in head.tensors)
