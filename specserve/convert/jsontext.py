"""JSON text to a tree whose values know their place in it. Knows no key."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from specserve.convert.words import Word
from specserve.profile.tree import Node

MAX_DEPTH = 50
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_DECODER = json.JSONDecoder()
_LITERALS = {"true": True, "false": False, "null": None, "NaN": float("nan"), "Infinity": float("inf")}


class NotJson(ValueError):
    """Why a text is no JSON; `position` counts its characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def json_node(word: Word) -> Node:
    """The value that a word holds. A key that stands twice has the later value, as `json.loads` has it.

    Raises NotJson.
    """
    node, end = _value(word, _skip(word.text, 0), depth=0)
    end = _skip(word.text, end)
    if end != len(word.text):
        raise NotJson(f"the JSON ends at {_rest(word.text, end)}", end)
    return node


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _rest(text: str, at: int) -> str:
    return f"`{text[at : at + 12]}`" if at < len(text) else "its end"


def _value(word: Word, at: int, *, depth: int) -> tuple[Node, int]:
    text = word.text
    if depth > MAX_DEPTH:
        raise NotJson("it is nested too deeply", at)
    first = text[at : at + 1]
    if first == "{":
        return _object(word, at, depth=depth)
    if first == "[":
        return _array(word, at, depth=depth)
    if first == '"':
        string, end = _string(text, at)
        return Node(string, word.part(at, end).span), end
    for name, literal in _LITERALS.items():
        if text.startswith(name, at):
            end = at + len(name)
            return Node(literal, word.part(at, end).span, raw=name), end
    number = _NUMBER.match(text, at)
    if number is None:
        raise NotJson(f"a value is missing before {_rest(text, at)}", at)
    raw = number.group()
    return Node(_number(raw, at), word.part(at, number.end()).span, raw=raw), number.end()


def _number(raw: str, at: int) -> int | float:
    try:
        return float(raw) if re.search("[.eE]", raw) else int(raw)
    except ValueError as error:  # more digits than Python converts
        raise NotJson("a number is too long", at) from error


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg[0].lower() + error.msg[1:], error.pos) from error


def _object(word: Word, at: int, *, depth: int) -> tuple[Node, int]:
    text, start, values = word.text, at, dict[str, Node]()
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if values:
            at = _skip(text, _expected(text, ",", at))
        if text[at : at + 1] != '"':
            raise NotJson(f"a key in double quotes is missing before {_rest(text, at)}", at)
        key, end = _string(text, at)
        place = word.part(at, end).span
        at = _skip(text, _expected(text, ":", _skip(text, end)))
        value, at = _value(word, at, depth=depth + 1)
        values[key] = replace(value, key=place)
        at = _skip(text, at)
    return Node(values, word.part(start, at + 1).span), at + 1


def _array(word: Word, at: int, *, depth: int) -> tuple[Node, int]:
    text, start, values = word.text, at, list[Node]()
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        if values:
            at = _skip(text, _expected(text, ",", at))
        value, at = _value(word, at, depth=depth + 1)
        values.append(value)
        at = _skip(text, at)
    return Node(values, word.part(start, at + 1).span), at + 1


def _expected(text: str, mark: str, at: int) -> int:
    if text[at : at + 1] != mark:
        raise NotJson(f"`{mark}` is missing before {_rest(text, at)}", at)
    return at + 1
