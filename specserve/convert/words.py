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
from specserve.vllm.arguments import human_int

OPEN, CLOSE = "\ue000", "\ue001"
"""Marks around what a text does not say: the name of a variable, `a command`. No profile holds one."""
UNKNOWN = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}?")
_IF, _ONE_OF = "\ue002", "\ue003"
_SPECIAL = {ord(mark): chr(0xE100 + ord(mark)) for mark in " \t\n\"'`$\\(){}[]<>|&;*?!#=~^"}
"""What a shell would read, as it stands in a mark."""
_PLAIN = {ord(mark): chr(letter) for letter, mark in _SPECIAL.items()}
_PRIVATE = re.compile("[$\ue000-\uf8ff]")
OBJECT = re.compile(r"(?s)\s*\{.*\}\s*")
LONGEST_SHOWN = 300  # characters of what a text leaves open, its conditions included
_PAIRS = re.compile(r"\w+=\d+(,\w+=\d+)*")
_BRACKETS = "\u2039\u203a"
"""Around the name of a placeholder in its mark, where a shell must not see `<` and `>`."""
_PLACEHOLDER = re.compile(r"(?<![^=])<(\w[\w .:/-]*)>$")


def unknown(name: str) -> str:
    """The mark of something that the text does not say; it holds no blank, so that no shell splits it."""
    return f"{OPEN}{'-'.join(name.split())}{CLOSE}"


def unknown_if(text: str, condition: str) -> str:
    """The mark of a text that is there under a condition; both as a person reads them."""
    return f"{OPEN}{readable(text).translate(_SPECIAL)}{_IF}{readable(condition).translate(_SPECIAL)}{CLOSE}"


def unknown_choice(name: str, values: Iterable[tuple[str, str]]) -> str:
    """The mark of a variable that has one of several values, each under its condition."""
    said = "; ".join(f"{readable(text)} if {readable(condition)}" for text, condition in values)
    return f"{OPEN}{name}{_ONE_OF}{said.translate(_SPECIAL)}{CLOSE}"


def parts_if(text: str) -> tuple[str, str] | None:
    """The text and the condition of a word that is a mark with a condition."""
    if not text.startswith(OPEN) or text.count(OPEN) > 1 or _IF not in text:
        return None
    added, _, condition = text.strip(OPEN + CLOSE).translate(_PLAIN).partition(_IF)
    return added, condition


def adds_options(text: str) -> bool:
    """Whether a word is the mark of options that are there under a condition."""
    return text.startswith(f"{OPEN}-") and _IF in text


@dataclass(frozen=True, slots=True)
class Word:
    """One argument and its place."""

    text: str
    span: Span

    def part(self, start: int, end: int | None = None) -> Word:
        """The characters from `start` to `end` as a word of their own, with their place if no quote moved them."""
        text, span = self.text[start:end], self.span
        if span.line == span.end_line and span.end_column - span.column == len(self.text):
            column = span.column + start
            span = replace(span, column=column, end_column=column + max(1, len(text)))
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
        text, is_conditional, condition = match[1].translate(_PLAIN).partition(_IF)
        if is_conditional:
            return f"{text} if {condition}"
        text, is_choice, values = text.partition(_ONE_OF)
        if is_choice:
            return f"${text}: {values}"
        if text.startswith(_BRACKETS[0]):
            return f"<{text[1:-1]}>"
        return f"${text}" if re.fullmatch(r"\w+|[@*#]", text) else "$(…)"

    return UNKNOWN.sub(name, text)


def placeholder(name: str) -> str:
    """The mark of a `<name>` that the reader of a guide should replace."""
    return unknown(f"{_BRACKETS[0]}{name}{_BRACKETS[1]}")


def without_placeholder(word: Word) -> Word:
    """The word with such a mark for a `<name>` that is all of it, or all of its value."""
    return replace(word, text=_PLACEHOLDER.sub(lambda match: placeholder(match[1]), word.text))


def argv_words(argv: Iterable[str], *, file: str = COMMAND) -> tuple[str, list[Word]]:
    """The command line as one line that a shell reads back, and its words with their columns in it."""
    shown = [shlex.quote(text).translate(dict.fromkeys(map(ord, "\n\r\t"), " ")) for text in argv]
    words: list[Word] = []
    column = 1
    for text, whole in zip(argv, shown, strict=True):
        words.append(Word(text, Span(file, 1, column, 1, column + len(whole))))
        column += len(whole) + 1
    return " ".join(shown), words


class NotJson(ValueError):
    """Why a text is not JSON."""


def json_node(word: Word) -> Node:
    """The JSON value that a word holds. Raises NotJson."""
    try:
        return value_node(json.loads(word.text), word.span)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg[0].lower() + error.msg[1:]) from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error
    except ValueError as error:  # more digits than Python converts
        raise NotJson("a number is too long") from error


def value_node(value: Any, span: Span, key: Span | None = None) -> Node:
    """A plain value as a tree whose parts all have one place."""
    if isinstance(value, dict):
        return Node({str(name): value_node(item, span, span) for name, item in value.items()}, span, key)
    if isinstance(value, list):
        return Node([value_node(item, span) for item in value], span, key)
    return Node(value, span, key, None if value is None or isinstance(value, str) else str(value))


def plain(node: Node) -> Any:
    """The value of a tree without its places."""
    if node.mapping is not None:
        return {key: plain(item) for key, item in node.mapping.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value


_NUMBERS = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')|(?<=[:\[,\s])(\d+(?:\.\d+)?[kKmMgGtT])(?=\s*[,\]}])""")
"""`80m`, which vLLM takes without quotes in the JSON of a class, and what stands in quotes."""


def repaired_json(text: str) -> str | None:
    """The JSON of `image=4,video=1`, as earlier vLLMs took it, or of a mapping in Python or YAML; else None."""
    if _PAIRS.fullmatch(text):
        items = (pair.split("=") for pair in text.split(","))
        return json.dumps({name: int(number) for name, number in items})
    if OBJECT.fullmatch(text) and not re.search("[$&]", text):  # `&`: an alias could grow without bounds
        with suppress(yaml.YAMLError, RecursionError, TypeError, ValueError):
            plain = _NUMBERS.sub(lambda found: found[1] or str(human_int(found[2]) or found[2]), text)
            made = json.dumps(yaml.safe_load(plain), allow_nan=False)
            return None if re.search('null|"None"', made) else made  # `{key:value}` is a key without a value
    return None
