"""What a text says about one engine, whatever its form: settings, environment, notes. Changes nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specserve.convert.settings import Setting
from specserve.convert.words import Word
from specserve.diagnostics import Finding, Span
from specserve.profile.tree import Node


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a profile says otherwise than the text it comes from, and why."""

    path: str
    """Where the profile's comment stands: a dotted path, or `` for the head of the file."""
    text: str
    line: int = 0
    """Of the text; 0 where it has no lines."""


@dataclass(slots=True)
class Given:
    """One start of an engine as it was written."""

    engine: str
    """`vllm` or `sglang`."""
    what: str
    """`vllm serve`, `LLM(…)`."""
    place: Span
    settings: dict[str, Setting] = field(default_factory=dict)
    env: dict[str, Node] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    image: Word | None = None
    """The container's image, its tag included."""
    published: list[Word] = field(default_factory=list)
    """Ports that a container opens to the host, as written: `9000:8000`."""
    unresolved: list[Finding] = field(default_factory=list)
    """What the text does not say: `converted` refuses it."""
    words: list[Word] = field(default_factory=list)
    """The words after the program; none for a call in Python."""

    @property
    def is_call(self) -> bool:
        """Whether this is an engine in a Python program, which has no port."""
        return self.what.endswith("(…)")
