"""What a fact about vLLM is: a value by version, with the line of vLLM's source that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")


@lru_cache(maxsize=256)
def minor(version: str) -> tuple[int, int]:
    """(0, 32) of `0.32.1+cpu`; (0, 0) for a text that starts with no version."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def in_force(minors: Iterable[str], version: str) -> str:
    """The newest of some minors that is not newer than a version; of older versions, the oldest."""
    oldest, *later = sorted(minors, key=minor)
    return [oldest, *(name for name in later if minor(name) <= minor(version))][-1]


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """Something about vLLM that may differ by version."""

    values: Mapping[str, T]
    """By the first known minor that has the value, oldest first."""
    file: str
    """Relative to the package `vllm`."""
    line: str
    """A piece of the file, in every version of the newest value and in no older one."""

    def at(self, version: str) -> T:
        """The value in a version such as `0.32.1+cpu`; one older than all gets the first value."""
        return self.values[in_force(self.values, version)]

    def is_as_shown(self, version: str, text: str) -> bool:
        """Whether the file's text in a version (empty if there is none) agrees with the values."""
        is_newest = minor(version) >= minor([*self.values][-1])
        return (" ".join(self.line.split()) in " ".join(text.split())) is is_newest
