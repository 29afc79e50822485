"""What config.json leaves out, filled in as vLLM's reader does it. Knows no layer.

The table comes from `scripts/update_architectures.py`: transformers' and vLLM's own configuration classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from specserve.errors import FactError
from specserve.facts.architecture.families import family
from specserve.facts.architecture.fields import Fields

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "transformer_layer_config")


@lru_cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files(__package__) / "defaults.json").read_text(encoding="utf-8")
    rows: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return rows


def is_listed(model_type: str) -> bool:
    """Whether the reader knows the defaults of this model type."""
    return model_type in _table()


def text_fields(model: str, config: Mapping[str, Any]) -> tuple[Fields, str]:
    """The language model's part of a config.json with its defaults, and its model type by the family's name.

    The keys have the names that most models use: `hidden_size`, not GPT-2's `n_embd`. Raises FactError for a
    config.json without a model type, or a part of it that is no mapping.
    """
    whole = Fields(model, config)
    model_type = whole.text("model_type", default="")
    part = _part(whole, _table().get(model_type, {}).get("text", {}).get("key"))
    if part is None:
        if not model_type:
            raise FactError(f"`model_type` is missing in config.json of `{model}`")
        return Fields(model, _completed(config, model_type)), family(model_type)
    expected = _table().get(model_type, {}).get("text", {}).get("model_type", "")
    inner_type = part.text("model_type", default=expected or model_type)
    inherited = {key: config[key] for key in ("torch_dtype", "dtype", "quantization_config") if key in config}
    if part.has("text_config") or part.has("llm_config"):  # Qwen Omni: the language model lies one deeper
        return text_fields(model, {**inherited, **part.values, "model_type": inner_type})
    outer = config if part.where.startswith("transformer_layer") else {}  # a head of the speculators library
    values = {**inherited, **outer, **part.values}
    if "tie_word_embeddings" in config:
        values.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return Fields(model, _completed(values, inner_type), part.where), family(inner_type)


def _part(whole: Fields, listed: str | None) -> Fields | None:
    for key in (listed, *_TEXT_PARTS):
        if key is not None and whole.has(key):
            return whole.section(key)
    return None


def _completed(config: Mapping[str, Any], model_type: str) -> Mapping[str, Any]:
    """The values under the usual names; what is null stays null, as it overrides the default."""
    row = _table().get(model_type, {})
    values = {**row.get("defaults", {}), **config}
    for usual, own in row.get("names", {}).items():
        # A class reads both names; which it wrote, it wrote under its own.
        for source, goal in ((own, usual), (usual, own)):
            if source in config:
                values[goal] = config[source]
                break
        else:
            if own in values:
                values.setdefault(usual, values[own])
    return values
