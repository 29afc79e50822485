"""Choices that are the same on every machine and in every version of Python. Holds no words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def pick(items: Sequence[T], *key: object) -> T:
    """One of the items; the same key always picks the same one."""
    return items[number(len(items), *key)]


def picked(items: Sequence[T], count: int, *key: object) -> list[T]:
    """So many different items (all of them at most), in an order of their own."""
    ordered = sorted(range(len(items)), key=lambda index: _hash(*key, index))
    return [items[index] for index in ordered[:count]]


def number(limit: int, *key: object) -> int:
    """A number from 0 to below `limit`."""
    return _hash(*key) % limit


def _hash(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")
