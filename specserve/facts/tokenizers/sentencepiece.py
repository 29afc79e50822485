"""The pieces of a sentencepiece model: a bounded reader of its protobuf. Knows neither scores nor normalization."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.facts.tokenizers.files import Unreadable

MOST_PIECES = 1_000_000
_NORMAL = 1
_SPECIAL = frozenset({2, 3, 4})
"""Unknown, control, and those that the trainer was told."""
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
