"""The words of a command line, each with its place in one line of text, and JSON in a word."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import yaml

from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.profile.source import COMMAND
from specserve.profile.values import Node

OPEN, CLOSE = "\ue000", "\ue001"
"""Marks around what a text does not say: the name of a variable, `a command`. No profile holds one."""
UNKNOWN = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}?")
_PRIVATE = re.compile("[$\ue000-\uf8ff]")
MAX_DEPTH = 50
OBJECT = re.compile(r"(?s)\s*\{.*\}\s*")
_PAIRS = re.compile(r"\w+=\d+(,\w+=\d+)*")
_BRACKETS = "\u2039\u203a"
"""Around the name of a placeholder in its mark, where a shell must not see `<` and `>`."""
_PLACEHOLDER = re.compile(r"(?<![^=])<(\w[\w .:/-]*)>$")


def unknown(name: str) -> str:
    """The mark of something that the text does not say; it holds no blank, so that no shell splits it."""
    return f"{OPEN}{'-'.join(name.split())}{CLOSE}"


_QUOTED_QUOTE = "'\"'\"'"  # how `shlex.quote` writes a single quote


@dataclass(frozen=True, slots=True)
class Word:
    """One argument. `columns` holds the column of each character and of the end; empty where they are unknown."""

    text: str
    span: Span
    columns: tuple[int, ...] = ()

    def part(self, start: int, end: int | None = None) -> Word:
        """The characters from `start` to `end` as a word of their own."""
        end = len(self.text) if end is None else end
        if not self.columns:
            return replace(self, text=self.text[start:end])
        columns = self.columns[start : end + 1]
        span = replace(self.span, column=columns[0], end_column=max(columns[-1], columns[0] + 1))
        return Word(self.text[start:end], span, columns)

    def node(self) -> Node:
        """The word as a value of a profile's tree."""
        return Node(self.text, self.span, key=self.span, raw=self.text)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a profile says otherwise than the text it comes from, and why."""

    path: str
    """Where the profile's comment stands: a dotted path, or `` for the head of the file."""
    text: str
    line: int = 0
    """Of the text; 0 where it has no lines."""


_NAMES = {
    "SD004": "duplicate-key",
    "SD005": "unknown-key",
    "SD006": "wrong-value",
    "SD102": "unknown-argument",
    "SD105": "wrong-argument-value",
    "SD107": "secret-in-profile",
    "SD108": "open-bind",
}


def finding(
    code: str,
    message: str,
    span: Span,
    *,
    severity: Severity = Severity.ERROR,
    help: str | None = None,
    related: tuple[Related, ...] = (),
) -> Finding:
    """A finding about a command line, under the code of the rule that says the same of a profile."""
    return Finding(code, _NAMES[code], severity, message, span, help=help, related=related)


def unresolved(text: str) -> bool:
    """Whether a text leaves something open, such as a variable."""
    return bool(_PRIVATE.search(text))


def readable(text: str) -> str:
    """A text with a name such as `$X` or `<X>` for each thing that it leaves open."""

    def name(match: re.Match[str]) -> str:
        if match[1].startswith(_BRACKETS[0]):
            return f"<{match[1][1:-1]}>"
        return f"${match[1]}" if match[1].isidentifier() else "$(…)"

    return UNKNOWN.sub(name, text)


def placeholder(name: str) -> str:
    """The mark of a `<name>` that the reader of a guide should replace."""
    return unknown(f"{_BRACKETS[0]}{name}{_BRACKETS[1]}")


def is_placeholder(text: str) -> bool:
    """Whether a text holds such a mark."""
    return _BRACKETS[0] in text and unresolved(text)


def without_placeholder(word: Word) -> Word:
    """The word with such a mark for a `<name>` that is all of it, or all of its value."""
    return replace(word, text=_PLACEHOLDER.sub(lambda match: placeholder(match[1]), word.text))


def argv_words(argv: Iterable[str], *, file: str = COMMAND) -> tuple[str, list[Word]]:
    """The command line as one line that a shell reads back, and its words with their columns in it."""
    line = ""
    words: list[Word] = []
    for text in argv:
        line += " " if words else ""
        shown, columns = _shown(text, start=len(line) + 1)
        span = Span(file, 1, len(line) + 1, 1, len(line) + 1 + max(1, len(shown)))
        words.append(Word(text, span, columns))
        line += shown
    return line, words


def _shown(text: str, *, start: int) -> tuple[str, tuple[int, ...]]:
    """A word as `shlex.quote` writes it, line ends as spaces, and the column of each of its characters."""
    if shlex.quote(text) == text:
        return text, tuple(range(start, start + len(text) + 1))
    shown, columns = "'", []
    for character in text:
        columns.append(start + len(shown))
        shown += _QUOTED_QUOTE if character == "'" else " " if character in "\n\r\t" else character
    return f"{shown}'", (*columns, start + len(shown))


class NotJson(ValueError):
    """Why a text is not JSON; `position` counts its characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def json_node(word: Word) -> Node:
    """The JSON value that a word holds, each value and key with its columns. Raises NotJson."""
    try:
        json.loads(word.text)
        # YAML tells the places
        return _placed(word, yaml.compose(word.text.replace("\t", " "), Loader=yaml.SafeLoader), depth=0)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg[0].lower() + error.msg[1:], error.pos) from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply", 0) from error
    except yaml.YAMLError as error:
        reason = "it has a character that no profile may have, or a key of over 1,024 characters"
        raise NotJson(reason, 0) from error
    except ValueError as error:  # more digits than Python converts
        raise error if isinstance(error, NotJson) else NotJson("a number is too long", 0) from error


def repaired_json(text: str) -> str | None:
    """The JSON of `image=4,video=1`, as earlier vLLMs took it, or of a mapping in Python or YAML; else None."""
    if _PAIRS.fullmatch(text):
        items = (pair.split("=") for pair in text.split(","))
        return json.dumps({name: int(number) for name, number in items})
    if OBJECT.fullmatch(text) and not re.search("[$&]", text):  # `&`: an alias could grow without bounds
        with suppress(yaml.YAMLError, RecursionError, TypeError, ValueError):
            made = json.dumps(yaml.safe_load(text), allow_nan=False)
            return None if re.search('null|"None"', made) else made  # `{key:value}` is a key without a value
    return None


def _placed(word: Word, tree: Any, *, depth: int) -> Node:
    """A part of a JSON text, by the characters where it begins and ends."""
    start, end = tree.start_mark.index, tree.end_mark.index
    if depth > MAX_DEPTH:
        raise NotJson("it is nested too deeply", start)
    part = word.part(start, end)
    if isinstance(tree, yaml.SequenceNode):
        return Node([_placed(word, item, depth=depth + 1) for item in tree.value], part.span)
    if isinstance(tree, yaml.ScalarNode):
        return Node(json.loads(part.text), part.span, raw=None if tree.style else part.text)
    values: dict[str, Node] = {}
    for key, value in tree.value:
        name = _placed(word, key, depth=depth)
        values[str(name.value)] = replace(_placed(word, value, depth=depth + 1), key=name.span)
    return Node(values, part.span)
