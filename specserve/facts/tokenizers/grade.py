"""From two vocabularies that differ to a verdict. Reads no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specserve.facts.comparison import Difference, TokenizerComparison, TokenizerVerdict
from specserve.facts.tokenizers.mapping import shared_ids
from specserve.facts.tokenizers.sample import estimated
from specserve.facts.tokenizers.vocabulary import Vocabulary

FEW_SHARED = 100
"""Below, vLLM itself warns of a very small intersection. Source: vllm/v1/spec_decode/vocab_mapping.py, 0.32."""
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """`vocab_size` of both config.json, where they say it."""

    target: int | None
    draft: int | None

    def cut(self, tokens: Mapping[int, str], size: int | None) -> dict[int, str]:
        """Without tokens that the model has no row for: transformers adds some that are never used."""
        if size is None or not tokens or max(tokens) < size:
            return dict(tokens)
        return {index: text for index, text in tokens.items() if index < size}


def equal(sizes: Sizes, *, reasons: tuple[str, ...] = ()) -> TokenizerComparison:
    """The verdict on equal tokens."""
    padded = None not in (sizes.target, sizes.draft) and sizes.target != sizes.draft
    if padded:
        reasons = (
            f"the tokens are equal; `vocab_size` is {sizes.target:,} and {sizes.draft:,} with padding",
            *reasons,
        )
    return TokenizerComparison(
        "padding_only" if padded else "identical",
        reasons,
        overlap=1.0,
        mismatch_by_occurrence=0.0,
        differing_ids=0,
        target_vocab_size=sizes.target,
        draft_vocab_size=sizes.draft,
    )


def graded(
    target: Vocabulary,
    draft: Vocabulary,
    *,
    sizes: Sizes,
    counts: Counter[int] | None,
    template_ids: Iterable[int],
) -> TokenizerComparison:
    """The verdict on tokens that differ; `counts`: how often the sample text holds each of the target's ids."""
    wanted, offered = sizes.cut(target.tokens, sizes.target), sizes.cut(draft.tokens, sizes.draft)
    differing = {index for index, _ in wanted.items() ^ offered.items()}
    counts = counts or estimated(target)
    total = max(counts.total(), 1)
    mismatch = sum(counts[index] for index in differing & counts.keys()) / total
    shared = shared_ids(target, draft, target_size=sizes.target, draft_size=sizes.draft)
    kept = sum(counts[index] for index in shared.keys() & counts.keys()) / total
    overlap = len(shared) / max(len(offered), 1)
    only_special = differing <= target.added | draft.added
    verdict: TokenizerVerdict = (
        "special_tokens_differ" if only_special else _lot(len(shared), overlap, kept, offered)
    )

    def named(index: int) -> Difference:
        return Difference(index, wanted.get(index), offered.get(index))

    return TokenizerComparison(
        verdict,
        overlap=overlap,
        mismatch_by_occurrence=mismatch,
        first_difference=named(min(differing)),
        differing_ids=len(differing),
        template_ids=tuple(named(index) for index in template_ids if index in differing),
        target_vocab_size=sizes.target,
        draft_vocab_size=sizes.draft,
        shared_tokens=len(shared),
        kept_by_occurrence=kept,
    )


def _lot(shared: int, overlap: float, kept: float, offered: Mapping[int, str]) -> TokenizerVerdict:
    few = shared < min(FEW_SHARED, len(offered) // 2)
    return "incompatible" if few or (overlap < HALF and kept < HALF) else "overlap"
