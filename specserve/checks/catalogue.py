"""The catalogue: the rules of every family, by code."""

from __future__ import annotations

from specserve.checks import (
    byvllm,
    contexts,
    drafts,
    hardware,
    heads,
    memory,
    models,
    multitoken,
    static,
    targets,
    tokenizers,
)

_FAMILIES = (
    byvllm, contexts, drafts, hardware, heads, memory, models, multitoken, targets, tokenizers,
)  # fmt: skip
RULES = static.rules_of((*static.FAMILIES, *_FAMILIES))
