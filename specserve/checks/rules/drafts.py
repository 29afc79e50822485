"""SD237, SD238, SD241, SD245: whether a draft fits its target by their files."""

from __future__ import annotations

from typing import Any

from specserve.checks.config import (
    Config,
    architectures,
    layers,
    section,
    text_config,
    whole,
)
from specserve.checks.rule import ERROR, WARNING, Context, Hits, Variant, rule, variant_rule
from specserve.checks.rules.heads import head_variants
from specserve.checks.rules.pairing import trained_elsewhere
from specserve.models.facts import BITS, ModelFacts
from specserve.vllm.facts import DFLASH_COUNTS_OWN_LAYERS

_SHARE = 4
"""A draft below this part of the target's bytes can pay; published pairs lie between 6 and 50."""
_TARGET = {"target.model": "the target"}
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_IDS = "eagle_aux_hidden_state_layer_ids"


@variant_rule("SD245", WARNING, needs="models")
def oversized_draft(variant: Variant) -> Hits:
    """The draft is not much smaller than its target.

    A decode step costs about as much as reading the weights once. With a draft of a quarter of the target's bytes, four
    draft tokens take as long as a step of the target. A step of speculation then takes twice as long, so it pays only
    if it gives more than two tokens on average.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft-big, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: specserve, the bytes of both checkpoints
    """
    limit, own = _weight_bytes(variant.ctx.target), _weight_bytes(variant.draft)
    if variant.method == "draft_model" and limit is not None and own is not None and own * _SHARE >= limit:
        text = f"the draft has {own / limit:.0%} of the target's bytes"
        help_ = "drafts that pay off have 2 to 15 % of the target's bytes; measure this draft with `specserve bench`"
        yield variant.hit("model", text, related=_TARGET, help=help_)


def _weight_bytes(facts: ModelFacts | None) -> int | None:
    tensors = (facts.tensors if facts else None) or {}
    if not tensors or any(tensor.dtype not in BITS for tensor in tensors.values()):
        return None
    return sum(tensor.size_bytes for tensor in tensors.values()) or None


@rule("SD237", ERROR, needs="models")
def head_of_another_size(ctx: Context) -> Hits:
    """The head takes hidden states of another width than the target's.

    It was trained for another model: loading or the first request fails. Two kinds of heads fail in the same way
    although their target is the right one. An `eagle3` head of the Llama class that reads more or fewer than three
    target layers needs `num_aux_hidden_states` in its config.json (vllm-project/vllm#54526). A DFlash or DSpark head
    may have more or fewer layers than it reads from the target. vLLM 0.26 then needs the list of the target's layers in
    `dflash_config` (vllm-project/vllm#48524).
    Example:
        target: {model: ./qwen3-wide}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Instead: target: {model: ./qwen3}
    Source: vllm/model_executor/models/qwen3_dflash.py (from 0.27), `target_hidden_size = (`
    """
    width = whole(text_config(ctx.target_config or {}), "hidden_size")
    for variant, config in head_variants(ctx) if width else ():
        assert width is not None
        if (elsewhere := trained_elsewhere(variant)) and elsewhere[1] is ERROR:
            continue  # SD239 names the model that it was trained for
        expected = whole(config, "target_hidden_size", "hidden_size")
        is_laguna = architectures(config) == ("DFlashLagunaForCausalLM",)
        text = _wrong_input(variant, config, width=width) or _miscounted(variant, config)
        if expected not in (None, width) and not is_laguna:
            text = f"the head takes hidden states of width {expected}; the target has {width}"
        if text is not None:
            yield variant.hit(
                "model", text, related=_TARGET, help="take the head that was trained for this target"
            )
        elif counts := _counted_by_layers(variant, config):
            text = f"vLLM builds this head for {counts[0]} hidden states; its config.json names {counts[1]} layers"
            found = ctx.during(DFLASH_COUNTS_OWN_LAYERS)
            yield variant.hit("model", text, versions=found, help="use a newer vLLM")


