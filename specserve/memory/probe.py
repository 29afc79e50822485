"""Weights and KV cache of a launch as vLLM's own code says, in a probe that built the models on the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specserve.errors import FactError
from specserve.memory.compose import Placed, put_together
from specserve.memory.defaults import Settings, Speculative, served_bytes, state_bytes
from specserve.memory.estimate import Demand
from specserve.memory.kv import LayerKind, LayerKv, default_block_size, longer_blocks
from specserve.models.architecture import read_shape
from specserve.models.facts import ModelFacts
from specserve.models.shape import State

_KINDS: Mapping[str, LayerKind] = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "mla",
    "MambaSpec": "state",
}


def demand_of(
    answer: Mapping[str, Any], target: ModelFacts, *, settings: Settings, speculative: Speculative
) -> Demand:
    """The demand by vLLM's own figures.

    The probe builds on the CPU, so that no GPU is touched: bytes of a token are the same there, block sizes are
    set anew for the platform of `settings`, and so are states, which the CPU keeps in float32. Raises FactError for
    an answer with a kind of layer that is not known.
    """
    elements = _state_elements(target, settings=settings)
    placed = {
        f"{stage}.{layer['layer']}": Placed(_layer(layer, elements=elements), stage, bool(layer["draft"]))
        for stage, figures in enumerate(answer["stages"])
        for layer in figures["kv"]
    }
    placed = _with_blocks(placed, settings=settings)
    weights = [int(figures["target"]["parameters"]) for figures in answer["stages"]]
    drafts = [int(figures["draft"]["parameters"]) for figures in answer["stages"]]
    stages, groups = put_together(placed, weights, drafts, settings=settings)
    return Demand(stages, groups, settings.max_model_len, speculative.lookahead_tokens, basis="vllm")


def _state_elements(target: ModelFacts, *, settings: Settings) -> tuple[int, int] | None:
    """Bytes of an element of a convolution's state and of a recurrence; None: as the CPU has them."""
    if settings.platform == "cpu":
        return None
    try:
        shape = read_shape(target.model, target.config)
    except FactError:
        return None
    given = served_bytes(settings.dtype, given=shape.dtype)
    first = state_bytes(settings.mamba_cache_dtype, weight_bytes=given)
    own = next(
        (held.recurrent_dtype for layer in shape.layers for held in layer if isinstance(held, State)), None
    )
    wanted = settings.mamba_ssm_cache_dtype if settings.mamba_ssm_cache_dtype != "auto" else own or "auto"
    return first, state_bytes(wanted, weight_bytes=first)


def _state(told: Mapping[str, Any], elements: tuple[int, int] | None) -> int:
    shapes = told.get("state_shapes")
    if elements is None or not shapes:
        return int(told["state_bytes"])
    return sum(math.prod(shape) * elements[min(place, 1)] for place, shape in enumerate(shapes))


def _layer(told: Mapping[str, Any], *, elements: tuple[int, int] | None) -> LayerKv:
    kind = _KINDS.get(told["kind"])
    if kind is None:
        raise FactError(f"vLLM's KV cache layers of kind `{told['kind']}` are not known")
    if kind == "state":
        blocks = int(told["state_blocks"])
        return LayerKv(kind, int(told["block_size"]), state_bytes=_state(told, elements), state_blocks=blocks)
    size = int(told["page_bytes"]) // int(told["block_size"])
    cell = (int(told["num_kv_heads"]), int(told["head_size"]), int(told.get("head_size_v", 0)), size)
    window = told.get("sliding_window") or told.get("attention_chunk_size")
    return LayerKv(kind, int(told["block_size"]), size, cell, window)


def _with_blocks(placed: Mapping[str, Placed], *, settings: Settings) -> dict[str, Placed]:
    """Block sizes of the platform, and as long as the largest state asks for."""
    layers = [held.layer for held in placed.values()]
    attention = next((layer for layer in layers if layer.kind != "state"), None)
    size = default_block_size(settings, is_latent=any(layer.kind == "mla" for layer in layers))
    page = max((layer.state_bytes for layer in layers), default=0)
    padded = None
    if page and attention is not None:
        size = longer_blocks(
            size,
            page,
            per_token=attention.bytes_per_token,
            settings=settings,
            is_latent=attention.kind == "mla",
        )
        padded = size * attention.bytes_per_token
    return {
        name: replace(held, layer=_resized(held.layer, size, padded, longest=settings.max_model_len))
        for name, held in placed.items()
    }


def _resized(layer: LayerKv, size: int, padded: int | None, *, longest: int) -> LayerKv:
    if layer.kind != "state":
        return replace(layer, block_size=size)
    own = longest if layer.block_size == longest else size
    return replace(layer, block_size=own, padded_bytes=padded if padded != layer.state_bytes else None)
