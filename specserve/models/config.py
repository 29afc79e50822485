"""config.json of a model: its language model, numbers, prediction layers, quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.errors import FactError

Config = Mapping[str, Any]
_LARGEST = 1 << 40
_TEXT_PARTS = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "transformer_layer_config",
)
"""Where the language model stands in a config.json; the last is that of speculators' heads."""
_OF_THE_WHOLE = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings", "model_type")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json; all of it for a model that only reads text.

    What stands outside for the whole model, such as its type of numbers, is in it too.
    """
    for key in (*_TEXT_PARTS, "model"):
        inner = config.get(key)
        is_head = key == "transformer_layer_config"
        if isinstance(inner, Mapping) and (key != "model" or config.get("model_type") == "eagle"):
            outer = {name: config[name] for name in config if is_head or name in _OF_THE_WHOLE}
            outer.pop(key, None)
            return text_config({**outer, **inner})
    return config


def whole(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    numbers = (config.get(key) for key in keys)
    return next((value for value in numbers if type(value) is int and value > 0), None)


def layers(config: Config) -> int | None:
    """The number of decoder layers."""
    return whole(text_config(config), "num_hidden_layers", "n_layer", "n_layers")


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


def integer(
    config: Mapping[str, Any], *keys: str, default: int | None = None, least: int = 1
) -> int:
    """The whole number at the first of these keys that is there, else the default.

    Raises FactError for another value, and for none of the keys without a default.
    """
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value < _LARGEST:
            expected = f"expected a whole number from {least} up"
            raise FactError(f"`{key}` in config.json is {value!r:.40}: {expected}")
        return value
    if default is None:
        raise FactError(f"`{keys[0]}` is missing in config.json")
    return default


_COUNTS = (
    "num_mtp_modules",
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "n_predict",
)
"""The first: MiniMax M3 has the second too, and vLLM takes the first (`hf_config_override`)."""
ONE_LAYER = frozenset({
    "gemma4_assistant", "gemma4_unified_assistant", "mimo_v2", "mimo_v2_flash", "mimo_v2_omni",
})  # fmt: skip
"""Model types whose single prediction layer config.json does not count."""


def prediction_layers(config: Mapping[str, Any]) -> int | None:
    """The number of multi-token prediction layers, 0 included; None if it is not said."""
    if str(config.get("model_type")) in ONE_LAYER:
        return 1
    for key in _COUNTS:
        if type(value := config.get(key)) is int and value >= 0:
            return value
    parts = (config.get(key) for key in (*_TEXT_PARTS, "mtp_config"))
    found = (prediction_layers(part) for part in parts if isinstance(part, Mapping))
    return next((count for count in found if count is not None), None)


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`quantization_config`, wherever in config.json; empty without one."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            for key in ("quantization_config", "compression_config"):
                found = part.get(key)
                if isinstance(found, Mapping):
                    return found
    return {}
