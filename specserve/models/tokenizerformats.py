"""Formats of tokenizers: tokenizer.json, sentencepiece, Mistral's tekken.json, and tokens that other files add."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specserve.models.facts import ModelFacts
from specserve.models.vocabulary import (
    LARGEST_ID,
    Unreadable,
    Vocabulary,
    checked,
    content,
    listed,
    needed,
    parsed,
    small_json,
    vocabulary_file,
    with_added,
    written,
)

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def additions(facts: ModelFacts) -> tuple[str, ...]:
    """The texts of added tokens in the order in which transformers 5 adds them. Raises Unreadable.

    First the decoder's, by id; then the named special tokens; then the extra ones. A token that the vocabulary
    has keeps its id there; others are put behind it, whatever id the file states.
    """
    config = small_json(facts, "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder")
    named: Mapping[str, Any] = config
    if isinstance(decoder, dict):
        first = list(_by_id(decoder))
    else:
        named = {**config, **small_json(facts, "special_tokens_map.json")}
        first = list(_by_index(small_json(facts, "added_tokens.json")))
    specials = [text for name in SPECIAL_NAMES if (text := token_text(named.get(name)))]
    extra = named.get("extra_special_tokens") or named.get("additional_special_tokens")
    values = extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ()
    return tuple(dict.fromkeys([*first, *specials, *_texts(values)]))


def special_tokens(facts: ModelFacts) -> dict[str, str]:
    """The named special tokens, such as `eos_token`. Raises Unreadable."""
    named = {**small_json(facts, "special_tokens_map.json"), **small_json(facts, "tokenizer_config.json")}
    return {name: text for name in SPECIAL_NAMES if (text := token_text(named.get(name)))}


def token_text(value: Any) -> str | None:
    """A token's text, written plainly or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (text for value in values if (text := token_text(value)))


def _by_id(decoder: Mapping[str, Any]) -> Iterator[str]:
    known = {
        int(key): value for key, value in decoder.items() if key.isascii() and key.isdigit() and len(key) < 12
    }
    return _texts(known[key] for key in sorted(known))


def _by_index(encoder: Mapping[str, Any]) -> Iterator[str]:
    known = {text: index for text, index in encoder.items() if type(index) is int}
    return iter(sorted(known, key=known.__getitem__))


PIPELINE = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_MERGES = re.compile(rb'"merges"\s*:\s*\[')
_END = re.compile(rb"\]\s*\}\s*\}\s*\Z")
_ADDED = re.compile(r'"added_tokens"\s*:\s*')
_MODEL = re.compile(r'"model"\s*:\s*\{')


def read_huggingface(
    data: bytes, *, additions: Iterable[str] = (), source: str = "tokenizer.json"
) -> Vocabulary:
    """The vocabulary of a tokenizer.json. Raises Unreadable."""
    document, merges = _document(data, source=source)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise Unreadable(f"`{source}` has no `model`")
    model = document["model"]
    vocab = model.get("vocab")
    tokens = listed(vocab, source=source) if isinstance(vocab, list) else checked(vocab, source=source)
    added = document.get("added_tokens")
    texts = _added_texts(added if added is not None else [], source=source)
    pipeline = {name: document.get(name) for name in PIPELINE}
    pipeline["model"] = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    return with_added(tokens, [*texts, *additions], source=source, pipeline=pipeline, merges=merges)


def added_texts(data: bytes, *, source: str = "tokenizer.json") -> frozenset[str]:
    """The added tokens alone, if the file names them before its model, as all writers do; else none."""
    head = data[: 2**22].decode("utf-8", errors="replace")
    start, model = _ADDED.search(head), _MODEL.search(head)
    if not start or (model and model.start() < start.start()):
        return frozenset()
    try:
        value, _ = json.JSONDecoder().raw_decode(head, start.end())
        return frozenset(_added_texts(value, source=source))
    except (ValueError, RecursionError, Unreadable):
        return frozenset()


