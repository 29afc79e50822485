"""One rendered file. Knows no target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a rendered deployment: where it lies below the output folder, and all of its text."""

    path: str
    """With `/` between folders."""
    text: str
    alone: bool = True
    """Whether it means something without the files beside it: those that do are printed where there is no folder."""
