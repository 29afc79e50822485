"""The pieces of a sentencepiece model: a bounded reader of its protobuf. Knows neither scores nor normalization."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.facts.tokenizers.files import Unreadable

MOST_PIECES = 1_000_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def pieces(data: bytes, *, source: str) -> list[str]:
    """The pieces in order of their ids. Raises Unreadable.

    `ModelProto.pieces` is field 1, `SentencePiece.piece` field 1. Source: sentencepiece 0.2, sentencepiece_model.proto.
    """
    found: list[str] = []
    try:
        for number, value in _fields(data, 0, len(data)):
            if number == 1 and isinstance(value, tuple):
                found.append(_piece(data, *value))
                if len(found) > MOST_PIECES:
                    raise Unreadable(f"`{source}` holds more than {MOST_PIECES:,} pieces")
    except (IndexError, ValueError):
        raise Unreadable(f"`{source}` is not a sentencepiece model") from None
    if not found:
        raise Unreadable(f"`{source}` is not a sentencepiece model: it holds no pieces")
    return found


def _piece(data: bytes, start: int, end: int) -> str:
    for number, value in _fields(data, start, end):
        if number == 1 and isinstance(value, tuple):
            return data[value[0] : value[1]].decode("utf-8")
    return ""


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