def _document(data: bytes, *, source: str) -> tuple[Any, bytes | None]:
    """The document without its merges, and the text of these: half the time, if they stand at the end."""
    starts = [match.end() for match in _MERGES.finditer(data)]
    end = _END.search(data, max(len(data) - 200, 0))
    if len(starts) == 1 and end and starts[0] <= end.start():
        try:
            document = parsed(data[: starts[0]] + data[end.start() :], name=source)
        except Unreadable:
            pass
        else:
            return document, data[starts[0] - 1 : end.start() + 1]
    document = parsed(data, name=source)
    model = document.get("model") if isinstance(document, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    return document, None if merges is None else json.dumps(merges).encode()


def _added_texts(added: Any, *, source: str) -> list[str]:
    if not isinstance(added, list):
        raise Unreadable(f"`added_tokens` in `{source}` is not a list")
    texts = [token_text(item) for item in added]
    return [text for text in texts if text]


MOST_PIECES = 1_000_000
_NORMAL = 1
_SPECIAL = frozenset({2, 3, 4})
"""Unknown, control, and those that were given to the trainer."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def pieces(data: bytes, *, source: str) -> tuple[list[str], frozenset[int]]:
    """The pieces in order of their ids, and the ids of those that no text makes. Raises Unreadable.

    `ModelProto.pieces` is field 1; of a `SentencePiece`, `piece` is field 1 and `type` field 3. Source:
    sentencepiece 0.2, sentencepiece_model.proto.
    """
    found: list[str] = []
    special = set()
    try:
        for number, value in _fields(data, 0, len(data)):
            if number == 1 and isinstance(value, tuple):
                text, kind = _piece(data, *value)
                if kind in _SPECIAL:
                    special.add(len(found))
                found.append(text)
                if len(found) > MOST_PIECES:
                    raise Unreadable(f"`{source}` holds more than {MOST_PIECES:,} pieces")
    except (IndexError, ValueError):
        raise Unreadable(f"`{source}` is not a sentencepiece model") from None
    if not found:
        raise Unreadable(f"`{source}` is not a sentencepiece model: it holds no pieces")
    return found, frozenset(special)


def _piece(data: bytes, start: int, end: int) -> tuple[str, int]:
    text, kind = "", _NORMAL
    for number, value in _fields(data, start, end):
        if number == 1 and isinstance(value, tuple):
            text = data[value[0] : value[1]].decode("utf-8")
        elif number == 3 and isinstance(value, int):
            kind = value
    return text, kind


def _fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Field numbers with their numbers, or with the range of their bytes."""
    while place < end:
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
        elif kind == _BYTES:
            length, place = _varint(data, place)
            if place + length > end:
                raise ValueError
            yield key >> 3, (place, place + length)
            place += length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError
    if place != end:
        raise ValueError


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError


DEFAULT_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]",
    "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")  # fmt: skip
"""Of files that name none. Source: mistral_common 1.13, `Tekkenizer.DEPRECATED_SPECIAL_TOKENS`."""


def read_tekken(data: bytes, *, source: str = "tekken.json") -> Vocabulary:
    """The vocabulary of a tekken.json; bytes are written as byte-level BPE writes them. Raises Unreadable."""
    document = parsed(data, name=source)
    try:
        config = document["config"]
        size = _count(config["default_vocab_size"])
        specials = _count(config["default_num_special_tokens"])
        words = document["vocab"]
        tokens = _specials(document.get("special_tokens"), count=specials)
        added = frozenset(tokens)
        for word in words[: max(size - specials, 0)]:
            raw = binascii.a2b_base64(word["token_bytes"])
            tokens[_count(word["rank"]) + specials] = written(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unreadable(f"`{source}` is not a tekken vocabulary") from None
    return Vocabulary(source, tokens, added)


def _specials(listed: Any, *, count: int) -> dict[int, str]:
    named = (
        {_count(item["rank"]): str(item["token_str"]) for item in listed}
        if listed
        else dict(enumerate(DEFAULT_SPECIAL))
    )
    if count > 100_000:
        raise ValueError(count)
    return {rank: named.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_ID:
        raise ValueError(value)
    return value


def read_vocabulary(facts: ModelFacts) -> Vocabulary:
    """What each id of a model's tokenizer means. Raises Unreadable."""
    name, kind = vocabulary_file(facts)
    data = content(needed(facts, name))
    special: frozenset[int] = frozenset()
    match kind:
        case "tekken":
            return read_tekken(data, source=name)
        case "tokenizer.json":
            return read_huggingface(data, additions=additions(facts), source=name)
        case "vocab.json":
            vocab = checked(parsed(data, name=name), source=name)
        case "sentencepiece":
            texts, special = pieces(data, source=name)
            vocab = listed(texts, source=name)
    return with_added(vocab, additions(facts), source=name, special=special)
