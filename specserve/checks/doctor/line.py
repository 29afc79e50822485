"""One line of the doctor's screen. Knows nothing of how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "bad"]
"""bad: breaks a launch, or what it serves is wrong. note: worth acting on, and a launch goes all the same."""


@dataclass(frozen=True, slots=True)
class Line:
    """One fact about this host, with its way out where it needs one."""

    name: str
    """What it is about, in a word or two; the same from version to version."""
    state: State
    text: str
    fix: str | None = None
    """What to do about it; None where there is nothing to do."""


Reader = Callable[[], Iterable[Line]]


def examined(name: str, reader: Reader) -> list[Line]:
    """The lines of a reader. One that fails becomes a line that says so: the others are wanted all the same."""
    try:
        return list(reader())
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        fix = "report it as a bug, unless the host is at fault"
        return [Line(name, "note", f"could not be examined: {why}", fix)]
