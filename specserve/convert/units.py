"""systemd's services to the launches that they make.

Sources: systemd.service(5), "COMMAND LINES"; systemd.syntax(7).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from specserve.convert.launch import ASSIGNMENT, Launch, starts
from specserve.convert.words import Note, Word, placeholder, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError, quoted

_VARIABLE = re.compile(r"\$\$|\$\{(\w+)\}|\$(\w+)$")
_SPECIFIER = re.compile(r"%(%|[a-zA-Z])")
_SETUP = ("ExecStartPre", "ExecStartPost", "ExecCondition")
_READ = ("ExecStart", "Environment", "WorkingDirectory", "EnvironmentFile", *_SETUP)


def units(text: str, *, file: str) -> list[Launch]:
    """Every engine that a unit starts. Raises UsageError for a line that cannot be read."""
    said: dict[str, list[Word]] = {}
    left: list[str] = []
    for section, key, word in _lines(text, file=file):
        if section == "Service" and key in _READ:
            said[key] = [*said.get(key, []), word] if word.text else []
        elif section == "Service":
            left.append(f"{key}={word.text}")
    env: dict[str, Word] = {}
    for line in said.get("Environment", []):
        for word in _split(line):
            if assigned := ASSIGNMENT.fullmatch(word.text):
                env[assigned[1]] = Word(_SPECIFIER.sub(_specified, assigned[2]), word.span)
    notes = []
    for word in (word for key in _SETUP for word in said.get(key, [])):
        text = f"set-up around the launch is left out: {quoted(word.text)}; `render` cannot do it"
        notes.append(Note("", text, word.span.line))
    for word in said.get("EnvironmentFile", []):
        name = quoted(word.text.lstrip("-"))
        text = f"the variables in {name} are not read: export them where you start the server"
        notes.append(Note("", text, word.span.line))
    folder = next((word.text for word in said.get("WorkingDirectory", [])), "")
    found = []
    for line in said.get("ExecStart", []):
        line = replace(line, text=re.sub(r"^[-@:+!|]*", "", line.text))  # noqa: PLW2901
        words = [item for word in _split(line) for item in _expanded(word, env)]
        if words:
            around = Launch("vllm", words[0], env=env, notes=notes, left_out=left, folder=folder)
            found += starts(words, around)
    return found


def _lines(text: str, *, file: str) -> Iterator[tuple[str, str, Word]]:
    """Each setting of a unit with its section; a line that ends in a backslash goes on."""
    section, whole, start = "", "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.lstrip().startswith(("#", ";")) or (not whole and not line.strip()):
            continue
        whole, start = whole + line.rstrip("\r"), start if whole else number
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        key, sign, value = whole.partition("=")
        if match := re.fullmatch(r"\s*\[([\w-]+)\]\s*", whole):
            section = match[1]
        elif sign:
            text, key = value.strip(), key.strip()
            yield section, key, Word(text, Span(file, start, 1, number, len(line) + 1))
        whole = ""


def _split(line: Word) -> list[Word]:
    """The words of a setting; systemd's quotes are a shell's."""
    try:
        return [Word(part, line.span) for part in shlex.split(line.text)]
    except ValueError as error:
        raise UsageError(
            f"line {line.span.line} of `{line.span.file}` cannot be read: {error}"
        ) from error


def _expanded(word: Word, env: dict[str, Word]) -> list[Word]:
    """A word with the unit's variables: several if it is `$X`. What is not set stays a mark."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return "$" if name is None else env[name].text if name in env else unknown(name)

    text = _VARIABLE.sub(value, _SPECIFIER.sub(_specified, word.text))
    parts = text.split() if re.fullmatch(r"\$\w+", word.text) else [text]
    return [Word(part, word.span) for part in parts]


def _specified(found: re.Match[str]) -> str:
    return "%" if found[1] == "%" else placeholder(f"%{found[1]}")
