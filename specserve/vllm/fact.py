"""What a fact about vLLM is: a value for each version, with the line of vLLM's source that shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
FIRST = "0.26"
"""The oldest minor version whose sources facts are compared with."""


@lru_cache(maxsize=256)
def minor(version: str) -> tuple[int, int]:
    """(0, 32) of `0.32.1+cpu`; (0, 0) for a text that starts with no version."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def in_force(items: Iterable[T], version: str, *, first: Callable[[T], str]) -> T:
    """The newest item that is not newer than the version, by the first minor of each; else the oldest item."""
    oldest, *rest = sorted(items, key=lambda item: minor(first(item)))
    return next((item for item in reversed(rest) if minor(first(item)) <= minor(version)), oldest)


@dataclass(frozen=True, slots=True)
class Era(Generic[T]):
    """The value of a fact from one minor version on."""

    first: str
    """The first minor version with this value."""
    value: T
    file: str
    """A source file, relative to the package `vllm`."""
    line: str
    """A piece of that file in every version of this era; white space does not count."""
    is_absent: bool = False
    """Whether the file, or the line in it, is in no version of this era: its absence is what shows the value."""

    def is_shown_by(self, text: str) -> bool:
        """Whether the file, with this text (empty if there is no such file), shows the value."""
        return (" ".join(self.line.split()) in " ".join(text.split())) is not self.is_absent


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """Something about vLLM that differs by version."""

    name: str
    eras: tuple[Era[T], ...]
    """Oldest first."""

    def era(self, version: str) -> Era[T]:
        """The era of a version; an older one than all gets the first era, a newer one the last."""
        known = minor(version)
        return next((era for era in reversed(self.eras) if minor(era.first) <= known), self.eras[0])

    def at(self, version: str) -> T:
        """The value in a version such as `0.32` or `0.32.1+cpu`."""
        return self.era(version).value


def fact(name: str, *eras: Era[T]) -> Fact[T]:
    """A fact of these eras."""
    return Fact(name, eras)


def since(name: str, first: str, file: str, line: str) -> Fact[bool]:
    """A fact that holds from the version on in which a line appeared."""
    return fact(name, Era(FIRST, False, file, line, is_absent=True), Era(first, True, file, line))


def until(name: str, first: str, file: str, line: str) -> Fact[bool]:
    """A fact that holds until the first version in which a line is gone."""
    return fact(name, Era(FIRST, True, file, line), Era(first, False, file, line, is_absent=True))
