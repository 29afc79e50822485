"""The rows of cause_tables/: a message in vLLM's log, its sentence, the way out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

TRACEBACK = "Traceback (most recent call last):"
# Tried in this order: what ends a start at once stands before what may also be an echo.
_TABLES = (
    "arguments",
    "environment",
    "speculation",
    "configuration",
    "hub",
    "model",
    "memory",
    "devices",
    "host",
)
_LINES_BEFORE, _LINES_AFTER = 2, 3  # around the literal: no message of the tables is longer
_STACK_CHARACTERS = 60_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a pattern over the log, the sentence that it means, the way out.

    `says` are the literal texts that the pattern relies on, each with who writes it: a file below
    site-packages, or a name (`NCCL`). `within` must stand in the stack above the match. A `late` row is
    tried after everything else, on that many last lines of any level: it finds a hang or an echo.
    """

    name: str
    pattern: re.Pattern[str]
    message: str
    hint: str
    example: str
    says: tuple[tuple[str, str], ...]
    within: re.Pattern[str] | None = None
    late: int = 0

    def find(self, text: str) -> re.Match[str] | None:
        """The first match, looked for only where one of the literals stands."""
        for _, literal in self.says:
            at = text.find(literal)
            while at >= 0:
                match = self.pattern.search(text, *_around(text, at))
                if match and self._stands_within(text, match.start()):
                    return match
                at = text.find(literal, at + len(literal))
        return None

    def _stands_within(self, text: str, at: int) -> bool:
        if self.within is None:
            return True
        start = max(text.rfind(TRACEBACK, 0, at), at - _STACK_CHARACTERS, 0)
        return self.within.search(text, start, at) is not None


@dataclass(frozen=True, slots=True)
class Stage:
    """What vLLM was doing when it raised an exception that no row knows, and the way out."""

    name: str
    within: re.Pattern[str]
    doing: str
    hint: str


@cache
def table() -> tuple[Row, ...]:
    """The rows of all tables, in the order in which they are tried."""
    return tuple(_row(row) for name in _TABLES for row in _read(name)["cause"])


@cache
def stages() -> tuple[Stage, ...]:
    """The stages of vLLM, in the order in which they are tried."""
    return tuple(
        Stage(**stage | {"within": re.compile(stage["within"])}) for stage in _read("stages")["stage"]
    )


def _read(name: str) -> dict[str, Any]:
    import tomllib

    folder = resources.files("specserve.serve").joinpath("cause_tables")
    return tomllib.loads(folder.joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _row(row: dict[str, Any]) -> Row:
    within = row.get("within")
    return Row(
        **row
        | {
            "pattern": re.compile(row["pattern"], re.MULTILINE),
            "says": tuple((who, literal) for who, literal in row["says"]),
            "within": re.compile(within) if within else None,
        }
    )


def _around(text: str, at: int) -> tuple[int, int]:
    """The lines about a place in the text: where they start and end."""
    start = end = at
    for _ in range(_LINES_BEFORE + 1):
        start = text.rfind("\n", 0, max(start, 0))
    for _ in range(_LINES_AFTER + 1):
        end = text.find("\n", end + 1)
        if end < 0:
            return start + 1, len(text)
    return start + 1, end
