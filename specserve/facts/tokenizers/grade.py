"""From two vocabularies that differ to a verdict. Reads no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specserve.facts.comparison import FEW_SHARED, Difference, TokenizerComparison, TokenizerVerdict, shown
from specserve.facts.tokenizers.vocabulary import Vocabulary

HALF = 0.5
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Sizes:
    """`vocab_size` of both models, where config.json tells it."""

    target: int | None
    draft: int | None

    def differing(self, target: Vocabulary, draft: Vocabulary) -> set[int]:
        """The ids that mean different things, among those that the models have a row for."""
        if target.tokens == draft.tokens and self.target == self.draft:
            return set()
        wanted = _below(target.tokens, self.target or self.draft)
        offered = _below(draft.tokens, self.draft or self.target)
        return {index for index, text in wanted.items() if offered.get(index) != text} | (
            offered.keys() - wanted.keys()
        )


def _below(tokens: Mapping[int, str], size: int | None) -> Mapping[int, str]:
    """Without tokens behind the embedding: transformers adds some that no model reads."""
    if size is None or max(tokens) < size:
        return tokens
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
    differing: Collection[int],
    *,
    sizes: Sizes,
    counts: Counter[int] | None,
    shared: Mapping[int, int],
    template_ids: Iterable[int],
) -> TokenizerComparison:
    """The verdict on tokens that differ.

    `differing`: the ids that do; `counts`: how often the sample text holds each of the target's ids, None where it
    holds none that differs; `shared`: target id to draft id of the tokens that both have.
    """
    mismatch = _share(counts, differing) if counts else 0.0
    kept = _share(counts, shared) if counts else 1.0
    overlap = len(shared) / max(len(_below(draft.tokens, sizes.draft)), 1)
    only_special = target.added | draft.added >= set(differing)

    def named(index: int) -> Difference:
        return Difference(index, _clean(target.tokens.get(index)), _clean(draft.tokens.get(index)))

    first = named(min(differing))
    return TokenizerComparison(
        "special_tokens_differ" if only_special else _lot(len(shared), overlap, kept, len(draft.tokens)),
        (
            f"{len(differing):,} ids mean something else to the draft: {mismatch:.2%} of a sample text",
            f"the first is {first.id}: {shown(first.target)} to the target, {shown(first.draft)} to the draft",
            f"`use_heterogeneous_vocab` would keep {len(shared):,} tokens: {kept:.1%} of a sample text",
        ),
        overlap=overlap,
        mismatch_by_occurrence=mismatch,
        first_difference=first,
        differing_ids=len(differing),
        template_ids=tuple(named(index) for index in template_ids if index in differing),
        target_vocab_size=sizes.target,
        draft_vocab_size=sizes.draft,
        shared_tokens=len(shared),
        kept_by_occurrence=kept,
    )


def _share(counts: Counter[int], ids: Collection[int]) -> float:
    return sum(counts[index] for index in counts if index in ids) / max(counts.total(), 1)


def _clean(token: str | None) -> str | None:
    """A token that can be written: JSON may hold half of a character, and texts without end."""
    return None if token is None else token[:_LONGEST].encode("utf-8", errors="replace").decode()


def _lot(shared: int, overlap: float, kept: float, offered: int) -> TokenizerVerdict:
    few = shared < min(FEW_SHARED, offered // 2)
    return "incompatible" if few or (overlap < HALF and kept < HALF) else "overlap"