def _counted_by_layers(variant: Variant, config: Config) -> tuple[int, int] | None:
    """The layers of a head and those that it reads, if some vLLM takes the first number for the second."""
    parts = [section(config, name) for name in ("dflash_config", "eagle_config")]
    own, read = whole(config, "num_hidden_layers"), len(_layer_ids(variant.method, config))
    is_listed = any(part.get(key) for part in parts for key in ("target_layer_ids", "layer_ids"))
    is_converted = (
        variant.draft is not None and variant.draft.config.get("speculators_model_type") == "dflash"
    )
    if is_listed or is_converted or any(part.get("use_aux_hidden_state") is False for part in parts):
        return None
    if own is None or not read or own == read or not variant.ctx.during(DFLASH_COUNTS_OWN_LAYERS):
        return None
    return (own, read) if {"DFlashDraftModel", "Qwen3DSparkModel"} & {*architectures(config)} else None


def _wrong_input(variant: Variant, config: Config, *, width: int) -> str | None:
    """What the first matrix of an EAGLE head says against its method."""
    matrix = ((variant.draft.tensors if variant.draft else None) or {}).get("fc.weight")
    if variant.method not in ("eagle", "eagle3") or matrix is None or len(matrix.shape) != 2:
        return None
    inputs = matrix.shape[1]
    if matrix.dtype not in ("BF16", "F16", "F32") or whole(config, "hidden_size") != width:
        return None
    made_for = {2 * width: "eagle", 3 * width: "eagle3"}.get(inputs)
    nested = section(config, "eagle_config").get(_IDS)
    counts = nested or config.get("num_aux_hidden_states") or config.get(_IDS)
    if made_for in (None, variant.method) or counts:
        return None  # a head may say itself how many hidden states it takes
    return f"this is a head for `{made_for}`: it takes {inputs // width} vectors of width {width}"


def _miscounted(variant: Variant, config: Config) -> str | None:
    """Whether the head names another number of layers than vLLM builds it for: only some classes read that list."""
    ids, nested = _numbers(config.get(_IDS)), section(config, "eagle_config").get(_IDS)
    reads = any("Qwen3" in name for name in architectures(config))
    if variant.method != "eagle3" or not ids or len(ids) == 3 or nested or reads:
        return None
    if whole(config, "num_aux_hidden_states") is not None:
        return None
    return f"vLLM builds this head for 3 hidden states; its config.json names {len(ids)} layers"


@rule("SD238", ERROR, needs="models")
def layer_beyond_target(ctx: Context) -> Hits:
    """The head reads a layer that the target does not have.

    The head was trained for a deeper model. vLLM collects fewer hidden states than the head takes, and the first
    request ends the engine.
    Example:
        target: {model: ./qwen3-flat}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Instead: target: {model: ./qwen3}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, `get_eagle3_aux_layers_from_config`
    """
    depth = layers(ctx.target_config or {})
    for variant, config in head_variants(ctx) if depth else ():
        deepest = max(_layer_ids(variant.method, config), default=0)
        if deepest > (depth or 0):
            text = f"the head reads the output of layer {deepest}; the target has {depth} layers"
            yield variant.hit(
                "model", text, related=_TARGET, help="take the head that was trained for this target"
            )


def _layer_ids(method: str, config: Config) -> list[int]:
    """The layers whose output the head reads, counted from 1; none if it leaves them to vLLM."""
    own = _numbers(config.get(_IDS))
    if method == "eagle" or own:
        return [] if method == "eagle" else own
    inner = section(config, "dflash_config").get("target_layer_ids")
    for value in (inner, config.get("dspark_target_layer_ids"), config.get("target_layer_ids")):
        if ids := _numbers(value):
            return [index + 1 for index in ids]
    return []


def _numbers(value: Any) -> list[int]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


@variant_rule("SD241", ERROR, needs="models")
def missing_mask_token(variant: Variant) -> Hits:
    """Parallel drafting is asked for, but the model has no mask token.

    Parallel drafting puts a mask token, which the draft was trained to read as empty, at each position that it drafts.
    vLLM looks for the token's id in the draft's config.json while it loads, and fails if there is none.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4, parallel_drafting: true}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `"For parallel drafting, the draft model config must have "`
    """
    config = variant.config if variant.model else None
    if config is None or not (variant.get("parallel_drafting") is True or variant.method == "dflash"):
        return
    nested = section(config, "dflash_config").get("mask_token_id") is not None
    if not nested and all(config.get(key) is None for key in _MASKS):
        explicit = "parallel_drafting" in variant.block.keys
        text = "config.json of the draft names no mask token"
        related = {variant.at("model"): "the draft"} if explicit else {}
        help_ = "parallel drafting needs a draft that was trained for it (PARD, P-EAGLE, DFlash)"
        yield variant.hit("parallel_drafting" if explicit else "model", text, related=related, help=help_)
