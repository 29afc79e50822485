"""config.json of a model → its shape. Knows no tensor of a checkpoint.

Figures of the model types in `COMPARED` are compared with vLLM's own by the tests; others are read by the same keys,
and `Shape.is_known` is False. What is known not to fit those keys is an error: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.errors import FactError
from specserve.facts.architecture.defaults import text_fields
from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.heads import attention, attention_layers
from specserve.facts.architecture.quantized import is_mxfp4
from specserve.facts.architecture.shape import Mixer, Shape
from specserve.facts.architecture.states import layer_kinds, state

COMPARED = frozenset({
    "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt_oss", "mixtral",
    "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "falcon", "gpt2", "opt", "bloom", "gpt_neox", "olmo2",
    "olmo3", "granite", "cohere2", "glm4", "glm4_moe", "stablelm", "starcoder2", "qwen3_next", "mamba2", "falcon_h1",
    "nemotron_h", "lfm2", "llama4_text", "kimi_k2", "exaone4", "smollm3", "seed_oss", "ernie4_5", "hunyuan_v1_dense",
    "minimax_m2", "olmoe", "phimoe", "nemotron", "apertus", "glm4_moe_lite", "granitemoehybrid", "jamba", "ministral3",
    "gemma4_text",
})  # fmt: skip
_MOST_LAYERS = 2000
_IRREGULAR = frozenset({
    "deepseek_v4", "deepseek_v41", "mimo_v2_flash", "mimo_v2", "step3p5", "kimi_linear",
    "minimax_m3", "zamba2", "hy_v4", "bailing_hybrid", "inkling", "longcat_flash", "nemotron-nas", "qwen4_exp",
    "dots3_note", "whisper", "t5", "bart", "iquest_loopcoder", "minimax", "plamo2", "rwkv",
})  # fmt: skip
"""Layers of different sizes, shared caches, two kinds of state: what the keys below do not say."""


def read_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model. Raises FactError with the key for a config.json that does not make sense."""
    fields, model_type = text_fields(model, config)
    if model_type == "eagle":
        inner = fields.section("model")
        if inner is not None:
            return read_shape(model, inner.values)
    if model_type in _IRREGULAR:
        raise FactError(
            f"the KV cache of model type `{model_type}` (`{model}`) is not known",
            hint="`specserve check --ask-vllm` lets the installed vLLM say what it needs",
        )
    count = fields.integer("num_hidden_layers", "n_layer", "n_layers", least=0)
    if count > _MOST_LAYERS:
        raise FactError(
            f"`num_hidden_layers` in config.json of `{model}` is {count}: more than {_MOST_LAYERS}"
        )
    names = Fields(model, config).texts("architectures") or ()
    return Shape(
        model=model,
        model_type=model_type,
        architecture=names[0] if names else "",
        hidden_size=fields.integer("hidden_size", "n_embd", "d_model"),
        vocab_size=fields.integer("vocab_size"),
        is_tied=fields.flag("tie_word_embeddings", default=True),
        dtype=_dtype(fields),
        layers=tuple(_layers(fields, model_type=model_type, count=count)),
        mxfp4_expert=_mxfp4_expert(fields, config),
        is_known=model_type in COMPARED,
    )


def _mxfp4_expert(fields: Fields, config: Mapping[str, Any]) -> tuple[int, int] | None:
    width = fields.optional("moe_intermediate_size", "intermediate_size")
    has_experts = fields.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    return (fields.integer("hidden_size"), width) if has_experts and width and is_mxfp4(config) else None


def _dtype(fields: Fields) -> str | None:
    return fields.text("dtype", "torch_dtype", default="").removeprefix("torch.") or None


def _layers(fields: Fields, *, model_type: str, count: int) -> list[tuple[Mixer, ...]]:
    kinds = layer_kinds(fields, model_type=model_type, count=count)
    has_attention, has_state = {"attention", "both"} & set(kinds), {"state", "both"} & set(kinds)
    heads = attention_layers(fields, model_type=model_type, count=count) if has_attention else []
    kept = state(fields, model_type=model_type) if has_state else None
    layers: list[tuple[Mixer, ...]] = []
    for index, kind in enumerate(kinds):
        mixers: list[Mixer] = []
        if kind in ("state", "both") and kept is not None:
            mixers.append(kept)
        if kind in ("attention", "both"):
            mixers.append(heads[index])
        layers.append(tuple(mixers))
    return layers


def read_mtp(model: str, config: Mapping[str, Any]) -> tuple[Mixer, ...]:
    """The mixers of the multi-token prediction layers inside a target. Raises FactError where it has none."""
    fields, model_type = text_fields(model, config)
    count = fields.integer(
        "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "n_predict",
        default=1 if model_type == "qwen3_next" else 0, least=0,
    )  # fmt: skip
    if count == 0:
        raise FactError(f"config.json of `{model}` names no multi-token prediction layers")
    return (attention(fields, model_type=model_type),) * count
