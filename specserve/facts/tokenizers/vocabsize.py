"""`vocab_size` of a config.json, where vLLM looks for it. Does not read tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INSIDE = (
    "text_config",
    "thinker_config",
    "llm_config",
    "language_config",
    "decoder",
    "generator",
    "text_encoder",
)


def vocab_size(config: Mapping[str, Any], *, depth: int = 0) -> int | None:
    """The size that vLLM compares; None where the file leaves it to the architecture's default.

    Source: vllm/transformers_utils/model_arch_config_convertor.py, `get_vocab_size`, 0.32.
    """
    inner = next((config[name] for name in _INSIDE if isinstance(config.get(name), Mapping)), None)
    if inner is not None and depth < 3:
        return vocab_size(inner, depth=depth + 1)
    size = config.get("vocab_size")
    return size if type(size) is int and size > 0 else None
