"""The values of an option to a tree: JSON, numbers, switches, lists. Knows no place in a profile."""

from __future__ import annotations

import re
from dataclasses import replace

from specserve.convert.jsontext import NotJson, json_node
from specserve.convert.options import Option
from specserve.convert.words import Word
from specserve.diagnostics import Finding, Severity, Span
from specserve.plan.table import Argument
from specserve.profile.numbers import human_int
from specserve.profile.scalars import meaning
from specserve.profile.tree import Node

_OBJECT = re.compile(r"(?s)\s*\{.*\}\s*")
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_PAIRS = re.compile(r"\w+=\d+(,\w+=\d+)*")
_EXAMPLE = """in a shell, single quotes stand around it: '{"key": "value"}'"""


def wrong_value(message: str, span: Span, *, help: str | None = None) -> Finding:
    """An error about what follows an option."""
    return Finding("SD105", "wrong-argument-value", Severity.ERROR, message, span, help=help)


def node_of(option: Option, found: list[Finding]) -> Node | None:
    """The value of an option, its key the option's own word; None, and a finding, where it has none to use."""
    argument, place = option.argument, option.word.span
    if (option.takes_value or option.keys) and not option.values:
        found.append(wrong_value(f"`{option.flag}` needs a value", place))
        return None
    try:
        node = _dotted(option) if option.keys else _node(option, argument)
    except NotJson as error:
        found.append(_no_json(option, error))
        return None
    if argument and argument.form == "flag" and option.inline and not option.keys:
        text = f"`{option.flag}` is a switch and takes no value"
        found.append(wrong_value(text, option.values[0].span, help=_switch(option)))
    return replace(node, key=place)


def _switch(option: Option) -> str | None:
    word = option.values[0].text.lower()
    if word not in ("false", "0", "no", "off"):
        return f"write `{option.flag}` alone"
    negatable = option.argument and option.argument.negatable
    return f"write `--no-{option.flag.removeprefix('--')}`" if negatable else "leave it out"


def _no_json(option: Option, error: NotJson) -> Finding:
    word = option.values[0]
    at = min(error.position, max(len(word.text) - 1, 0))
    message = f"the value of `{option.flag}` is no JSON: {error}"
    pairs = json_of_pairs(word.text)
    help_text = f"write `'{pairs}'`" if pairs else _EXAMPLE
    return wrong_value(message, word.part(at, at + 1).span, help=help_text)


def json_of_pairs(text: str) -> str | None:
    """`image=4,video=1`, as options of old had it, as JSON; None for a text of another form."""
    if not _PAIRS.fullmatch(text):
        return None
    pairs = (pair.split("=") for pair in text.split(","))
    return "{" + ", ".join(f'"{name}": {int(number)}' for name, number in pairs) + "}"


def _node(option: Option, argument: Argument | None) -> Node:
    if argument is None:
        return _free(option)
    if argument.form == "flag" or not option.values:
        return Node(not option.negative, option.word.span)
    first = option.values[0]
    if argument.form == "json" or (argument.form == "json_or_str" and _OBJECT.fullmatch(first.text)):
        return Node(None, first.span) if first.text in ("", "None") else json_node(first)
    if argument.form in ("many", "append"):
        items = [Node(_item(word.text, argument), word.span, raw=word.text) for word in option.values]
        return Node(items, Span(first.span.file, first.span.line, first.span.column,
                                option.values[-1].span.end_line, option.values[-1].span.end_column))  # fmt: skip
    if argument.form == "comma":
        parts = first.text.split(",")
        return Node([Node(_item(part, argument), first.span, raw=part) for part in parts], first.span)
    return Node(scalar(first.text, argument), first.span, raw=first.text)


def _free(option: Option) -> Node:
    """The value of an option that nobody knows, as a person would read it."""
    if not option.values:
        return Node(True, option.word.span)
    first = option.values[0]
    if _OBJECT.fullmatch(first.text):
        try:
            return json_node(first)
        except NotJson:
            return Node(first.text, first.span, raw=first.text)
    return Node(meaning(first.text), first.span, raw=first.text)


def _item(text: str, argument: Argument) -> int | str:
    """An item of a list: numbers where it is one of sizes."""
    return int(text) if _INTEGER.fullmatch(text) and not argument.choices else text


def scalar(text: str, argument: Argument) -> str | int | float | bool | None:
    """A text as this argument takes it; what does not fit stays a text, for the rules to tell."""
    if argument.nullable and text == "None":
        return text
    if argument.kind == "int":
        return int(text) if _INTEGER.fullmatch(text) else text
    if argument.kind == "float":
        number = meaning(text)
        return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else text
    if argument.kind == "bool":
        return meaning(text)
    return text


def _dotted(option: Option) -> Node:
    """`--x.a.b value` as `{a: {b: value}}`: JSON, else a number such as 80g, else the text."""
    word = option.values[0]
    node = _list(word) if option.appended else _json_or_text(word)
    for key in reversed(option.keys):
        node = Node({key: replace(node, key=option.word.span)}, word.span)
    return node


def _json_or_text(word: Word) -> Node:
    try:
        return json_node(word)
    except NotJson:
        number = human_int(word.text)
        return Node(word.text if number is None else number, word.span, raw=word.text)


def _list(word: Word) -> Node:
    """`a,b` of `--x.key+=a,b`: texts, whatever they look like."""
    return Node([Node(part, word.span, raw=part) for part in word.text.split(",")], word.span)


def merged(below: Node, above: Node) -> Node:
    """Two mappings of one option as one, as vLLM joins `--x.a 1 --x.b 2`; lists grow, the rest is replaced."""
    if isinstance(below.value, list) and isinstance(above.value, list):
        return replace(above, value=[*below.value, *above.value])
    if below.mapping is None or above.mapping is None:
        return above
    values = dict(below.mapping)
    for key, node in above.mapping.items():
        values[key] = merged(values[key], node) if key in values else node
    return replace(above, value=values)
