"""The longest sequence that a model is made for, as the memory estimate asks."""

from __future__ import annotations

from specserve.models.facts import ModelFacts
from specserve.plan.memory.shape import language_part
from specserve.vllm.context import ASSUMED, Length, context_length


def length_of(facts: ModelFacts, *, version: str) -> Length:
    """The context that vLLM derives, or assumes if config.json does not say it."""
    found = context_length(language_part(facts).values, version)
    return found or Length(ASSUMED, ASSUMED, "")
