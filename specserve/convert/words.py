"""The words of a command line, each with its place in one line of text, and JSON in a word."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from specserve.diagnostics import Finding, Severity, Span
from specserve.profile.source import COMMAND
from specserve.profile.tree import NAMES, Node

OPEN, CLOSE, _IF = "\ue000", "\ue001", "\ue002"
UNKNOWN = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}?")
"""A mark in the place of what a text does not say. No profile holds one."""
_SPECIAL = {ord(mark): chr(0xE100 + ord(mark)) for mark in " \t\n\"'`$\\(){}[]<>|&;*?!#=~^"}
"""What a shell would read, as it stands in a mark."""
_PLAIN = {ord(mark): chr(letter) for letter, mark in _SPECIAL.items()}
_PRIVATE = re.compile("[$\ue000-\uf8ff]")
LONGEST_SHOWN = 300  # characters of what a text leaves open, its conditions included
OBJECT = re.compile(r"(?s)\s*\{.*\}\s*")
_PAIRS = re.compile(r"\w+=\d{1,9}(,\w+=\d{1,9})*")
_PLACEHOLDER = re.compile(r"(?<![^=])<(\w[\w .:/-]*)>$")
_NAMES = {**NAMES, "SD102": "unknown-argument", "SD107": "secret-in-profile"}
_NAMES["SD105"] = "wrong-argument-value"


def mark(text: str, condition: str = "") -> str:
    """The mark of a text that is not said, or is there under a condition; no shell splits it."""
    said = f"{readable(text)}{_IF}{readable(condition)}" if condition else readable(text)
    return f"{OPEN}{said.translate(_SPECIAL)}{CLOSE}"


def unknown(name: str) -> str:
    """The mark of a variable, or of what has no name, such as `a command`."""
    return mark(f"${name}" if re.fullmatch(r"\w+|[@*#]", name) else "$(…)")


def readable(text: str) -> str:
    """A text with what each mark in it stands for, such as `$X`, `<X>` or `--x if $X is set`."""
    return UNKNOWN.sub(lambda found: found[1].translate(_PLAIN).replace(_IF, " if "), text)


def parts_of(text: str) -> tuple[str, str]:
    """What a word says, and under which condition if it is a mark with one."""
    whole = UNKNOWN.fullmatch(text)
    said, _, condition = (whole[1].translate(_PLAIN) if whole else readable(text)).partition(_IF)
    return said, condition


def adds_options(text: str) -> bool:
    """Whether a word is the mark of options that are there under a condition."""
    return text.startswith(f"{OPEN}-") and _IF in text


def unresolved(text: str) -> bool:
    """Whether a text leaves something open, such as a variable."""
    return bool(_PRIVATE.search(text))


@dataclass(frozen=True, slots=True)
class Word:
    """One argument and its place."""

    text: str
    span: Span

    def part(self, start: int, end: int | None = None) -> Word:
        """The characters from `start` to `end`, with their place if no quote moved them."""
        text, span = self.text[start:end], self.span
        if span.line == span.end_line and span.end_column - span.column == len(self.text):
            column = span.column + start
            span = span._replace(column=column, end_column=column + max(1, len(text)))
        return Word(text, span)

    def node(self) -> Node:
        """The word as a value of a profile's tree."""
        return Node(self.text, self.span, key=self.span, raw=self.text)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a profile says otherwise than the text it comes from, and why."""

    path: str
    """Where the profile's comment stands: a dotted path, or `` for the head of the file."""
    text: str
    line: int = 0  # of the text; 0 where it has none


def finding(
    code: str, message: str, span: Span, severity: Severity = Severity.ERROR, **more: Any
) -> Finding:
    """A finding about a command line, under the code of the rule that says it of a profile."""
    return Finding(code, _NAMES[code], severity, message, span, **more)


def without_placeholder(word: Word) -> Word:
    """The word with a mark for a `<name>` that is all of it, or all of its value."""
    return replace(word, text=_PLACEHOLDER.sub(lambda found: mark(f"<{found[1]}>"), word.text))


def argv_words(argv: Iterable[str], *, file: str = COMMAND) -> tuple[str, list[Word]]:
    """The command as one line that a shell reads back, and its words with their columns in it."""
    shown = [shlex.quote(text).translate(dict.fromkeys(b"\n\r\t", " ")) for text in argv]
    words: list[Word] = []
    column = 1
    for text, whole in zip(argv, shown, strict=True):
        words.append(Word(text, Span(file, 1, column, 1, column + len(whole))))
        column += len(whole) + 1
    return " ".join(shown), words


def json_node(word: Word) -> Node:
    """The JSON value that a word holds. Raises ValueError, which says why it is none."""
    try:
        return value_node(json.loads(word.text), word.span)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg[0].lower() + error.msg[1:]) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_of_pairs(text: str) -> str | None:
    """JSON of `image=4,video=1`, as vLLM once took it; None for any other text."""
    if not _PAIRS.fullmatch(text):
        return None
    pairs = (part.partition("=") for part in text.split(","))
    return json.dumps({name: int(number) for name, _, number in pairs})


def value_node(value: Any, span: Span, key: Span | None = None) -> Node:
    """A plain value as a tree whose parts all have one place."""
    if isinstance(value, dict):
        items = {str(name): value_node(item, span, span) for name, item in value.items()}
        return Node(items, span, key)
    if isinstance(value, list):
        return Node([value_node(item, span) for item in value], span, key)
    return Node(value, span, key, None if value is None or isinstance(value, str) else str(value))


def plain(node: Node) -> Any:
    """The value of a tree without its places."""
    if node.mapping is not None:
        return {key: plain(item) for key, item in node.mapping.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value
