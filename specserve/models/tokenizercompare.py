"""Target's tokenizer against the draft's: what the target's ids mean to the draft, graded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.models import sample
from specserve.models.config import text_config
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.files import read_regular
from specserve.models.vocabulary import (
    LARGEST_BYTES,
    LARGEST_ID,
    LARGEST_SMALL_BYTES,
    PIPELINE,
    Vocabulary,
    additions,
    needed,
    parsed,
    read_vocabulary,
    small_json,
    special_tokens,
    vocabulary_file,
)

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
class TokenDifference:
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
    first_difference: TokenDifference | None = None
    differing_ids: int | None = None
    template_ids: tuple[TokenDifference, ...] = ()
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


_HALF = 0.5
_LONGEST = 200


def compare(
    target: ModelFacts, draft: ModelFacts, *, tokenizer: ModelFacts | None = None
) -> TokenizerComparison:
    """How the draft's ids differ from those that vLLM hands it: the target's.

    `tokenizer`: the repository that the profile names instead of the target's own files. Never raises for what
    stands in the files: the verdict is then `not_checked`, with the reason. Source: vLLM 0.32,
    vllm/config/speculative.py, `verify_equal_vocab_size_if_draft_model`.
    """
    start = TokenizerComparison(
        "not_checked", target_vocab_size=_vocab_size(target), draft_vocab_size=_vocab_size(draft)
    )
    if "published" in ((tokenizer or target).origin, draft.origin):
        return replace(start, reasons=("the configurations that ship with specserve include no tokenizers",))
    try:
        return _compared(tokenizer or target, draft, start)
    except FactError as error:
        return replace(start, reasons=(error.message,))
    except RecursionError:
        return replace(start, reasons=("a tokenizer file is nested too deeply",))


def _compared(target: ModelFacts, draft: ModelFacts, start: TokenizerComparison) -> TokenizerComparison:
    name, kind = vocabulary_file(target)
    other, other_kind = vocabulary_file(draft)
    is_same_file = kind == other_kind and _same_bytes(target.files[name], draft.files[other])
    if is_same_file and additions(target) == additions(draft):
        return _equal(start, _template_difference(target, draft))
    wanted, offered = read_vocabulary(target), read_vocabulary(draft)
    differing = _differing(wanted, offered, start)
    if not differing:
        return _equal(start, (*_pipeline_differences(wanted, offered), *_template_difference(target, draft)))
    path = needed(target, name) if kind == "tokenizer.json" else None
    with sample.counting(wanted, path, wanted=differing) as counts:
        shared = shared_ids(
            wanted, offered, target_size=start.target_vocab_size, draft_size=start.draft_vocab_size
        )
        named = [index for index in template_ids(target, wanted) if index in differing]
        return _graded(start, wanted, offered, differing, counts=counts(), shared=shared, named=named)


def _vocab_size(facts: ModelFacts) -> int | None:
    """The language model's vocabulary; None if config.json does not say it.

    Source: vllm/transformers_utils/model_arch_config_convertor.py, `get_vocab_size`, 0.32.
    """
    size = text_config(facts.config).get("vocab_size")
    return size if type(size) is int and size > 0 else None


def _same_bytes(left: ModelFile, right: ModelFile) -> bool:
    """Whether two files are known to hold the same bytes. Raises FactError."""
    if left.sha256 is not None and right.sha256 is not None:
        return left.sha256 == right.sha256
    if left.path is None or right.path is None or left.size_bytes != right.size_bytes:
        return False
    one, other = (read_regular(path, limit_bytes=LARGEST_BYTES) for path in (left.path, right.path))
    return one == other


def _differing(target: Vocabulary, draft: Vocabulary, sizes: TokenizerComparison) -> set[int]:
    """The ids that mean different things, among those that the models have a row for."""
    if target.tokens == draft.tokens and sizes.target_vocab_size == sizes.draft_vocab_size:
        return set()
    wanted = _below(target.tokens, sizes.target_vocab_size or sizes.draft_vocab_size)
    offered = _below(draft.tokens, sizes.draft_vocab_size or sizes.target_vocab_size)
    changed = {index for index, text in wanted.items() if offered.get(index) != text}
    return changed | (offered.keys() - wanted.keys())


def _below(tokens: Mapping[int, str], size: int | None) -> Mapping[int, str]:
    """Without tokens behind the embedding: transformers adds some that no model reads."""
    if size is None or max(tokens) < size:
        return tokens
    return {index: text for index, text in tokens.items() if index < size}


def _equal(start: TokenizerComparison, reasons: tuple[str, ...]) -> TokenizerComparison:
    """The verdict on equal tokens."""
    ours, theirs = start.target_vocab_size, start.draft_vocab_size
    is_padded = ours is not None and theirs is not None and ours != theirs
    if is_padded:
        reasons = (
            f"the tokens are equal; padded, `vocab_size` is {ours:,} (target) and {theirs:,} (draft)",
            *reasons,
        )
    verdict: TokenizerVerdict = "padding_only" if is_padded else "identical"
    return replace(
        start, verdict=verdict, reasons=reasons, overlap=1.0, mismatch_by_occurrence=0.0, differing_ids=0
    )


def _graded(
    start: TokenizerComparison,
    target: Vocabulary,
    draft: Vocabulary,
    differing: Collection[int],
    *,
    counts: Counter[int] | None,
    shared: Mapping[int, int],
    named: Iterable[int],
) -> TokenizerComparison:
    """The verdict on tokens that differ.

    `differing`: the ids that do; `counts`: how often the sample text holds each of the target's ids, None if it
    holds none that differs; `shared`: target id to draft id of the tokens that both have; `named`: the differing ids
    of the chat template.
    """

    def difference(index: int) -> TokenDifference:
        return TokenDifference(index, _clean(target.tokens.get(index)), _clean(draft.tokens.get(index)))

    mismatch = _share(counts, differing) if counts else 0.0
    kept = _share(counts, shared) if counts else 1.0
    overlap = len(shared) / max(len(_below(draft.tokens, start.draft_vocab_size)), 1)
    is_little = len(shared) < min(FEW_SHARED, len(draft.tokens) // 2) or (overlap < _HALF and kept < _HALF)
    verdict: TokenizerVerdict = "incompatible" if is_little else "overlap"
    if target.added | draft.added >= set(differing):
        verdict = "special_tokens_differ"
    first = difference(min(differing))
    return replace(
        start,
        verdict=verdict,
        reasons=(
            f"{len(differing):,} ids mean something else to the draft: {mismatch:.2%} of a sample text",
            f"the first is {first.id}: {shown(first.target)} to the target, {shown(first.draft)} to the draft",
            f"`use_heterogeneous_vocab` would keep {len(shared):,} tokens: {kept:.1%} of a sample text",
        ),
        overlap=overlap,
        mismatch_by_occurrence=mismatch,
        first_difference=first,
        differing_ids=len(differing),
        template_ids=tuple(map(difference, named)),
        shared_tokens=len(shared),
        kept_by_occurrence=kept,
    )


def _share(counts: Counter[int], ids: Collection[int]) -> float:
    return sum(counts[index] for index in counts if index in ids) / max(counts.total(), 1)


def _clean(token: str | None) -> str | None:
    """A token that can be written: JSON may hold half of a character, and texts without end."""
    return None if token is None else token[:_LONGEST].encode("utf-8", errors="replace").decode()


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
    """The character for a space: that of ` a` encoded, if it is one token; else both that are known."""
    both = frozenset((BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE))
    prefix = _written_space(vocabulary)
    if prefix is None or prefix + "a" not in vocabulary.tokens.values():
        return both
    return frozenset((prefix,))


def _written_space(vocabulary: Vocabulary) -> str | None:
    """How a space is written before the model sees it; None if a second one is put before it."""
    kinds = vocabulary.steps("normalizer", "pre_tokenizer")
    if "ByteLevel" in kinds:
        return BYTE_LEVEL_SPACE
    if "Prepend" in kinds or not kinds & {"Metaspace", "Replace"}:
        return None
    return SENTENCEPIECE_SPACE


FILE = "chat_template.jinja"
_NAME = re.compile(r"\b(?:bos|eos|unk|pad|sep|cls)_token\b")


def template(facts: ModelFacts) -> str | None:
    """All chat templates of a model as one text; a file of its own wins. Raises FactError."""
    if FILE in facts.files:
        data = read_regular(needed(facts, FILE), limit_bytes=LARGEST_SMALL_BYTES)
        return data.decode("utf-8", errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        text = _joined(small_json(facts, name).get("chat_template"))
        if text:
            return text
    return None


def template_ids(facts: ModelFacts, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of the special tokens that the template writes, and of the end of the text. Raises FactError."""
    text = template(facts) or ""
    named = special_tokens(facts)
    used = set(_NAME.findall(text)) | {"eos_token"}
    if not text:
        used.add("bos_token")
    texts = {named[name] for name in used if name in named}
    return tuple(
        sorted(
            index
            for index in vocabulary.added
            if (token := vocabulary.tokens[index]) in texts or (len(token) > 2 and token in text)
        )
    )


