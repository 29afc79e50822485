"""What each token id of a model's tokenizer means: tokenizer.json, vocab.json, sentencepiece, Mistral's tekken.json."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError
from specserve.models.facts import ModelFacts
from specserve.models.files import json_problem, read_regular

Kind = Literal["tokenizer.json", "vocab.json", "sentencepiece", "tekken"]
LARGEST_BYTES = 64 * 2**20
"""Above this a file is not read. The largest public tokenizer.json (262,144 entries) has 33 MB."""
LARGEST_SMALL_BYTES = 8 * 2**20
"""Bound for the files beside it: tokenizer_config.json and the like."""
MOST_VALUES = 8_000_000
"""Commas and brackets in a JSON file that is parsed: a bound on the memory that its values take."""
LARGEST_ID = 2**24
"""Ids above are not followed: no public vocabulary comes near."""
PIPELINE = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_KINDS: Mapping[str, Kind] = {
    "tokenizer.json": "tokenizer.json",
    "vocab.json": "vocab.json",
    "tokenizer.model": "sentencepiece",
    "tekken.json": "tekken",
}


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

    def steps(self, *parts: str) -> set[str]:
        """The types of the steps in these parts of the pipeline, those of a sequence included."""
        found: set[str] = set()
        for value in map(self.pipeline.get, parts):
            if not isinstance(value, Mapping):
                continue
            inner = value.get("normalizers") or value.get("pretokenizers")
            steps = inner if value.get("type") == "Sequence" and isinstance(inner, list) else [value]
            found |= {str(step.get("type")) for step in steps if isinstance(step, Mapping)}
        return found


def vocabulary_file(facts: ModelFacts) -> tuple[str, Kind]:
    """The file that holds the vocabulary, in the order of transformers and of vLLM's Mistral mode.

    Raises FactError without one that is known. Source: vllm/tokenizers/registry.py and transformers'
    tokenization_utils_tokenizers.py, vLLM 0.32.
    """
    if "tekken.json" in facts.files and any(name.startswith("consolidated") for name in facts.files):
        return "tekken.json", "tekken"
    for name, kind in _KINDS.items():
        if name in facts.files:
            return name, kind
    known = ", ".join(_KINDS)
    raise FactError(f"`{facts.model}` has none of the tokenizer files that specserve reads: {known}")


def holds_tokenizer(files: Iterable[str]) -> bool:
    """Whether one of these files may hold a vocabulary, or the code of a tokenizer.

    `tokenizer_config.json` and `special_tokens_map.json` hold neither.
    """
    parts = ("tokenizer.", "vocab", ".model", "tekken", "tiktoken", "tokenization_", ".gguf", "_tokenizer")
    return any(part in name.lower() for name in files for part in parts)


def read_vocabulary(facts: ModelFacts) -> Vocabulary:
    """What each id of a model's tokenizer means. Raises FactError."""
    name, kind = vocabulary_file(facts)
    data, special = read_regular(needed(facts, name), limit_bytes=LARGEST_BYTES), frozenset[int]()
    match kind:
        case "tekken":
            return read_tekken(data, source=name)
        case "tokenizer.json":
            return read_huggingface(data, additions=additions(facts), source=name)
        case "vocab.json":
            vocab = _checked(parsed(data, name=name), source=name)
        case "sentencepiece":
            texts, special = pieces(data, source=name)
            vocab = _checked(texts, source=name)
    return _with_added(vocab, additions(facts), Vocabulary(name, {}, special))


def needed(facts: ModelFacts, name: str) -> Path:
    """Where a file of a model lies. Raises FactError if it is not on this machine."""
    file = facts.files.get(name)
    if file is None or file.path is None:
        raise FactError(f"`{name}` of `{facts.model}` is not on this machine")
    return file.path


