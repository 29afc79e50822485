"""What `use_heterogeneous_vocab` would keep of two vocabularies: vLLM's token map, predicted. Grades nothing.

Source: vllm/v1/spec_decode/vocab_mapping.py, `VocabMapping`, 0.26-0.33.
"""

from __future__ import annotations

from specserve.facts.tokenizers.vocabulary import LARGEST_ID, Vocabulary, step_kinds

BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE = "\u0120", "\u2581"


def shared_ids(
    target: Vocabulary, draft: Vocabulary, *, target_size: int | None = None, draft_size: int | None = None
) -> dict[int, int]:
    """Target id to draft id, for every token that both have; sizes are the `vocab_size` of the models."""
    offered = spaced(draft)
    most, most_draft = target_size or LARGEST_ID + 1, draft_size or LARGEST_ID + 1
    return {
        index: other
        for text, index in spaced(target).items()
        if index < most and (other := offered.get(text, most_draft)) < most_draft
    }


def spaced(vocabulary: Vocabulary) -> dict[str, int]:
    """Token to id with a plain space at the start of words, as vLLM compares them; the lowest id wins."""
    ids = {text: index for index, text in vocabulary.tokens.items()}
    prefixes = tuple(space_prefixes(vocabulary))
    for text in [text for text in ids if text.startswith(prefixes)]:
        index, plain = ids.pop(text), " " + text[1:]
        ids[plain] = min(index, ids.get(plain, index))
    ids.pop("", None)
    return ids


def space_prefixes(vocabulary: Vocabulary) -> frozenset[str]:
    """The character for a space: that of ` a` encoded, where it is one token; else both that are known."""
    both = frozenset((BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE))
    prefix = _written_space(vocabulary)
    if prefix is None or prefix + "a" not in vocabulary.tokens.values():
        return both
    return frozenset((prefix,))


def _written_space(vocabulary: Vocabulary) -> str | None:
    """How a space is written before the model sees it; None where a second one is put before it."""
    kinds = step_kinds(vocabulary.pipeline.get("normalizer")) | step_kinds(
        vocabulary.pipeline.get("pre_tokenizer")
    )
    if "ByteLevel" in kinds:
        return BYTE_LEVEL_SPACE
    if "Prepend" in kinds or not kinds & {"Metaspace", "Replace"}:
        return None
    return SENTENCEPIECE_SPACE
