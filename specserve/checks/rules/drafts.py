"""SD237, SD238, SD240, SD241, SD245, SD246, SD249, SD258: whether a draft fits its target by their files."""

from __future__ import annotations

from typing import Any

from specserve.checks.config import (
    Config,
    architectures,
    has_kind,
    layers,
    section,
    text_config,
    whole,
)
from specserve.checks.rule import ERROR, INFO, WARNING, Context, Hits, Variant, rule, variant_rule
from specserve.checks.rules.heads import head_variants
from specserve.checks.rules.pairing import trained_elsewhere
from specserve.models.facts import BITS, ModelFacts
from specserve.vllm.facts import DFLASH_COUNTS_OWN_LAYERS
from specserve.vllm.limits import ropes

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


@variant_rule("SD246", INFO, needs="models")
def text_draft(variant: Variant) -> Hits:
    """The target reads images or sound, but its draft reads only text.

    Requests with images are served, but drafted without the image, so acceptance falls on those requests. Measure them
    separately, or disable the inputs that no client sends.
    Example:
        target: {model: ./qwen-vl}
        speculation: {method: draft_model, model: ./qwen-vl-draft, num_speculative_tokens: 4}
    Instead: engine: {language_model_only: true}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `"Proceeding with text-only speculative decoding."`
    """
    engine, target, draft = variant.ctx.engine, variant.ctx.target_config, variant.config
    limits = section(engine, "limit_mm_per_prompt")
    no_media = bool(limits) and all(value == 0 for value in limits.values())
    if target is None or draft is None or no_media or engine.get("language_model_only") is True:
        return
    reads_more = variant.ctx.where(has_kind, target, "multimodal")
    is_text = not any("vision" in key or "audio" in key for key in draft)
    drafts = variant.model and variant.method in ("draft_model", "eagle", "eagle3", "dflash", "dspark")
    if reads_more and drafts and is_text:
        text = "the draft does not get the images or sound that clients send to the target"
        help_ = "measure such requests separately, with your own prompts"
        yield variant.hit("model", text, related={"target.model": "reads more than text"}, help=help_)


@variant_rule("SD249", ERROR, needs="models")
def refused_mrope_draft(variant: Variant) -> Hits:
    """The draft uses M-RoPE (the position encoding of vision models), but the model runner cannot draft with M-RoPE.

    The V1 runner refuses a draft model with M-RoPE after it is loaded. vLLM uses V1 if the environment selects it, or
    if V2 cannot run the launch: on the CPU, with parallel drafting, or if the two vocabularies differ.
    Example:
        vllm: ">=0.32"
        target: {model: ./qwen-vl}
        speculation: {method: draft_model, model: ./qwen-vl-tiny, num_speculative_tokens: 4}
        engine: {language_model_only: true}
        env: {VLLM_USE_V2_MODEL_RUNNER: "0"}
    Instead: speculation: {method: draft_model, model: ./qwen-vl-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `"does not support M-RoPE yet"`
    """
    if variant.config is None or not (
        variant.method == "draft_model" or variant.get("parallel_drafting") is True
    ):
        return
    found = variant.on("V1")
    if found and any("mrope_section" in rope for rope in ropes(text_config(variant.config))):
        text, help_ = "the V1 runner cannot draft with M-RoPE", "use a text-only draft of its family"
        yield variant.hit("model", text, versions=found, help=help_)


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


@rule("SD240", WARNING, needs="models")
def missing_vocabulary_map(ctx: Context) -> Hits:
    """The head drafts from a smaller vocabulary, and the checkpoint does not say which tokens are in it.

    `d2t` maps the head's tokens to the target's. Without it, vLLM takes the head's token i for the target's token i,
    and nearly every draft token is another word than the head meant.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3-unmapped, num_speculative_tokens: 3}
    Instead: speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Source: vllm/model_executor/models/llama_eagle3.py (from 0.29), `orig_to_new_substr["draft_id_to_target_id"] = None`
    """
    for variant, config in head_variants(ctx):
        drafts, own = whole(config, "draft_vocab_size"), whole(text_config(config), "vocab_size")
        tensors = variant.draft.tensors if variant.draft else None
        if variant.method != "eagle3" or not tensors or drafts is None or own is None or drafts >= own:
            continue
        if not any("d2t" in name or "draft_id_to_target_id" in name for name in tensors):
            text = f"the head drafts {drafts} of {own} tokens, and has no `d2t` that says which"
            yield variant.hit("model", text, help="use a complete checkpoint of the head")


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


@rule("SD258", WARNING, needs="models")
def serial_parallel_head(ctx: Context) -> Hits:
    """The head was trained to draft all tokens in one pass, but vLLM will run it once per token.

    The weights of a P-EAGLE head include a hidden state (`mask_hidden`) that stands in for tokens that are not drafted
    yet. Without `parallel_drafting: true`, vLLM ignores `mask_hidden` with a warning and runs the head once per token.
    Tokens after the first are then accepted less often. For a P-EAGLE head in the `speculators` format, vLLM sets
    `parallel_drafting` itself.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-peagle, num_speculative_tokens: 3}
    Instead: speculation: {method: eagle3, model: ./llama-peagle, num_speculative_tokens: 3, parallel_drafting: true}
    Source: vllm/model_executor/models/llama_eagle3.py, `"mask_hidden found in weights but "`
    """
    for variant, config in head_variants(ctx):
        tensors = (variant.draft.tensors if variant.draft else None) or {}
        is_told = True in (variant.get("parallel_drafting"), config.get("parallel_drafting"))
        is_own = variant.draft is not None and variant.draft.config.get("speculators_model_type") == "peagle"
        is_parallel = any(name.endswith("mask_hidden") for name in tensors)
        if variant.method == "eagle3" and is_parallel and not (is_told or is_own):
            text = "the head was trained to draft in parallel, and will draft one token per pass"
            related = {variant.at("method"): "without `parallel_drafting`"}
            yield variant.hit("model", text, related=related, help="write `parallel_drafting: true`")
