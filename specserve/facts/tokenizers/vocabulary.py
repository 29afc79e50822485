"""A vocabulary: what each id means, as transformers and vLLM would have it. Does not compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specserve.facts.tokenizers.files import Unreadable

LARGEST_ID = 2**24
"""Ids above are not followed: no public vocabulary comes near."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One tokenizer's tokens by id. Ids may have holes."""

    source: str
    """The file that it was read from."""
    tokens: dict[int, str] = field(repr=False)
    added: frozenset[int] = field(default=frozenset(), repr=False)
    """Ids of added tokens: special ones, and others that are matched before the vocabulary is."""
    pipeline: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """How text becomes tokens, where the file says it: `normalizer`, `pre_tokenizer`, …"""
    merges: bytes | None = field(default=None, repr=False)
    """The JSON list of BPE merges as it stands in the file; half of the file, and hardly ever asked for."""


def with_added(
    vocab: Mapping[str, int],
    texts: Iterable[str],
    *,
    source: str,
    pipeline: Mapping[str, Any] | None = None,
    merges: bytes | None = None,
    special: frozenset[int] = frozenset(),
) -> Vocabulary:
    """A vocabulary with added tokens as the tokenizers library numbers them.

    A text that the vocabulary has keeps its id; a new one gets the next id behind the vocabulary's size, in
    order, whatever id the file states. `special`: ids of the vocabulary that no text makes.
    Source: tokenizers 0.23, `AddedVocabulary.add_tokens`.
    """
    tokens = {index: text for text, index in vocab.items()}
    ids: dict[str, int] = {}
    following = len(vocab)
    for text in texts:
        if text not in ids:
            known = vocab.get(text)
            ids[text] = following if known is None else known
            following += known is None
        tokens[ids[text]] = text
    return Vocabulary(source, tokens, special.union(ids.values()), pipeline or {}, merges)


def checked(vocab: Any, *, source: str) -> dict[str, int]:
    """A mapping of token to id. Raises Unreadable where it is none."""
    if not isinstance(vocab, dict):
        raise Unreadable(f"the vocabulary in `{source}` is not a mapping of token to id")
    if not vocab:
        raise Unreadable(f"the vocabulary in `{source}` is empty")
    if set(map(type, vocab.values())) != {int}:
        raise Unreadable(f"the vocabulary in `{source}` has ids that are not whole numbers")
    if min(vocab.values()) < 0 or max(vocab.values()) > LARGEST_ID:
        raise Unreadable(f"the vocabulary in `{source}` has ids outside 0 to {LARGEST_ID:,}")
    return vocab


def listed(pieces: Any, *, source: str) -> dict[str, int]:
    """A list of tokens, or of pairs of token and score, by place. Raises Unreadable where it is none."""
    if not isinstance(pieces, list) or not pieces:
        raise Unreadable(f"the vocabulary in `{source}` is not a list of tokens")
    texts = [piece[0] if isinstance(piece, list) and piece else piece for piece in pieces]
    if not all(type(text) is str for text in texts):
        raise Unreadable(f"the vocabulary in `{source}` has a token that is not a text")
    return {text: index for index, text in enumerate(texts)}


def step_kinds(value: Any) -> set[str]:
    """The types of the steps in a part of the pipeline, those of a sequence included."""
    if not isinstance(value, Mapping):
        return set()
    inner = value.get("normalizers") or value.get("pretokenizers")
    steps = inner if value.get("type") == "Sequence" and isinstance(inner, list) else [value]
    return {str(step.get("type")) for step in steps if isinstance(step, Mapping)}
