"""What `use_heterogeneous_vocab` would keep of two vocabularies: vLLM's token map, predicted. Grades nothing.

Source: vllm/v1/spec_decode/vocab_mapping.py, `VocabMapping`, 0.26-0.33.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.facts.tokenizers.vocabulary import Vocabulary

BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE = "\u0120", "\u2581"


def shared_ids(
    target: Vocabulary, draft: Vocabulary, *, target_size: int | None = None, draft_size: int | None = None
) -> dict[int, int]:
    """Target id to draft id, for every token that both have; sizes are the `vocab_size` of the models."""
    wanted, offered = spaced(target), spaced(draft)
    return {
        wanted[text]: offered[text]
        for text in wanted.keys() & offered.keys()
        if (target_size is None or wanted[text] < target_size)
        and (draft_size is None or offered[text] < draft_size)
    }


def spaced(vocabulary: Vocabulary) -> dict[str, int]:
    """Token to id with a plain space at the start of words, as vLLM compares them; the lowest id wins."""
    prefixes = space_prefixes(vocabulary)
    ids = {
        (" " + text[1:] if text[:1] in prefixes else text): index
        for index, text in sorted(vocabulary.tokens.items(), reverse=True)
    }
    ids.pop("", None)
    return ids


def space_prefixes(vocabulary: Vocabulary) -> frozenset[str]:
    """The character for a space: that of ` a` encoded, where it is one token; else both that are known."""
    both = frozenset((BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE))
    prefix = _written_space(vocabulary)
    if prefix is None or not _has(vocabulary, prefix + "a"):
        return both
    return frozenset((prefix,))


def _written_space(vocabulary: Vocabulary) -> str | None:
    """How a space is written before the model sees it; None where a second one is put before it."""
    steps = [
        step for name in ("normalizer", "pre_tokenizer") for step in _steps(vocabulary.pipeline.get(name))
    ]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return BYTE_LEVEL_SPACE
    if "Prepend" in kinds or not kinds & {"Metaspace", "Replace"}:
        return None
    return SENTENCEPIECE_SPACE


def _steps(value: Any) -> list[Mapping[str, Any]]:
    """A step of the pipeline, or those of a sequence."""
    if not isinstance(value, Mapping):
        return []
    inner = value.get("normalizers") or value.get("pretokenizers")
    if value.get("type") == "Sequence" and isinstance(inner, list):
        return [item for item in inner if isinstance(item, Mapping)]
    return [value]


def _has(vocabulary: Vocabulary, text: str) -> bool:
    return text in vocabulary.tokens.values()
