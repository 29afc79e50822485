"""config.json of a model: its language model, numbers, prediction layers, quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.errors import FactError

Config = Mapping[str, Any]
_LARGEST = 1 << 40
LAYER_COUNT = ("num_hidden_layers", "n_layer", "n_layers")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_OF_HEAD = "transformer_layer_config"  # in heads of the speculators library
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", _OF_HEAD)
_OF_THE_WHOLE = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings", "model_type")
_PREDICTION_LAYERS = (
    "num_mtp_modules",  # MiniMax M3 has the next one too, and vLLM takes this
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "n_predict",
)
_ONE_LAYER = ("gemma4_assistant", "gemma4_unified_assistant", "mimo_v2", "mimo_v2_flash")
"""Model types whose single prediction layer config.json does not count."""


def text_config(config: Config) -> Config:
    """The language model's part of a config.json; all of it for a model that only reads text.

    What stands outside for the whole model, such as its type of numbers, is in it too.
    """
    for key in (*_TEXT_PARTS, "model"):
        inner = config.get(key)
        if isinstance(inner, Mapping) and (key != "model" or config.get("model_type") == "eagle"):
            kept = config if key == _OF_HEAD else _OF_THE_WHOLE
            outer = {name: config[name] for name in kept if name in config and name != key}
            return text_config({**outer, **inner})
    return config


def whole(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    numbers = (config.get(key) for key in keys)
    return next((value for value in numbers if type(value) is int and value > 0), None)


def layers(config: Config) -> int | None:
    """The number of decoder layers."""
    return whole(text_config(config), *LAYER_COUNT)


def architectures(config: Config) -> tuple[str, ...]:
    """The classes that it names."""
    found = config.get("architectures")
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, list) else ()


def model_type(config: Config) -> str:
    """`model_type`, or nothing."""
    return str(config.get("model_type") or "")


def section(config: Config, key: str) -> Config:
    """The mapping under this key; an empty one if there is none."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def integer(config: Config, *keys: str, default: int | None = None, least: int = 1) -> int:
    """The whole number at the first of these keys that is there, else the default.

    Raises FactError for another value, and for none of the keys without a default.
    """
    for key in keys:
        if (value := config.get(key)) is None:
            continue
        if type(value) is int and least <= value < _LARGEST:
            return value
        expected = f"expected a whole number from {least} up"
        raise FactError(f"`{key}` in config.json is {value!r:.40}: {expected}")
    if default is None:
        raise FactError(f"`{keys[0]}` is missing in config.json")
    return default


def prediction_layers(config: Config) -> int | None:
    """The number of multi-token prediction layers, 0 included; None if it is not said."""
    if model_type(config) in _ONE_LAYER:
        return 1
    for key in _PREDICTION_LAYERS:
        if type(value := config.get(key)) is int and value >= 0:
            return value
    parts = (section(config, key) for key in (*_TEXT_PARTS, "mtp_config"))
    found = (prediction_layers(part) for part in parts if part)
    return next((count for count in found if count is not None), None)


def quantization_of(config: Config) -> Config:
    """`quantization_config`, wherever in config.json; empty without one."""
    parts = (config, section(config, "text_config"))
    keys = ("quantization_config", "compression_config")
    return next(filter(None, (section(part, key) for part in parts for key in keys)), {})
