"""The catalogue: the rules of every family, by code."""

from __future__ import annotations

from specserve.checks.rules import (
    byvllm,
    contexts,
    draft_heads,
    drafts,
    hardware,
    memory,
    models,
    multitoken,
    static,
    targets,
    tokenizers,
)

_FAMILIES = (
    byvllm, contexts, drafts, hardware, draft_heads, memory, models, multitoken, targets, tokenizers,
)  # fmt: skip
RULES = static.rules_of((*static.FAMILIES, *_FAMILIES))
