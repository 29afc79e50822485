"""What config.json says of a model, as vLLM reads it: heads, layers, classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specserve.models.config import text_config
from specserve.vllm.limits import only_sizes_cache
from specserve.vllm.registry import ModelClass, Registry

if TYPE_CHECKING:
    from specserve.vllm.registry import Trait

Config = Mapping[str, Any]
_HEADS = {
    "eagle3": {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"},
    "peagle": {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"},
}
_ONE_CLASS = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
}
_LIFTED = (
    "draft_vocab_size",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "block_size",
    "sample_from_anchor",
)


def head_config(config: Config) -> Config | None:
    """The config.json; a head of the speculators library is flattened as vLLM flattens it.

    Source: vllm/transformers_utils/configs/speculators/algos.py, 0.32.
    """
    kind = config.get("speculators_model_type")
    if kind is None:
        return None if isinstance(config.get("model"), Mapping) else config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not isinstance(kind, str):
        return None
    name = _HEADS.get(kind, {}).get(str(layer.get("model_type", "llama"))) or _ONE_CLASS.get(kind)
    if name is None:
        return None
    flat = {**layer, **{key: config[key] for key in _LIFTED if config.get(key) is not None}}
    ids = config.get("aux_hidden_state_layer_ids")
    return (
        flat
        | {"architectures": [name]}
        | ({"eagle_aux_hidden_state_layer_ids": ids} if ids is not None else {})
    )


def whole(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def layers(config: Config) -> int | None:
    """The number of decoder layers."""
    return whole(text_config(config), "num_hidden_layers", "n_layer", "n_layers")


def architectures(config: Config) -> tuple[str, ...]:
    """The classes that it names."""
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def model_type(config: Config) -> str:
    """`model_type`, or nothing."""
    return str(config.get("model_type") or "")


def section(config: Config, key: str) -> Config:
    """The mapping under this key; an empty one if there is none."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def stretches(config: Config) -> bool:
    """Whether longer positions only need a longer table: a head then gets as many as its target."""
    return only_sizes_cache(text_config(config))


def class_of(known: Registry, config: Config) -> tuple[str, ModelClass] | None:
    """The first class of a config.json that a version knows, which is the one it takes."""
    for name in architectures(config):
        if name in known.classes:
            return name, known.classes[name]
    return None


def has_kind(known: Registry, config: Config, kind: str) -> bool:
    """Whether a version knows the class of a config.json as one of this kind."""
    found = class_of(known, config)
    return found is not None and found[1].kind == kind


def lacks(known: Registry, config: Config, trait: Trait) -> bool:
    """Whether a version serves this model without a trait, such as adapters."""
    found = class_of(known, config)
    return found is not None and found[1].kind in ("text", "multimodal") and found[1].lacks(trait)
