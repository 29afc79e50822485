"""How long a sequence a model takes, by its config.json, as vLLM derives it. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specserve.checks.modelfields import Config, model_type, text_config, whole

_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED = frozenset({"su", "longrope", "llama3", "deepseek_llama_scaling"})
_YARN = frozenset({"yarn", "deepseek_yarn"})
_CACHE_ONLY = frozenset({"default", "linear", "llama3", "ntk", "proportional"})


@dataclass(frozen=True, slots=True)
class Length:
    """The longest sequence of a model, in tokens, where its config.json says it."""

    most: int
    """What no known version takes more of, unless it is told to."""
    default: int
    """What vLLM serves where `max_model_len` is not given."""
    key: str
    """Where config.json says it."""


def derived(config: Config) -> Length | None:
    """The length that vLLM derives; None where config.json does not show it.

    Source: `_get_and_verify_max_len` in vllm/config/model.py, 0.26 to 0.33; where the versions differ, the longest.
    """
    text = text_config(config)
    found = {key: length for key in _KEYS if (length := whole(text, key)) is not None}
    if not found:
        return None
    key = "model_max_length" if "model_max_length" in found else min(found, key=lambda name: found[name])
    base, most, default = found[key], found[key], found[key]
    if "gemma3" in model_type(text):
        return Length(base, base, key)
    for rope in ropes(text):
        kind, factor = rope_type(rope), rope.get("factor")
        original = whole(rope, "original_max_position_embeddings") or whole(
            text, "original_max_position_embeddings"
        )
        if kind in ("longrope", "su") and original is not None:
            default = min(default, original)
        if kind in _SCALED or isinstance(factor, bool) or not isinstance(factor, int | float) or factor < 1:
            continue
        if kind in _YARN:
            most = max(most, int((original or base) * factor))
        else:
            most, default = max(most, int(base * factor)), int(base * factor)
    longest = whole(text, "model_max_length") or 0
    return Length(max(most, longest), default, key)


def ropes(text: Config) -> Iterator[Mapping[str, Any]]:
    """The rotary settings: one, or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = text.get(key)
        if isinstance(value, Mapping):
            inner = [item for item in value.values() if isinstance(item, Mapping)]
            yield from inner or [value]


def rope_type(rope: Mapping[str, Any]) -> str:
    """Its kind, `default` where it names none."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def stretches(config: Config) -> bool:
    """Whether longer positions only need a longer table: vLLM then gives a head as many as its target has."""
    return all(rope_type(rope) in _CACHE_ONLY for rope in ropes(text_config(config)))