def _joined(value: Any) -> str | None:
    """A template, or a list of named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = {
            str(place): item.get("template") for place, item in enumerate(value) if isinstance(item, dict)
        }
    if isinstance(value, dict):
        return "\n".join(text for text in value.values() if isinstance(text, str)) or None
    return None


def _pipeline_differences(target: Vocabulary, draft: Vocabulary) -> tuple[str, ...]:
    """Reasons, one for all steps that differ; none if a file does not say them."""
    if not target.pipeline or not draft.pipeline:
        return ()
    names = [name for name in PIPELINE if target.pipeline.get(name) != draft.pipeline.get(name)]
    if target.merges != draft.merges and _merges(target) != _merges(draft):
        names.insert(0, "merges")
    if not names:
        return ()
    differing = ", ".join(f"`{name}`" for name in names)
    return (f"the ids are equal, but text is split differently: {differing} differ",)


def _template_difference(target: ModelFacts, draft: ModelFacts) -> tuple[str, ...]:
    """A reason if both have a chat template, and not the same one. Raises FactError."""
    ours, theirs = template(target), template(draft)
    if ours is None or theirs is None or ours.split() == theirs.split():
        return ()
    return ("the chat templates differ; the draft reads the target's",)


def _merges(vocabulary: Vocabulary) -> object:
    """The merges as pairs: older files write each as a text with a space. Raises FactError."""
    merges = parsed(vocabulary.merges or b"[]", name=vocabulary.source)
    if not isinstance(merges, list):
        return merges
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
