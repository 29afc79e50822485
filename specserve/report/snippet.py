"""Source lines with marks under them, secrets blacked out, at terminal width. Knows no finding."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from specserve.diagnostics import Span
from specserve.profile.secrets import hushed
from specserve.profile.texts import recall
from specserve.report.console import clean

_WIDTH = 100
"""Columns of a source line that are shown; the marked part is never cut at its start."""
_LEAD = 30
_NAMED = re.compile(
    r"""(?ix) (?:api_?keys?|token|tokens(?!["']?\s*[:=]\s*["']?[\d._]+[kmg]?(?:[\s"'#,}\]]|$))
          |secrets?|passwords?|passwd|credentials?|access_key) ["']? \s* [:=] \s* ["']?
        (?P<value>[^\s"'#,{}\[\]]{6,})"""
)
"""Keys whose values are not shown, whatever they hold; `max_num_batched_tokens: 131072` is a number of tokens."""


class Sources:
    """The text of the files that findings point to, read once. `hidden` spans are never shown."""

    def __init__(self, hidden: Iterable[Span] = ()) -> None:
        self._files: dict[str, list[str]] = {}
        self._hidden = list(hidden)

    def line(self, span: Span) -> str | None:
        """The line of a span with secrets starred out, or None where there is none to show."""
        if span.file not in self._files:
            try:
                text = recall(span.file).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
            except (OSError, ValueError):
                text = ""
            self._files[span.file] = text.split("\n")
        lines = self._files[span.file]
        if not 0 < span.line <= len(lines):
            return None
        return self._masked(lines[span.line - 1].rstrip("\r"), span)

    def _masked(self, text: str, place: Span) -> str:
        for span in self._hidden:
            if span.file == place.file and span.line <= place.line <= span.end_line:
                start = span.column - 1 if span.line == place.line else 0
                end = span.end_column - 1 if span.end_line == place.line else len(text)
                text = text[:start] + "*" * (len(text[start:end])) + text[end:]
        return _without_secrets(text)


def masked(key: str, value: str) -> str:
    """A value as it may be shown beside its key: starred out where key or value look like a secret's."""
    prefix = f"{key}: "
    return _without_secrets(prefix + value).removeprefix(prefix)


def _without_secrets(text: str) -> str:
    return hushed(_NAMED.sub(lambda match: match[0].replace(match["value"], "*" * len(match["value"])), text))


def snippet(text: str, marks: Iterable[tuple[Span, str, str]], *, number: int, width: int) -> list[str]:
    """A line and a row of marks for each `(span, label, mark)` in it. Tabs become one space.

    A line that is too long is shown as often as it takes to show every mark, such as that of a whole command.
    """
    text = text.replace("\t", " ")
    return [
        row for part in _windows(text, list(marks)) for row in _window(text, part, number=number, width=width)
    ]


def _window(text: str, marks: list[tuple[Span, str, str]], *, number: int, width: int) -> list[str]:
    """One part of a line with the marks in it."""
    shown, shift = _cropped(text, first=_first(marks))
    rows = [f"{number:>{width}} | {shown}"]
    for span, label, mark in marks:
        end = span.end_column - 1 if span.end_line == span.line else len(text)
        start = min(span.column - 1, len(text))
        length = _columns(text[start : max(end, start)].rstrip())
        lead = " " * (_columns(text[shift:start]) + (1 if shift else 0))
        room = max(1, min(length, _WIDTH - len(lead)))
        row = f"{' ' * width} | {lead}{mark * room} {clean(label)}"
        rows.append(row.rstrip())
    return rows


def _windows(text: str, marks: list[tuple[Span, str, str]]) -> list[list[tuple[Span, str, str]]]:
    """The marks by the parts of the line that show them, in the order of the line."""
    waiting, parts = sorted(marks, key=lambda mark: mark[0].column), []
    while waiting:
        _, shift = _cropped(text, first=_first(waiting))
        seen = [mark for mark in waiting if _columns(text[shift : mark[0].column - 1]) < _WIDTH] or waiting[
            :1
        ]
        parts.append([mark for mark in marks if mark in seen])
        waiting = [mark for mark in waiting if mark not in seen]
    return parts


def _first(marks: Iterable[tuple[Span, str, str]]) -> int:
    return min(span.column for span, _, _ in marks) - 1


def _cropped(text: str, *, first: int) -> tuple[str, int]:
    """The part of a line that is shown, and how many characters before it are not."""
    if _columns(text) <= _WIDTH:
        return clean(text), 0
    shift = max(0, first - _LEAD) if first > _WIDTH - _LEAD else 0
    part = text[shift:]
    while _columns(part) > _WIDTH:
        part = part[: min(len(part) - 1, _WIDTH)]
    tail = "…" if shift + len(part) < len(text) else ""
    return f"{'…' if shift else ''}{clean(part)}{tail}", shift


def _columns(text: str) -> int:
    """How many columns a terminal takes for it."""
    return sum(_width(character) for character in clean(text))


def _width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
