"""The printable alphabet of byte-level BPE: one character for each byte. Knows no vocabulary."""

from __future__ import annotations

from functools import cache


@cache
def alphabet() -> dict[int, str]:
    """Byte to character, as GPT-2 has it: printable Latin-1 stands for itself, the rest is moved above 255.

    Source: tokenizers 0.23, `bytes_char`.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(moved)}


def written(data: bytes) -> str:
    """Bytes as byte-level BPE writes them."""
    return data.decode("latin-1").translate(alphabet())


@cache
def _bytes() -> dict[int, int]:
    return {ord(char): byte for byte, char in alphabet().items()}


def spelled(token: str) -> bytes | None:
    """The bytes of a token that byte-level BPE wrote; None where it holds another character."""
    table = _bytes()
    try:
        return bytes(table[ord(char)] for char in token)
    except KeyError:
        return None
