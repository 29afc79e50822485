"""`vocab_size` as vLLM compares it, with the architecture's default. Does not read tokenizers."""

from __future__ import annotations

from specserve.errors import FactError
from specserve.facts.architecture.defaults import text_fields
from specserve.facts.model import ModelFacts


def vocab_size(facts: ModelFacts) -> int | None:
    """The language model's vocabulary; None where config.json does not tell.

    Source: vllm/transformers_utils/model_arch_config_convertor.py, `get_vocab_size`, 0.32.
    """
    try:
        fields, _ = text_fields(facts.model, facts.config)
        return fields.optional("vocab_size")
    except FactError:
        size = facts.config.get("vocab_size")
        return size if type(size) is int and size > 0 and "text_config" not in facts.config else None
