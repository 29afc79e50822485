"""How a launch speculates, as far as its memory depends on it. Knows no layer."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.models.facts import ModelFacts

HEADS = frozenset({"eagle", "eagle3", "dflash", "dspark", "medusa", "mtp", "p_eagle"})
"""Methods whose second model is no model of its own."""
WITHOUT_CACHE = frozenset({"medusa", "ngram", "ngram_gpu", "suffix", "custom_class"})
"""Methods that keep no keys and values."""


@dataclass(frozen=True, slots=True)
class Speculative:
    """How a launch speculates, as far as memory depends on it."""

    method: str | None
    tokens: int
    draft: ModelFacts | None
    kv_cache_dtype: str | None
    unknown: str | None = None
    """The name of a second model that could not be read: nothing of it is counted."""

    @property
    def lookahead_tokens(self) -> int:
        """Source: `num_lookahead_tokens` in vllm/config/vllm.py 0.32."""
        if self.method in (None, *WITHOUT_CACHE):
            return 0
        return self.tokens + 1 if self.method in ("dflash", "dspark") else self.tokens
