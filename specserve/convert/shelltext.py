"""Shell text to the words of its commands, by `shlex`: nothing is run. Knows no program.

What only a shell could know stays a mark in the word: `\\ue000NAME\\ue001`.
"""

from __future__ import annotations

import io
import re
import shlex
import textwrap
from collections.abc import Iterator

from specserve.convert.invocation import ASSIGNMENT
from specserve.convert.words import CLOSE, OPEN, UNKNOWN, Word
from specserve.diagnostics import Span
from specserve.errors import UsageError

_LITERAL, _COMMAND = "\ue002", "\ue003"  # a dollar sign in single quotes; a character of `$(…)`
_BLANK = "\ue004"  # a blank in `${…}`, which divides no words
_SEPARATORS = ";&|()\n"
_CONTINUED = re.compile(r"[\\^`][ \t]*\r?\n")
_REDIRECT = re.compile(r"(?:\d|&)?>>?[ \t]*(?:&\d|[^\s;&|()]+)")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(\[@\]|\[\*\])|:?[-=]([^}]*))?\}|\{[^}]*\})")
_APPENDED = re.compile(r"([A-Za-z_]\w*)\+=(.*)", re.S)
_GAP = re.compile(r"[ \t\r]*")
_PROMPT = re.compile(r"\$(?= )|[!%](?=[a-z])")
_START = re.compile(r"^.*(?:vllm\s+serve|api_server|launch_server|sglang\s+serve|/vllm|\bvllm-)", re.M)
_MOST_WORDS = 20_000
_LONGEST = 100_000
"""Characters of a word, once its variables are replaced."""

_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "until", "{", "!", "time")
_OPENS, _CLOSES = ("if", "case", "while", "until", "for"), ("fi", "esac", "done")
_DECLARES = ("export", "declare", "local", "readonly", "set", "setx")

Variables = dict[str, list[str]]


def commands(text: str, *, file: str) -> Iterator[list[Word]]:
    """Each simple command of a script, its variables replaced by what the script set them to.

    Raises UsageError where a quote is never closed.
    """
    variables: Variables = {}
    begin, started = 0, False
    while True:
        depth = 0
        try:
            for command in _split(text[begin:], before=text[:begin].count("\n"), file=file):
                depth = max(0, depth + _deeper(command))
                words = _assigned(_after_keywords(command), variables, sure=depth == 0)
                if words:
                    yield words
            return
        except ValueError as error:
            # prose around a command may hold an apostrophe: begin again where the command does
            first = None if started else _START.search(text)
            if first is None:
                raise UsageError(f"`{file}` is no shell text: {str(error).lower()}") from error
            begin, started = first.start(), True


