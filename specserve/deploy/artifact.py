"""One rendered file. Knows no target."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a rendered deployment: where it lies below the output folder, and all of its text."""

    path: str
    """With `/` between folders."""
    text: str
    alone: bool = True
    """Whether it means something without the files beside it: those that do are printed where there is no folder."""


def in_one_line(text: str) -> str:
    """The text without what would begin a new line of a file, or a directive in it."""
    return _BREAKS.sub(" ", text).rstrip("\\")
