"""The longest sequence that a model is made for. Source: vllm/config/model.py 0.32, `_get_and_verify_max_len`."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.facts.architecture.fields import Fields
from specserve.facts.model import ModelFacts
from specserve.plan.memory.shape import language_part

_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_UNKNOWN = 2048
"""What vLLM assumes where config.json says nothing."""


def longest(facts: ModelFacts) -> int:
    """The max_model_len that vLLM takes where it is not told, in tokens. Raises FactError for a wrong type."""
    config = language_part(facts)
    lengths = [length for key in _KEYS if (length := config.optional(key)) is not None]
    if not lengths:
        return _UNKNOWN
    length = config.optional("model_max_length") or min(lengths)
    ropes = list(_ropes(config))
    kind = facts.config.get("model_type")
    if any(_kind(rope) == "longrope" for rope in ropes):
        return config.optional("original_max_position_embeddings") or length
    factor = 1.0
    for rope in ropes:
        value = rope.values.get("factor")
        if _kind(rope) not in _SCALED_ALREADY and isinstance(value, (int, float)) and 0 < value < 2**20:
            factor = float(value)
    return length if "gemma3" in str(kind) else int(length * factor)


def _ropes(config: Fields) -> Iterator[Fields]:
    """The mappings that scale positions: one, or one per kind of layer."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.section(key)
        if rope is None:
            continue
        nested = [name for name, value in rope.values.items() if isinstance(value, dict)]
        if not nested:
            yield rope
        for name in nested:
            part = rope.section(name)
            if part is not None:
                yield part


def _kind(rope: Fields) -> str:
    return str(rope.values.get("rope_type") or rope.values.get("type") or "default")
