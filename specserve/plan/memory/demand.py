"""What target and draft need of every GPU, exactly: weights and KV cache. Knows no GPU and no fitted constant.

Weights are parameters; what vLLM keeps beside them (tables of rotary embeddings) is left to the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specserve.models.facts import ModelFacts
from specserve.plan.memory.compose import compose
from specserve.plan.memory.pool import Group, Stage
from specserve.plan.memory.settings import Settings
from specserve.plan.memory.speculative import Speculative

__all__ = ["Demand", "Stage", "demand"]


@dataclass(frozen=True, slots=True)
class Demand:
    """Weights and KV cache of one arm. `kv_bytes` is what is left for the KV cache: on the fullest GPU, or by stage."""

    stages: tuple[Stage, ...]
    groups: tuple[Group, ...]
    max_model_len: int
    lookahead_tokens: int = 0
    """KV slots that a running request needs beyond its tokens."""
    basis: Literal["vllm", "formula"] = "formula"
    notes: tuple[str, ...] = ()
    """What is not known exactly, and why."""
    is_kv_known: bool = True
    """False for an architecture whose KV cache cannot be computed: then there are no groups."""

    @property
    def fullest(self) -> Stage:
        """The stage with the most weights; of equals, the one whose blocks are the largest."""
        return max(self.stages, key=lambda stage: (stage.weights_bytes, stage.bytes_per_block, -stage.rank))

    def blocks(self, kv_bytes: int | Sequence[int]) -> int:
        """Blocks in the pool: what the poorest stage can hold. 0 for no memory; a model without KV cache has 1."""
        if not self.groups:
            return 1
        if isinstance(kv_bytes, int):
            spare = self.fullest.weights_bytes
            kv_bytes = [kv_bytes + spare - stage.weights_bytes for stage in self.stages]
        counts = (
            max(given, 0) // stage.bytes_per_block
            for given, stage in zip(kv_bytes, self.stages, strict=True)
            if stage.bytes_per_block
        )
        return min(counts)

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks that vLLM reserves for one request of so many tokens (prompt and output)."""
        return sum(group.blocks(tokens) for group in self.groups)

    def concurrency(self, kv_bytes: int | Sequence[int], *, max_model_len: int | None = None) -> float:
        """vLLM's "Maximum concurrency": requests of max_model_len that the pool holds."""
        per_request = self.blocks_per_request(max_model_len or self.max_model_len)
        return self.blocks(kv_bytes) / per_request if per_request else float("inf")

    def tokens(self, kv_bytes: int | Sequence[int], *, max_model_len: int | None = None) -> int:
        """vLLM's "KV cache size: N tokens" (v1/core/kv_cache_utils.py 0.32, `get_kv_cache_capacity`)."""
        if not self.groups:
            return 0
        return int(
            self.concurrency(kv_bytes, max_model_len=max_model_len) * (max_model_len or self.max_model_len)
        )

    def is_enough(self, kv_bytes: int | Sequence[int], *, max_model_len: int | None = None) -> bool:
        """Whether vLLM starts: one request of max_model_len fits beside the null block."""
        if not self.groups:
            return True
        return self.blocks(kv_bytes) - 1 >= self.blocks_per_request(max_model_len or self.max_model_len)

    def largest_max_model_len(self, kv_bytes: int | Sequence[int], *, limit: int) -> int:
        """The largest max_model_len up to `limit` that vLLM would start with; 0 if there is none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.is_enough(kv_bytes, max_model_len=middle):
                low = middle
            else:
                high = middle - 1
        return low

    def bytes_for(self, requests: int, tokens: int) -> int:
        """KV bytes on the fullest GPU for so many running requests of so many tokens, null block included."""
        if not self.groups:
            return 0
        blocks = requests * self.blocks_per_request(tokens + self.lookahead_tokens) + 1
        return blocks * self.fullest.bytes_per_block


def demand(
    target: ModelFacts,
    draft: ModelFacts | None = None,
    *,
    settings: Settings,
    method: str | None = None,
    num_speculative_tokens: int = 0,
    draft_kv_cache_dtype: str | None = None,
    unknown_draft: str | None = None,
) -> Demand:
    """Weights and KV cache of a target, with the draft of a speculative method.

    `draft` is the second model or head of the method; None for methods without one (ngram, suffix, an `mtp` that
    lies in the target); `unknown_draft` names one that could not be read, and is not counted. Raises FactError if
    config.json lacks a figure or has one of a wrong type, and if neither headers nor a formula tell the weights. The
    KV cache of an unknown architecture is left out: nothing is guessed.
    """
    if method == "mtp" and draft is not None and draft.model == target.model:
        draft = None  # vLLM's own default: the layers lie in the target
    speculative = Speculative(method, num_speculative_tokens, draft, draft_kv_cache_dtype, unknown_draft)
    made = compose(target, speculative, settings=settings)
    return Demand(
        made.stages,
        made.groups,
        settings.max_model_len,
        speculative.lookahead_tokens,
        notes=made.notes,
        is_kv_known=made.is_kv_known,
    )