def parsed(data: bytes, *, name: str) -> Any:
    """A JSON document, bounded in the memory it can take. Raises FactError."""
    if sum(data.count(mark) for mark in (b"[", b"{", b",")) > MOST_VALUES:
        raise FactError(f"`{name}` holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FactError(f"`{name}` is not valid JSON: {json_problem(error, data)}") from None


def small_json(facts: ModelFacts, name: str) -> dict[str, Any]:
    """A small JSON object beside the vocabulary; empty if there is none. Raises FactError."""
    if name not in facts.files:
        return {}
    value = parsed(read_regular(needed(facts, name), limit_bytes=LARGEST_SMALL_BYTES), name=name)
    if not isinstance(value, dict):
        raise FactError(f"`{name}` of `{facts.model}` is not a JSON object")
    return value


def additions(facts: ModelFacts) -> tuple[str, ...]:
    """The texts of added tokens in the order in which transformers 5 adds them. Raises FactError.

    First the decoder's, by id; then the named special tokens; then the extra ones. A token that the vocabulary
    has keeps its id there; others are put behind it, whatever id the file states.
    """
    config = small_json(facts, "tokenizer_config.json")
    decoder, named = config.get("added_tokens_decoder"), config
    if isinstance(decoder, dict):
        keys = (key for key in decoder if key.isascii() and key.isdigit() and len(key) < 12)
        first = [_text(decoder[key]) for key in sorted(keys, key=int)]
    else:
        named = {**config, **small_json(facts, "special_tokens_map.json")}
        listed = small_json(facts, "added_tokens.json").items()
        known: dict[str, int] = {text: index for text, index in listed if type(index) is int}
        first = [*sorted(known, key=known.__getitem__)]
    extra = named.get("extra_special_tokens") or named.get("additional_special_tokens")
    values = extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ()
    texts = [*first, *(_text(named.get(name)) for name in SPECIAL_NAMES), *map(_text, values)]
    return tuple(dict.fromkeys(text for text in texts if text))


def special_tokens(facts: ModelFacts) -> dict[str, str]:
    """The named special tokens, such as `eos_token`. Raises FactError."""
    named = {**small_json(facts, "special_tokens_map.json"), **small_json(facts, "tokenizer_config.json")}
    return {name: text for name in SPECIAL_NAMES if (text := _text(named.get(name)))}


def _text(value: Any) -> str | None:
    """A token's text, written plainly or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _with_added(vocab: Mapping[str, int], texts: Iterable[str], plain: Vocabulary) -> Vocabulary:
    """A vocabulary with added tokens as the tokenizers library numbers them.

    A text that the vocabulary has keeps its id; a new one gets the next id behind the vocabulary's size, in
    order, whatever id the file states. `plain`: the rest, with the ids of the vocabulary that no text makes.
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
    added = plain.added.union(ids.values())
    return Vocabulary(plain.source, tokens, added, plain.pipeline, plain.merges)


def _checked(vocab: Any, *, source: str) -> dict[str, int]:
    """Token to id, of a mapping or of a list of tokens, perhaps with scores. Raises FactError if it is neither."""
    if isinstance(vocab, list) and vocab:
        texts = [piece[0] if isinstance(piece, list) and piece else piece for piece in vocab]
        if not all(type(text) is str for text in texts):
            raise FactError(f"the vocabulary in `{source}` has a token that is not a text")
        return {text: index for index, text in enumerate(texts)}
    if not isinstance(vocab, dict):
        raise FactError(
            f"the vocabulary in `{source}` is neither a mapping of token to id nor a list of tokens"
        )
    if not vocab:
        raise FactError(f"the vocabulary in `{source}` is empty")
    if set(map(type, vocab.values())) != {int}:
        raise FactError(f"the vocabulary in `{source}` has ids that are not whole numbers")
    if min(vocab.values()) < 0 or max(vocab.values()) > LARGEST_ID:
        raise FactError(f"the vocabulary in `{source}` has ids outside 0 to {LARGEST_ID:,}")
    return vocab


_MERGES = re.compile(rb'"merges"\s*:\s*\[')
_END = re.compile(rb"\]\s*\}\s*\}\s*\Z")


def read_huggingface(
    data: bytes, *, additions: Iterable[str] = (), source: str = "tokenizer.json"
) -> Vocabulary:
    """The vocabulary of a tokenizer.json. Raises FactError."""
    document, merges = _without_merges(data, source=source)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise FactError(f"`{source}` has no `model`")
    model, added = document["model"], document.get("added_tokens")
    vocab = _checked(model.get("vocab"), source=source)
    if added is not None and not isinstance(added, list):
        raise FactError(f"`added_tokens` in `{source}` is not a list")
    pipeline = {name: document.get(name) for name in PIPELINE}
    pipeline["model"] = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    texts = [text for text in map(_text, added or ()) if text]
    return _with_added(vocab, [*texts, *additions], Vocabulary(source, {}, frozenset(), pipeline, merges))


def _without_merges(data: bytes, *, source: str) -> tuple[Any, bytes | None]:
    """The document without its merges, and the text of these: half the time, if they stand at the end."""
    starts = [match.end() for match in _MERGES.finditer(data)]
    end = _END.search(data, max(len(data) - 200, 0))
    if len(starts) == 1 and end and starts[0] <= end.start():
        try:
            document = parsed(data[: starts[0]] + data[end.start() :], name=source)
        except FactError:
            pass
        else:
            return document, data[starts[0] - 1 : end.start() + 1]
    document = parsed(data, name=source)
    model = document.get("model") if isinstance(document, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    return document, None if merges is None else json.dumps(merges).encode()


MOST_PIECES = 1_000_000
_NORMAL = 1
_SPECIAL = frozenset({2, 3, 4})
"""Unknown, control, and those that were given to the trainer."""


def pieces(data: bytes, *, source: str) -> tuple[list[str], frozenset[int]]:
    """The pieces in order of their ids, and the ids of those that no text makes. Raises FactError.

    `ModelProto.pieces` is field 1; of a `SentencePiece`, `piece` is field 1 and `type` field 3. Source:
    sentencepiece 0.2, sentencepiece_model.proto.
    """
    found: list[str] = []
    special = set()
    try:
        for piece in (value for number, value in _fields(data) if number == 1 and isinstance(value, bytes)):
            parts = dict(_fields(piece))
            if parts.get(3, _NORMAL) in _SPECIAL:
                special.add(len(found))
            found.append(bytes(parts.get(1, b"")).decode("utf-8"))
            if len(found) > MOST_PIECES:
                raise FactError(f"`{source}` holds more than {MOST_PIECES:,} pieces")
    except (IndexError, ValueError, TypeError):
        raise FactError(f"`{source}` is not a sentencepiece model") from None
    if not found:
        raise FactError(f"`{source}` is not a sentencepiece model: it holds no pieces")
    return found, frozenset(special)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message, by number. Raises ValueError and IndexError for what is none."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        match key & 7:
            case 0:
                value, place = _varint(data, place)
                yield key >> 3, value
            case 2:
                length, place = _varint(data, place)
                if place + length > len(data):
                    raise ValueError("the message ends within a field")
                yield key >> 3, data[place : place + length]
                place += length
            case 1 | 5 as kind:
                place += 8 if kind == 1 else 4
            case _:
                raise ValueError("a field has an unknown type")
    if place != len(data):
        raise ValueError("the message ends within a field")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number is too long")


DEFAULT_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]",
    "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")  # fmt: skip
