"""Does a launch fit: by the formula, or by what vLLM's own code computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specserve.errors import FactError
from specserve.hardware.accelerators import Machine
from specserve.memory.compose import Placed, put_together
from specserve.memory.defaults import Settings, Speculative, served_bytes, state_bytes
from specserve.memory.estimate import Bounds, Demand, Knob, MemoryEstimate, MemoryVerdict, PerGpu
from specserve.memory.kv import LayerKind, LayerKv, default_block_size, longer_blocks
from specserve.memory.reckoning import Reckoning, reckon, without_speculation
from specserve.memory.situation import MemorySituation, situation
from specserve.memory.verdict import (
    certain,
    is_only_in_doubt,
    knobs,
    reason,
    state_blocks,
    verdict_of,
    verdict_without_states,
)
from specserve.models.architecture import read_shape
from specserve.models.facts import ModelFacts
from specserve.models.shape import State
from specserve.profile.schema import Profile, Speculation


def estimate(
    profile: Profile,
    *,
    target: ModelFacts,
    machine: Machine,
    version: str,
    speculation: Speculation | None = None,
    draft: ModelFacts | None = None,
    path: str = "speculation",
    needed: Demand | None = None,
) -> MemoryEstimate:
    """What a profile with one way to speculate (None: none) needs of every GPU of a machine, by one vLLM version.

    `draft`: the facts of `speculation.model`, where the method has a second model; `path`: where the block stands
    in the profile, for the knobs; `needed`: weights and KV cache, where vLLM itself was asked for them. Raises
    FactError where a model's facts do not say enough.
    """
    arm = situation(
        profile, target=target, machine=machine, version=version, speculation=speculation, draft=draft
    )
    return assess(arm, path=path, needed=needed)


def assess(s: MemorySituation, *, path: str = "speculation", needed: Demand | None = None) -> MemoryEstimate:
    """The same for a situation that is worked out already."""
    r = reckon(s, needed=needed)
    s, r, notes = _fitted_length(s, r)
    found = verdict_of(s, r)
    at = r.poorest
    stage, demand = r.demand.stages[at], r.demand
    is_all_known = demand.is_kv_known and s.unknown_draft is None
    if s.unknown_draft:
        notes.append(f"`{s.unknown_draft}` is not known: its weights and KV cache are not counted")
    if s.not_modelled:
        notes.append(f"not modelled, and not counted: {', '.join(f'`{name}`' for name in s.not_modelled)}")
    return MemoryEstimate(
        verdict=found,
        rank=stage.rank,
        per_gpu_bytes=_per_gpu(s, r, at),
        target_kv_bytes_per_token=stage.target_kv_bytes_per_token,
        draft_kv_bytes_per_token=stage.draft_kv_bytes_per_token,
        target_kv_bytes_fixed=stage.target_kv_bytes_fixed,
        draft_kv_bytes_fixed=stage.draft_kv_bytes_fixed,
        max_model_len=s.settings.max_model_len,
        kv_cache_tokens=Bounds(demand.tokens(r.low), demand.tokens(r.high), r.logs),
        max_concurrency=Bounds(_concurrency(s, r, r.low), _concurrency(s, r, r.high), r.logs),
        largest_max_model_len=_longest(s, r),
        without_speculation_kv_cache_tokens=_baseline(s) if s.method and is_all_known else None,
        basis=demand.basis,
        calibration=_calibration(r, at),
        certain=found == "does_not_fit" and certain(s, r),
        knobs=_knobs(s, r, found, path=path),
        notes=(*demand.notes, *notes),
        reason=reason(s, r) if found == "tight" else "",
        draft_logits_bytes=r.draft_logits,
        ranks=s.ranks,
        is_kv_cache_default=s.is_kv_cache_default,
        states=state_blocks(s, r),
        unknown_draft=s.unknown_draft,
        is_only_in_doubt=is_only_in_doubt(s, r, found),
        is_kv_known=demand.is_kv_known,
        is_short_of_states_only=found != verdict_without_states(s, r),
    )


def _knobs(s: MemorySituation, r: Reckoning, found: MemoryVerdict, *, path: str) -> tuple[Knob, ...]:
    """None if it fits, nor if it is tight only because a model is not known, which no knob changes."""
    is_in_doubt = is_only_in_doubt(s, r, found)
    return () if found == "fit" or is_in_doubt else knobs(s, r, verdict=found, path=path)


def _fitted_length(s: MemorySituation, r: Reckoning) -> tuple[MemorySituation, Reckoning, list[str]]:
    """With `max_model_len: auto`, the length that vLLM will surely come down to."""
    if not s.is_auto_length:
        return s, r, []
    limit = s.settings.max_model_len
    low, high = (r.demand.largest_max_model_len(kv, limit=limit) for kv in (r.low, r.high))
    if low in (0, limit):
        return s, r, []
    s = replace(s, settings=replace(s.settings, max_model_len=low))
    r = replace(r, demand=replace(r.demand, max_model_len=low))
    return s, r, [f"`max_model_len: auto` gives {low:,} to {high:,} tokens here"]


def _per_gpu(s: MemorySituation, r: Reckoning, at: int) -> PerGpu:
    stage, kv = r.demand.stages[at], r.kv_cache[at]
    return PerGpu(
        total=s.machine.accelerator.total_bytes,
        budget=r.budget,
        target_weights=stage.target_weights_bytes,
        draft_weights=stage.draft_weights_bytes,
        activation=r.activation[at],
        other=r.other[at],
        kv_cache=Bounds(max(0.0, kv.low), max(0.0, kv.high), kv.logs),
    )


def _concurrency(s: MemorySituation, r: Reckoning, kv_bytes: list[int]) -> float:
    if not r.demand.is_kv_known:
        return 0.0
    return r.demand.concurrency(kv_bytes) if r.demand.groups else float(s.settings.max_num_seqs)


def _longest(s: MemorySituation, r: Reckoning) -> Bounds:
    """The largest max_model_len that fits, up to what the model is made for."""
    limit = max(s.longest, s.settings.max_model_len) if r.demand.is_kv_known else 0
    low, high = (r.demand.largest_max_model_len(kv, limit=limit) for kv in (r.low, r.high))
    return Bounds(low, high, r.logs)


def _baseline(s: MemorySituation) -> Bounds | None:
    """The same without speculation; None where only vLLM knows the model's shape."""
    try:
        alone = reckon(without_speculation(s))
    except FactError:
        return None
    return Bounds(alone.demand.tokens(alone.low), alone.demand.tokens(alone.high), alone.logs)


def _calibration(r: Reckoning, at: int) -> str:
    rules = r.regime
    name = "CPU engine" if rules.runner == "cpu" else f"model runner {rules.runner.upper()}"
    parts = (("activations", r.activation[at]), ("other", r.other[at]), ("KV cache", r.kv_cache[at]))
    support = ", ".join(f"{what} ({part.support})" for what, part in parts if part.support)
    return f"{name}, vLLM {rules.since} and later; {support}; source: {rules.source}"


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
        raise FactError(f"vLLM reported KV cache layers of an unknown kind, `{told['kind']}`")
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
