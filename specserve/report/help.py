"""The text of `--help`: usage, examples, what a command does, and its options in groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from textwrap import wrap

_NOTES = re.compile(r"\s*\[([^\[\]]*)\]$")
_LIMITS = re.compile(r"(?:(-?[\d.]+)<=)?x(?:([<>])=(-?[\d.]+))?")
_DEFAULT = re.compile(r"\(default: ([^()]*)\)\.$")
_MOST_COLUMNS = 100
_COLUMN = 30
"""Where the second column starts at the latest; a longer name stands on a line of its own."""


def format_help(
    usage: str, about: str, groups: Mapping[str, Iterable[tuple[str, str]]], *, columns: int
) -> str:
    """Returns the help in lines of at most `columns` (100 if there are more), broken at blanks only.

    `about` is a docstring: a sentence, paragraphs, and behind a form feed examples that stay as they are.
    `groups` has rows of a name and its meaning by the title of their group.
    """
    width = max(40, min(columns, _MOST_COLUMNS))
    text, _, examples = about.partition("\b")
    summary, *paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    lines = [*_wrapped(f"Usage: {usage}", width, " " * 7), "", *_wrapped(summary, width)]
    if examples.strip():
        lines += ["", "Examples:", *(f"  {line.strip()}" for line in examples.strip().split("\n"))]
    for paragraph in paragraphs:
        lines += ["", *_wrapped(paragraph, width)]
    rows = {title: list(each) for title, each in groups.items()}
    start = min(_COLUMN, max((len(name) for each in rows.values() for name, _ in each), default=0) + 4)
    for title, each in rows.items():
        lines += ["", f"{title}:", *_rows(each, start, width)]
    return "\n".join(lines)


def with_limits(text: str) -> str:
    """The help of an option with click's notes as words: `[default: 8; x>=1]` becomes `(default: 8; at least 1)`.

    >>> with_limits("Stop after this many tokens.  [default: 256; x>=1]")
    'Stop after this many tokens (default: 256; at least 1).'
    """
    found = _NOTES.search(text)
    if not found:
        return text
    notes = [_in_words(note) for note in found[1].split("; ") if note != "required"]
    text = text[: found.start()]
    default = _DEFAULT.search(text)
    if default:
        text, notes = text[: default.start()].rstrip() + ".", [f"default: {default[1]}", *notes]
    return f"{text.removesuffix('.')} ({'; '.join(notes)})." if notes else text


def _in_words(note: str) -> str:
    limits = _LIMITS.fullmatch(note)
    if not limits:
        return note
    least, direction, bound = limits.groups()
    if least is not None:
        return f"{least} to {bound}"
    return f"at {'least' if direction == '>' else 'most'} {bound}"


def _rows(rows: list[tuple[str, str]], start: int, width: int) -> list[str]:
    lines = []
    for name, text in rows:
        first, *rest = _wrapped(text, width - start) or [""]
        lead = f"  {name}".ljust(start)
        lines += [lead + first] if len(lead) == start and lead.endswith("  ") else [lead, " " * start + first]
        lines += [" " * start + line for line in rest]
    return [line.rstrip() for line in lines]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