"""Of files that name none. Source: mistral_common 1.13, `Tekkenizer.DEPRECATED_SPECIAL_TOKENS`."""
_MOST_SPECIAL = 100_000


def read_tekken(data: bytes, *, source: str = "tekken.json") -> Vocabulary:
    """The vocabulary of a tekken.json; bytes are written as byte-level BPE writes them. Raises FactError."""
    document = parsed(data, name=source)
    try:
        size, specials = (
            _count(document["config"][key]) for key in ("default_vocab_size", "default_num_special_tokens")
        )
        listed = document.get("special_tokens")
        named = {_count(item["rank"]): str(item["token_str"]) for item in listed or ()}
        named = named if listed else dict(enumerate(DEFAULT_SPECIAL))
        if specials > _MOST_SPECIAL:
            raise ValueError(specials)
        tokens = {rank: named.get(rank, f"<SPECIAL_{rank}>") for rank in range(specials)}
        added = frozenset(tokens)
        for word in document["vocab"][: max(size - specials, 0)]:
            tokens[_count(word["rank"]) + specials] = written(binascii.a2b_base64(word["token_bytes"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FactError(f"`{source}` is not a tekken vocabulary") from None
    return Vocabulary(source, tokens, added)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_ID:
        raise ValueError(value)
    return value


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
