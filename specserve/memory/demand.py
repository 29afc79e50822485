"""What target and draft need of every GPU: weights and KV cache, by formula or as vLLM's own code says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.memory.compose import Placed, compose, put_together
from specserve.memory.defaults import served_bytes, state_bytes
from specserve.memory.kv import Group, LayerKind, LayerKv, Stage, default_block_size, longer_blocks
from specserve.memory.settings import Settings, Speculative
from specserve.models.architecture import read_shape
from specserve.models.facts import ModelFacts
from specserve.models.shape import State

__all__ = ["Demand", "Stage", "demand"]


@dataclass(frozen=True, slots=True)
class Demand:
    """Weights and KV cache of one arm. `kv_bytes` is what is left for the KV cache: on the fullest GPU, or by stage."""

    stages: tuple[Stage, ...]
    groups: tuple[Group, ...]
    max_model_len: int
    lookahead_tokens: int = 0
    """KV slots that a running request needs beyond its tokens."""
    basis: Literal["vllm", "formula"] = "formula"
    notes: tuple[str, ...] = ()
    """What is not known exactly, and why."""
    is_kv_known: bool = True
    """False for an architecture whose KV cache cannot be computed: then there are no groups."""

    @property
    def fullest(self) -> Stage:
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
    made = compose(target, speculative, settings=settings)
    return Demand(
        made.stages,
        made.groups,
        settings.max_model_len,
        speculative.lookahead_tokens,
        notes=made.notes,
        is_kv_known=made.is_kv_known,
    )


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
