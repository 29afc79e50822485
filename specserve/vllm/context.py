"""How long a sequence a model takes, by its config.json: `_get_and_verify_max_len` in vllm/config/model.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specserve.vllm.facts import ROPES_NOT_MULTIPLIED

ASSUMED = 2048
"""What vLLM assumes if config.json says nothing."""
_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_LEGACY = {"su": "longrope", "mrope": "default"}
"""Source: `patch_legacy_rope_type` in vllm/transformers_utils/config.py."""
_CACHE_ONLY = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""Source: `_CACHE_ONLY_ROPE_TYPES` in vllm/config/speculative.py."""


@dataclass(frozen=True, slots=True)
class Length:
    """The context of a model, in tokens, if its config.json says it."""

    most: int
    """The largest `max_model_len` that vLLM accepts without being told to ignore the model's limit."""
    default: int
    """What vLLM serves if `max_model_len` is not given."""
    key: str
    """Where config.json says it."""


def context_length(config: Mapping[str, Any], version: str) -> Length | None:
    """The context that a version derives from the language part of a config.json; None if it does not say it."""
    found = {key: length for key in _KEYS if (length := _length(config, key)) is not None}
    if not found:
        return None
    key = "model_max_length" if "model_max_length" in found else min(found, key=lambda name: found[name])
    derived, own = float(found[key]), found.get("model_max_length", 0)
    if "gemma3" not in str(config.get("model_type")):
        derived = _stretched(config, derived, version)
    default = int(derived)
    if any(rope_type(rope) == "longrope" for rope in ropes(config)):
        default = _length(config, "original_max_position_embeddings") or default
    return Length(max(int(derived), own), default, key)


def _stretched(config: Mapping[str, Any], length: float, version: str) -> float:
    """The length times the factor of the rotary positions, if this version multiplies by it."""
    factor = 1.0
    for rope in ropes(config):
        kind = rope_type(rope)
        if kind in ROPES_NOT_MULTIPLIED.at(version):
            continue
        value = rope.get("factor", factor)
        factor = value if isinstance(value, (int, float)) and 0 < value < 2**20 else 1.0
        if kind == "yarn":
            original = _length(config, "original_max_position_embeddings")
            length = original or _length(rope, "original_max_position_embeddings") or length
    return length * factor


def ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings: one, or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, Mapping):
            yield from [item for item in value.values() if isinstance(item, Mapping)] or [value]


def rope_type(rope: Mapping[str, Any]) -> str:
    """Its type by today's name, `default` if it names none."""
    name = str(rope.get("rope_type") or rope.get("type") or "default")
    return _LEGACY.get(name, name)


def only_sizes_cache(config: Mapping[str, Any]) -> bool:
    """Whether longer positions need no more than a longer table, so that a head can get those of its target."""
    return all(rope_type(rope) in _CACHE_ONLY for rope in ropes(config))


def _length(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