def _split(text: str, *, before: int, file: str) -> Iterator[list[Word]]:
    """The words of one command after the other. Raises ValueError for an open quote, at its command."""
    prepared = _protected(text)
    stream = io.StringIO(prepared)
    lexer = shlex.shlex(stream, posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    words: list[Word] = []
    count, end, listed = 0, 0, False
    line, counted = before + 1, 0
    while True:
        token = lexer.get_token()
        gap = _GAP.match(prepared, end)
        start, end = gap.end() if gap else end, stream.tell()
        count += 1
        if token is None or count > _MOST_WORDS:
            break
        if token and not token.strip(_SEPARATORS):
            opens = token.startswith("(") and bool(words) and words[-1].text.endswith("=")
            if listed and ")" not in token:
                continue  # a list may go over several lines
            if opens or listed:
                closed = ")" in token
                words += [Word(mark, words[-1].span) for mark in ("(" * opens, ")" * closed) if mark]
                listed = not closed
            if words and not listed:
                yield words
                words = []
            continue
        line += text.count("\n", counted, start)
        counted = max(counted, start)
        words.append(Word(token.replace(_BLANK, " "), Span(file, line, 1, line, 1)))
    if words:
        yield words


def _protected(text: str) -> str:
    """The text, no longer and no shorter, without comments, continued lines, redirections and here-documents."""
    out, at, quote = list(text), 0, ""
    fresh, continued = True, False
    while at < len(text):
        character, end = text[at], at + 1
        line_end = _CONTINUED.match(text, at) if quote != "'" else None
        if line_end:
            end, character, continued = line_end.end(), " ", True
            _blank(out, at, end)
        elif quote == "'":
            quote = "" if character == "'" else quote
            out[at] = _LITERAL if character == "$" else character
        elif character == "\\":
            end = at + 2
        elif text.startswith("$(", at):
            end = _closing(text, at + 1)
            out[at:end] = [part if part == "\n" else _COMMAND for part in text[at:end]]
        elif not quote and text.startswith("${", at):
            end = text.find("}", at) + 1 or end
            out[at:end] = [_BLANK if part in " \t" else part for part in text[at:end]]
        elif character == '"':
            quote = "" if quote else '"'
        elif not quote and character == "'":
            quote = "'"
        elif not quote and fresh:
            end = _no_word(text, at, continued=continued)
            _blank(out, at, end)
            end = max(end, at + 1)
        fresh = character in " \t\r\n;&|("
        continued = continued and character in " \t\r#"
        at = end
    return "".join(out)


def _no_word(text: str, at: int, *, continued: bool) -> int:
    """Where that ends which stands where a word may begin, and is none; else the place itself."""
    if text[at] == "#":
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        return min(end + 1, len(text)) if continued else end  # a comment between continued lines
    heredoc = _HEREDOC.match(text, at)
    if heredoc:
        body = re.compile(rf"^\s*{heredoc[2]}\s*$", re.M).search(text, heredoc.end())
        return body.end() if body else len(text)
    redirect = _REDIRECT.match(text, at)
    if redirect:
        return redirect.end()
    prompt = _PROMPT.match(text, at)
    alone = prompt and not text[text.rfind("\n", 0, at) + 1 : at].strip()
    return prompt.end() if prompt and alone else at


def heredocs(text: str) -> list[str]:
    """The here-documents of a script, without the blanks that all of their lines begin with."""
    found, at = [], 0
    while start := _HEREDOC.search(text, at):
        body = text.find("\n", start.end()) + 1 or len(text)
        end = re.compile(rf"^[ \t]*{start[2]}[ \t]*$", re.M).search(text, body)
        at = end.end() if end else len(text)
        found.append(textwrap.dedent(text[body : end.start() if end else len(text)]))
    return found


def _blank(out: list[str], start: int, end: int) -> None:
    out[start:end] = " " * (end - start)


def _closing(text: str, at: int) -> int:
    """Behind the parenthesis that closes the one here."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text)


def _deeper(command: list[Word]) -> int:
    """By how many branches and loops this command leads further in, or out."""
    first = command[0].text
    return (first in _OPENS) - (first in _CLOSES)


def _after_keywords(command: list[Word]) -> list[Word]:
    """The command behind `then`, `do` and their like."""
    at = 0
    while at < len(command) - 1 and command[at].text in _KEYWORDS:
        at += 1
    return command[at:]


def _assigned(command: list[Word], variables: Variables, *, sure: bool = True) -> list[Word]:
    """The command with its references replaced. An assignment is remembered, and is a command if it is exported.

    In a branch (not `sure`) a value that only a run could know does not replace one that the script says.
    """
    exported = command[0].text == "export"
    declared = command[0].text in _DECLARES
    words = [word for word in command[1:] if not word.text.startswith("-")] if declared else command
    first = ASSIGNMENT.fullmatch(words[0].text.replace("+=", "=", 1)) if words else None
    if first and len(words) > 1 and words[1].text == "(":
        listed = [text for word in words[2:-1] for text in _texts(word.text, variables)]
        more = words[0].text.startswith(f"{first[1]}+=")
        variables[first[1]] = [*(variables.get(first[1], []) if more else []), *listed]
        return []
    appended = _APPENDED.fullmatch(words[0].text) if len(words) == 1 else None
    if appended:
        name, text = appended.groups()
        if sure and name in variables:  # in a branch nobody knows whether it is added
            variables[name] = [" ".join(variables[name]) + _text(text, variables)]
        return []
    pairs = [ASSIGNMENT.fullmatch(word.text) for word in words]
    if not words or not all(pairs):
        first_word = 1 if command[0].text == "eval" else 0
        return [
            Word(text, word.span)
            for at, word in enumerate(command)
            for text in _texts(word.text, variables, split=at == first_word)
        ]
    set_here = []
    for pair, word in zip(pairs, words, strict=True):
        if pair:
            value = _text(pair[2], variables)
            if sure or pair[1] not in variables or not UNKNOWN.search(value):
                variables[pair[1]] = [value]
            set_here.append(Word(f"{pair[1]}={variables[pair[1]][0]}", word.span))
    return [command[0], *set_here] if exported else []


def _texts(text: str, variables: Variables, *, split: bool = False) -> list[str]:
    """What a word becomes: several words, where it is one variable that holds options, or a whole command (`split`)."""
    whole = _REFERENCE.fullmatch(text)
    values = variables.get(whole[1] or whole[2] or "") if whole else None
    if whole and values is not None and (whole[3] or len(values) > 1):
        return values
    value = _text(text, variables)
    if whole and (split or re.match(r"-|.*\s-", value)):
        try:
            return shlex.split(value)
        except ValueError:
            return [value]
    return [value]


def _text(text: str, variables: Variables) -> str:
    """A text with each reference replaced by its value, its default, or a mark."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in variables:
            return " ".join(variables[name])
        if name == "HOME" and match.start() == 0:
            return "~"
        default = (match[4] or "").strip("\"'")
        if default:  # an empty one says that the variable may come from outside
            return default
        return f"{OPEN}{name or match[0]}{CLOSE}"

    text = re.sub(f"{_COMMAND}+", f"{OPEN}a command{CLOSE}", text)
    whole = sum(
        len(" ".join(variables.get(match[1] or match[2] or "", ()))) for match in _REFERENCE.finditer(text)
    )
    if whole > _LONGEST:
        raise ValueError("its variables grow without bounds")
    return _REFERENCE.sub(value, text).replace(_LITERAL, "$")
