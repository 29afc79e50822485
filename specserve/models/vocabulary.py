"""The file that vLLM would read a vocabulary from, and what each token id means in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError
from specserve.models.config import text_fields
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.files import json_problem, read_regular

Kind = Literal["tokenizer.json", "vocab.json", "sentencepiece", "tekken"]

LARGEST_BYTES = 64 * 2**20
"""Above this a file is not read. The largest public tokenizer.json (262,144 entries) has 33 MB."""
LARGEST_SMALL_BYTES = 8 * 2**20
"""Bound for the files beside it: tokenizer_config.json and the like."""
MOST_VALUES = 8_000_000
"""Commas and brackets in a JSON file that is parsed: a bound on the memory that its values take."""

_KINDS: dict[str, Kind] = {
    "tokenizer.json": "tokenizer.json",
    "vocab.json": "vocab.json",
    "tokenizer.model": "sentencepiece",
    "tekken.json": "tekken",
}


class Unreadable(Exception):
    """A tokenizer file cannot be used; the text says which, and why."""


def vocabulary_file(facts: ModelFacts) -> tuple[str, Kind]:
    """The file that holds the vocabulary, in the order of transformers and of vLLM's Mistral mode.

    Raises Unreadable without one that is known. Source: vllm/tokenizers/registry.py and transformers'
    tokenization_utils_tokenizers.py, vLLM 0.32.
    """
    if "tekken.json" in facts.files and any(name.startswith("consolidated") for name in facts.files):
        return "tekken.json", "tekken"
    for name, kind in _KINDS.items():
        if name in facts.files:
            return name, kind
    known = ", ".join(_KINDS)
    raise Unreadable(f"`{facts.model}` has none of the tokenizer files that specserve reads: {known}")


def same_bytes(left: ModelFile, right: ModelFile) -> bool:
    """Whether two files are known to hold the same bytes. Raises Unreadable."""
    if left.sha256 is not None and right.sha256 is not None:
        return left.sha256 == right.sha256
    if left.path is None or right.path is None or left.size_bytes != right.size_bytes:
        return False
    return content(left.path) == content(right.path)


def content(path: Path, *, most_bytes: int = LARGEST_BYTES) -> bytes:
    """The bytes of a regular file. Raises Unreadable if it is larger than that, or cannot be read."""
    try:
        return read_regular(path, limit_bytes=most_bytes)
    except FactError as error:
        raise Unreadable(error.message) from None
    except ValueError:  # a NUL in the name
        raise Unreadable(f"{path.name!r} is not a valid name of a file") from None


def needed(facts: ModelFacts, name: str) -> Path:
    """Where a file of a model lies. Raises Unreadable if it is not on this machine."""
    file = facts.files.get(name)
    if file is None or file.path is None:
        raise Unreadable(f"`{name}` of `{facts.model}` is not on this machine")
    return file.path


def parsed(data: bytes, *, name: str) -> Any:
    """A JSON document, bounded in the memory it can take. Raises Unreadable."""
    if sum(data.count(mark) for mark in (b"[", b"{", b",")) > MOST_VALUES:
        raise Unreadable(f"`{name}` holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"`{name}` is not valid JSON: {json_problem(error, data)}") from None


def small_json(facts: ModelFacts, name: str) -> dict[str, Any]:
    """A small JSON object beside the vocabulary; empty if there is none. Raises Unreadable."""
    file = facts.files.get(name)
    if file is None:
        return {}
    value = parsed(content(needed(facts, name), most_bytes=LARGEST_SMALL_BYTES), name=name)
    if not isinstance(value, dict):
        raise Unreadable(f"`{name}` of `{facts.model}` is not a JSON object")
    return value


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
    """How text becomes tokens, if the file says it: `normalizer`, `pre_tokenizer`, …"""
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
    """A mapping of token to id. Raises Unreadable if it is none."""
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
    """A list of tokens, or of pairs of token and score, by place. Raises Unreadable if it is none."""
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


def vocab_size(facts: ModelFacts) -> int | None:
    """The language model's vocabulary; None if config.json does not say it.

    Source: vllm/transformers_utils/model_arch_config_convertor.py, `get_vocab_size`, 0.32.
    """
    try:
        fields, _ = text_fields(facts.model, facts.config)
        return fields.optional("vocab_size")
    except FactError:
        size = facts.config.get("vocab_size")
        return size if type(size) is int and size > 0 and "text_config" not in facts.config else None


@cache
def _alphabet() -> dict[int, str]:
    """Byte to character, as GPT-2 has it: printable Latin-1 stands for itself, the rest is moved above 255.

    Source: tokenizers 0.23, `bytes_char`.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(moved)}


@cache
def _bytes() -> dict[str, int]:
    return {char: byte for byte, char in _alphabet().items()}


def written(data: bytes) -> str:
    """Bytes as byte-level BPE writes them."""
    return data.decode("latin-1").translate(_alphabet())


def spelled(token: str) -> bytes | None:
    """The bytes of a token that byte-level BPE wrote; None if it holds another character."""
    table = _bytes()
    return bytes(map(table.__getitem__, token)) if table.keys() >= {*token} else None
