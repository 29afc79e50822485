"""The value of an option as a tree whose values know their place: JSON, numbers, switches, lists."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import yaml

from specserve.convert.options import Option
from specserve.convert.words import Word
from specserve.diagnostics import Finding, Severity, Span
from specserve.plan.table import Argument
from specserve.profile.numbers import human_int
from specserve.profile.scalars import meaning
from specserve.profile.tree import Node, Scalar

MAX_DEPTH = 50
_OBJECT = re.compile(r"(?s)\s*\{.*\}\s*")
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_PAIRS = re.compile(r"\w+=\d+(,\w+=\d+)*")
_EXAMPLE = """in a shell, single quotes stand around it: '{"key": "value"}'"""


class NotJson(ValueError):
    """Why a text is no JSON; `position` counts its characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def json_node(word: Word) -> Node:
    """The JSON value that a word holds, each value and key with its columns. Raises NotJson."""
    try:
        json.loads(word.text)
        tree: Any = yaml.compose(
            word.text.replace("\t", " "), Loader=yaml.SafeLoader
        )  # YAML tells the places
        return _placed(word, tree, depth=0)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg[0].lower() + error.msg[1:], error.pos) from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply", 0) from error
    except yaml.YAMLError as error:
        raise NotJson("it holds a character that no profile may hold", 0) from error
    except ValueError as error:  # more digits than Python converts
        raise error if isinstance(error, NotJson) else NotJson("a number is too long", 0) from error


def _placed(word: Word, tree: yaml.Node, *, depth: int) -> Node:
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


def json_of_pairs(text: str) -> str | None:
    """`image=4,video=1`, as earlier vLLMs took it, as JSON; None for a text of another form."""
    if not _PAIRS.fullmatch(text):
        return None
    pairs = (pair.split("=") for pair in text.split(","))
    return json.dumps({name: int(number) for name, number in pairs})


def wrong_value(message: str, span: Span, *, help: str | None = None) -> Finding:
    """An error about what follows an option."""
    return Finding("SD105", "wrong-argument-value", Severity.ERROR, message, span, help=help)


def node_of(option: Option, found: list[Finding]) -> Node | None:
    """The value of an option, its key the option's own word; None and a finding if it has no usable one."""
    argument, place = option.argument, option.word.span
    if (option.takes_value or option.keys) and not option.values:
        found.append(wrong_value(f"`{option.flag}` needs a value", place))
        return None
    try:
        node = _dotted(option) if option.keys else _whole(option)
    except NotJson as error:
        word = option.values[0]
        at = min(error.position, max(len(word.text) - 1, 0))
        pairs = json_of_pairs(word.text)
        help_text = f"write `'{pairs}'`" if pairs else _EXAMPLE
        message = f"the value of `{option.flag}` is no JSON: {error}"
        found.append(wrong_value(message, word.part(at, at + 1).span, help=help_text))
        return None
    if argument and argument.form == "flag" and option.inline and not option.keys:
        text = f"`{option.flag}` is a switch and takes no value"
        found.append(wrong_value(text, option.values[0].span, help=f"write `{option.flag}`, or leave it out"))
    return replace(node, key=place)


def _whole(option: Option) -> Node:
    """The value of an option that is no part of another one's."""
    argument, words = option.argument, option.values
    form = argument.form if argument else "many" if len(words) > 1 else "json_or_str"
    if not words or form == "flag":
        return Node(not option.negative, option.word.span)
    text, span = words[0].text, words[0].span
    if form == "json" or (form == "json_or_str" and _OBJECT.fullmatch(text)):
        return Node(None, span) if text in ("", "None") else json_node(words[0])
    if form == "comma":
        return Node([Node(_scalar(part, argument), span, raw=part) for part in text.split(",")], span)
    if form in ("many", "append"):
        items = [Node(_scalar(word.text, argument), word.span, raw=word.text) for word in words]
        last = items[-1].span
        return Node(items, replace(span, end_line=last.end_line, end_column=last.end_column))
    return Node(_scalar(text, argument), span, raw=text)


def _scalar(text: str, argument: Argument | None) -> Scalar:
    """A text as this argument takes it; what does not fit stays a text, for the rules to report."""
    kind = argument.kind if argument else "bool"
    if argument and argument.nullable and text == "None":
        return text
    if kind == "int" or (argument and kind == "list" and not argument.choices):
        return int(text) if _INTEGER.fullmatch(text) else text
    if kind == "float":
        number = meaning(text)
        return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else text
    return meaning(text) if kind == "bool" else text


def _dotted(option: Option) -> Node:
    """`--x.a.b value` as `{a: {b: value}}`: JSON, else a number such as 80g, else the text; `--x.a+ b,c` as texts."""
    word = option.values[0]
    if option.appended:
        node = Node([Node(part, word.span, raw=part) for part in word.text.split(",")], word.span)
    else:
        try:
            node = json_node(word)
        except NotJson:
            number = human_int(word.text)
            node = Node(word.text if number is None else number, word.span, raw=word.text)
    for key in reversed(option.keys):
        node = Node({key: replace(node, key=option.word.span)}, word.span)
    return node


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
