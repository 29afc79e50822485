"""config.json of a model → its shape. Knows no tensor of a checkpoint.

Figures of the model types in `COMPARED` are compared with vLLM's own by the tests; others are read by the same keys,
and `Shape.is_known` is False. What does not fit those keys is an UnknownArchitecture: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.errors import FactError
from specserve.models.config import COMPARED, UNKNOWN, Fields, UnknownArchitecture, text_fields
from specserve.models.quantized import is_mxfp4
from specserve.models.shape import (
    GATED_DELTA,
    LATENT_TYPES,
    SHARING,
    Mixer,
    Shape,
    attention,
    attention_layers,
    layer_kinds,
    state,
)

_MOST_LAYERS = 2000
_NOT_READ = (
    "compress_ratios", "compress_ratio", "kv_lora_rank", "linear_attn_config", "attn_type_list", "block_types",
    "cross_attention_layers", "sparse_attention_config", "num_kv_shared_layers",
)  # fmt: skip
"""Keys that change the KV cache, and that are read for a few model types only."""


def read_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model.

    Raises UnknownArchitecture for a model type that is not known, and FactError with the key for a config.json that
    does not make sense.
    """
    fields, model_type = text_fields(model, config)
    if model_type == "eagle":
        inner = fields.section("model")
        if inner is not None:
            return read_shape(model, inner.values)
    _refuse_unknown(fields, model_type)
    count = fields.integer("num_hidden_layers", "n_layer", "n_layers", least=0)
    if count > _MOST_LAYERS:
        raise FactError(
            f"`num_hidden_layers` in config.json of `{model}` is {count}: more than {_MOST_LAYERS}"
        )
    layers = tuple(_layers(fields, model_type=model_type, count=count))
    return _shape(fields, config, model_type=model_type, layers=layers)


def bare_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model type that is not known: its layers without what they keep for each token.

    Raises FactError if config.json does not say how many layers there are.
    """
    fields, model_type = text_fields(model, config)
    count = fields.integer("num_hidden_layers", "n_layer", "n_layers", least=0)
    return _shape(fields, config, model_type=model_type, layers=((),) * min(count, _MOST_LAYERS))


def _refuse_unknown(fields: Fields, model_type: str) -> None:
    readers = {"kv_lora_rank": LATENT_TYPES, "num_kv_shared_layers": SHARING}
    is_read = model_type in COMPARED or not any(
        fields.values.get(key) and model_type not in readers.get(key, ()) for key in _NOT_READ
    )
    if model_type in UNKNOWN or not is_read:
        raise UnknownArchitecture("KV cache", model_type, model=fields.model)


def _shape(
    fields: Fields, config: Mapping[str, Any], *, model_type: str, layers: tuple[tuple[Mixer, ...], ...]
) -> Shape:
    return Shape(
        model=fields.model,
        model_type=model_type,
        hidden_size=fields.integer("hidden_size", "n_embd", "d_model"),
        vocab_size=fields.integer("vocab_size"),
        is_tied=fields.flag("tie_word_embeddings", default=True),
        dtype=fields.text("dtype", "torch_dtype", default="").removeprefix("torch.") or None,
        layers=layers,
        mxfp4_expert=_mxfp4_expert(fields, config),
        is_known=model_type in COMPARED,
    )


def _mxfp4_expert(fields: Fields, config: Mapping[str, Any]) -> tuple[int, int] | None:
    width = fields.optional("moe_intermediate_size", "intermediate_size")
    has_experts = fields.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    return (fields.integer("hidden_size"), width) if has_experts and width and is_mxfp4(config) else None


def _layers(fields: Fields, *, model_type: str, count: int) -> list[tuple[Mixer, ...]]:
    kinds = layer_kinds(fields, model_type=model_type, count=count)
    heads: list[tuple[Mixer, ...]] = [()] * count
    if {"attention", "both"} & set(kinds):
        heads = [(head,) for head in attention_layers(fields, model_type=model_type, count=count)]
    kept: tuple[Mixer, ...] = ()
    if {"state", "both"} & set(kinds):
        kept = (state(fields, model_type=model_type),)
    return [
        (kept if kind in ("state", "both") else ()) + (head if kind in ("attention", "both") else ())
        for kind, head in zip(kinds, heads, strict=True)
    ]


def read_mtp(model: str, config: Mapping[str, Any]) -> tuple[Mixer, ...]:
    """The mixers of the multi-token prediction layers inside a target. Raises FactError as `read_shape` does."""
    fields, model_type = text_fields(model, config)
    _refuse_unknown(fields, model_type)
    count = fields.integer(
        "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "n_predict",
        default=1 if model_type in GATED_DELTA else 0, least=0,
    )  # fmt: skip
    if count == 0:
        raise FactError(f"config.json of `{model}` names no multi-token prediction layers")
    return (attention(fields, model_type=model_type),) * count
