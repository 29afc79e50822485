"""How two tokenizers differ, graded: the answer, not the way to it. Knows no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TokenizerVerdict = Literal[
    "identical",
    "padding_only",
    "special_tokens_differ",
    "overlap",
    "incompatible",
    "not_applicable",
    "not_checked",
]

FEW_SHARED = 100
"""Below, vLLM itself warns of a very small intersection. Source: vllm/v1/spec_decode/vocab_mapping.py, 0.32."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id that means different things; None: it has no token there."""

    id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True, slots=True)
class TokenizerComparison:
    """Target against draft, by what each id means: vLLM hands the draft the target's ids."""

    verdict: TokenizerVerdict
    reasons: tuple[str, ...] = ()
    overlap: float | None = None
    """Share 0-1 of the draft's tokens that the target has; None when not computed."""
    mismatch_by_occurrence: float | None = None
    """Share 0-1 of the sample text's tokens whose id means another token to the draft."""
    first_difference: Difference | None = None
    differing_ids: int | None = None
    template_ids: tuple[Difference, ...] = ()
    """Ids that the target's chat template uses and that differ."""
    target_vocab_size: int | None = None
    """`vocab_size` of config.json: what vLLM compares."""
    draft_vocab_size: int | None = None
    shared_tokens: int | None = None
    """Tokens that `use_heterogeneous_vocab` would keep: those that both have, whatever their ids."""
    kept_by_occurrence: float | None = None
    """Share 0-1 of the sample text's tokens that are among them."""


def shown(token: str | None) -> str:
    """A token for a reader: quoted, of bounded length, one line."""
    if token is None:
        return "nothing"
    text = token if len(token) <= 40 else token[:37] + "..."
    return f"`{text}`" if text.isprintable() and "`" not in text else ascii(text)
