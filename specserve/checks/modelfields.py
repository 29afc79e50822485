"""What the rules read from a config.json, where it is there and of the right type. Judges nothing, guesses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.checks.rule import Arm, Context
from specserve.models.facts import ModelFacts

Config = Mapping[str, Any]
_TEXT_KEYS = ("text_config", "llm_config", "language_config")
_KV_KEYS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_OWN_COUNT = frozenset(
    {"mamba", "falcon_mamba", "falcon", "RefinedWeb", "RefinedWebModel", "dbrx", "nemotron-nas"}
)
"""Model types whose heads vLLM counts in a way of their own (model_arch_config_convertor.py)."""
_HEADS = {
    "eagle3": {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"},
    "peagle": {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"},
}
_ONE_CLASS = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel"}
_LIFTED = (
    "draft_vocab_size",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "block_size",
    "sample_from_anchor",
)


def target_config(ctx: Context) -> Config | None:
    """The target's config.json with the profile's `hf_overrides` on it; None where those cannot be applied."""
    if ctx.target is None:
        return None
    overrides = ctx.profile.engine.get("hf_overrides")
    if overrides is None:
        return ctx.target.config
    return {**ctx.target.config, **overrides} if isinstance(overrides, Mapping) else None


def draft_facts(ctx: Context, arm: Arm) -> ModelFacts | None:
    """The facts of what drafts: a model of its own, or the target, whose further layers `mtp` and `dspark` run."""
    if arm.speculation.model is None:
        return ctx.target if arm.speculation.method in ("mtp", "dspark") else None
    return arm.draft


def draft_config(ctx: Context, arm: Arm) -> Config | None:
    """Its config.json as vLLM reads it; None where it is not known, or not read."""
    facts = draft_facts(ctx, arm)
    if facts is None:
        return None
    return head_config(facts.config)


def head_config(config: Config) -> Config | None:
    """A config.json, that of a head of the speculators library flattened as vLLM flattens it.

    Source: vllm/transformers_utils/configs/speculators/algos.py, 0.32.
    """
    kind = config.get("speculators_model_type")
    if kind is None:
        return None if isinstance(config.get("model"), Mapping) else config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not isinstance(kind, str):
        return None
    flat = {**layer, **{key: config[key] for key in _LIFTED if config.get(key) is not None}}
    name = _HEADS.get(kind, {}).get(str(layer.get("model_type", "llama"))) or _ONE_CLASS.get(kind)
    if name is None:
        return None
    flat["architectures"] = [name]
    ids = config.get("aux_hidden_state_layer_ids")
    if ids is not None:
        flat["eagle_aux_hidden_state_layer_ids"] = ids
    return flat


def text_config(config: Config) -> Config:
    """The part that describes the language model: the whole, except of a multimodal model."""
    if whole(config, "num_attention_heads") is not None:
        return config
    thinker = config.get("thinker_config")
    for outer in (thinker, config):
        for key in _TEXT_KEYS:
            inner = outer.get(key) if isinstance(outer, Mapping) else None
            if isinstance(inner, Mapping):
                return inner
    return config


def whole(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def heads(config: Config) -> int | None:
    """Attention heads, as vLLM divides them over ranks."""
    if model_type(config) in _OWN_COUNT:
        return None
    return whole(text_config(config), "num_attention_heads", "n_head", "n_heads")  # the last two: GPT-2, MPT


def kv_heads(config: Config) -> int | None:
    """KV heads, as vLLM divides or repeats them over ranks; None for latent attention, and where layers differ."""
    text = text_config(config)
    if model_type(config) in _OWN_COUNT or text.get("kv_lora_rank") is not None:
        return None
    if text.get("block_configs") or text.get("per_layer_config"):
        return None
    return whole(text, *_KV_KEYS)


def layers(config: Config) -> int | None:
    """Decoder layers."""
    return whole(text_config(config), "num_hidden_layers", "n_layer", "n_layers")


def hidden_size(config: Config) -> int | None:
    """Width of the residual stream."""
    return whole(text_config(config), "hidden_size")


def vocab_size(config: Config) -> int | None:
    """Rows of the embedding."""
    return whole(text_config(config), "vocab_size")


def architectures(config: Config) -> tuple[str, ...]:
    """The classes that it names."""
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def model_type(config: Config) -> str:
    """`model_type`, or nothing."""
    return str(config.get("model_type") or "")
