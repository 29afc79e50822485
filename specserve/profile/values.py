"""YAML values that know their place: what a plain scalar means, and values of the types that keys have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from specserve.diagnostics import Span
from specserve.errors import CONTROL, quoted
from specserve.profile.keys import PERCENTILES, WORDS, Key, Kind
from specserve.profile.schema import DEVICE
from specserve.vllm.arguments import human_int

Scalar = None | bool | int | float | str


class Ambiguous(str):
    """A plain scalar that YAML 1.1 reads differently from a person, such as `010` (8); as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One value: a scalar, a list of nodes or a mapping of nodes, with the place of the value and its key."""

    value: Scalar | list[Node] | dict[str, Node]
    span: Span
    key: Span | None = None
    raw: str | None = None
    """The text of a plain scalar, before YAML turned it into something else."""
    is_relative: bool = False
    """A path that was written from a folder, and made absolute."""
    unset: bool = False
    """A null that takes an inherited key away, which is not the same as a null of its own."""

    @property
    def mapping(self) -> dict[str, Node] | None:
        """The value if it is a mapping."""
        return self.value if isinstance(self.value, dict) else None

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Every value below with its dotted path: `target.model`, `expect[0].workload`."""
        yield path, self
        if isinstance(self.value, dict):
            for key, child in self.value.items():
                yield from child.walk(f"{path}.{key}" if path else key)
        elif isinstance(self.value, list):
            for index, child in enumerate(self.value):
                yield from child.walk(f"{path}[{index}]")


def merged(parent: Node, child: Node, *, path: tuple[str, ...] = ()) -> Node:
    """The child over its parent: maps merge, lists and scalars replace, null unsets.

    A block of speculation merges only where the child keeps the method; with another one it is replaced whole.
    `path`: where the two stand.
    """
    above, below = parent.mapping, child.mapping
    if child.value is None:
        return replace(child, unset=parent.value is not None or parent.unset)
    if above is None or below is None:
        return child
    is_block = path == ("speculation",) or (len(path) == 2 and path[0] == "alternatives")
    method = above["method"].value if "method" in above else None
    if is_block and "method" in below and below["method"].value != method:
        return child
    values = dict(above)
    for key, node in below.items():
        values[key] = merged(values[key], node, path=(*path, key)) if key in values else node
    return replace(child, value=values)


_NULLS = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_LONGEST_NUMBER = 30  # no number of a profile is longer; digits of a hash may be


def meaning(text: str) -> Scalar:
    """`1e-3` is a number, `yes` is true, `12:30:45` and dates are text, `010` is Ambiguous."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if len(text) > _LONGEST_NUMBER:
        return text
    digits = text.replace("_", "")
    if _INT.fullmatch(text):
        return int(digits, 16) if "x" in digits else int(digits)
    if _LEADING_ZERO.fullmatch(text):
        return Ambiguous(text)
    return float(digits) if _FLOAT.fullmatch(text) else text


class Unfit(ValueError):
    """Why a value cannot be what its key takes: the rest of a sentence that begins with the key's path."""

    def __init__(self, reason: str, *, help: str | None = None) -> None:
        super().__init__(reason)
        self.help = help


Wrong = Callable[[Node, str, Unfit], None]
"""Takes a value and its path."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What no text holds; tabs and line breaks may stand in templates, and in no name."""
_PERCENTILE = Key("float", "", nullable=False, minimum=0)


def convert(node: Node, key: Key, *, path: str, wrong: Wrong) -> Any:
    """The value as Python. What cannot be converted is reported to `wrong`, and the key's default takes its place."""
    if node.value is None:
        if not key.nullable:
            wrong(node, path, Unfit(f"is empty, and must be {WORDS[key.kind]}"))
        return key.default
    try:
        if not key.numeric and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            raise Unfit(
                f"must be a name or a path; found the number {shown(node)}", help="quote it if it is a name"
            )
        value = _converted(node, key, path=path, wrong=wrong)
        _check_range(value, key, node)
    except Unfit as error:
        wrong(node, path, error)
        return key.default
    return value


def _converted(node: Node, key: Key, *, path: str, wrong: Wrong) -> Any:
    if key.kind in ("str", "int", "length", "float", "bool", "device"):
        return _scalar(node, key.kind)
    if isinstance(node.value, Ambiguous):
        raise _octal(node.value)
    if isinstance(node.value, dict) and key.kind == "map":
        return _plain(node, path, wrong)
    if isinstance(node.value, dict) and key.kind == "size_percentiles":
        return _percentiles(node.value, path, wrong)
    if isinstance(node.value, list) and key.kind == "list":
        return _items(node.value, key, path, wrong) if key.items else _plain(node, path, wrong)
    if isinstance(node.value, list) and key.kind == "schedule":
        return tuple(_row(row, f"{path}[{index}]", wrong) for index, row in enumerate(node.value))
    raise _unfit(node, key.kind)


def _check_range(value: Any, key: Key, node: Node) -> None:
    if not key.numeric and value.startswith("-"):
        raise Unfit("must not start with `-`")
    if key.pattern and not re.fullmatch(key.pattern, value):
        raise Unfit(f"must be {key.form}; found {shown(node)}")
    if key.choices and value not in key.choices:
        raise Unfit(f"must be {_either(key.choices)}; found {shown(node)}")
    if key.minimum is not None and value < key.minimum:
        raise Unfit(f"must be at least {key.minimum:g}; found {shown(node)}")
    if key.maximum is not None and value > key.maximum:
        raise Unfit(f"must be at most {key.maximum:g}; found {shown(node)}")


def _either(choices: tuple[str, ...]) -> str:
    *first, last = (f"`{choice}`" for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last


def shown(node: Node) -> str:
    """A value as it may stand in a message."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    return quoted(node.raw if node.raw is not None else str(node.value))


def _unfit(node: Node, kind: Kind) -> Unfit:
    if isinstance(node.value, Ambiguous):
        return _octal(node.value, text_fits=kind == "device")
    quoted_text = node.value if isinstance(node.value, str) and node.raw is None else ""
    is_number = bool(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", quoted_text))
    bare = (
        quoted_text in ("true", "false")
        if kind == "bool"
        else is_number and kind in ("int", "length", "float")
    )
    reason = f"must be {WORDS[kind]}; found {shown(node)}{' in quotes' if bare else ''}"
    return Unfit(reason, help="leave the quotes out" if bare else None)


def _octal(text: str, *, text_fits: bool = True) -> Unfit:
    number = int(text.replace("_", ""))
    reason = f"has a leading zero, which YAML 1.1 reads as octal: {quoted(text)}"
    return Unfit(reason, help=f"write `{number}`{', or quote the text' if text_fits else ''}")


def _plain(node: Node, path: str, wrong: Wrong) -> Any:
    """Any value as plain Python, read-only; inherited keys that a null takes away are gone."""
    if isinstance(node.value, dict):
        kept = {key: child for key, child in node.value.items() if not child.unset}
        return MappingProxyType({key: _plain(child, f"{path}.{key}", wrong) for key, child in kept.items()})
    if isinstance(node.value, list):
        return tuple(_plain(child, f"{path}[{index}]", wrong) for index, child in enumerate(node.value))
    try:
        if isinstance(node.value, Ambiguous):
            raise _octal(node.value)
        if isinstance(node.value, str):
            return as_written(node)
        return _finite(node) if isinstance(node.value, float) else node.value
    except Unfit as error:
        wrong(node, path, error)
        return None


def _items(nodes: list[Node], key: Key, path: str, wrong: Wrong) -> tuple[Any, ...]:
    assert key.items is not None
    item = Key(key.items, "", nullable=False)
    return tuple(
        convert(node, item, path=f"{path}[{index}]", wrong=wrong) for index, node in enumerate(nodes)
    )


def _row(node: Node, path: str, wrong: Wrong) -> tuple[int, ...]:
    if not isinstance(node.value, list) or len(node.value) != 3:
        wrong(node, path, Unfit(f"must be `[first batch size, last batch size, K]`; found {_size(node)}"))
        return ()
    cell = Key("int", "", nullable=False, minimum=0)
    return tuple(
        convert(child, cell, path=f"{path}[{index}]", wrong=wrong) for index, child in enumerate(node.value)
    )


def _size(node: Node) -> str:
    return f"a list of {len(node.value)}" if isinstance(node.value, list) else shown(node)


def _percentiles(nodes: Mapping[str, Node], path: str, wrong: Wrong) -> Mapping[str, float]:
    for name, node in nodes.items():
        if name not in PERCENTILES:
            stranger = replace(node, span=node.key or node.span)
            wrong(stranger, f"{path}.{name}", Unfit(f"is not a known percentile: {_either(PERCENTILES)}"))
    return MappingProxyType(
        {
            name: convert(node, _PERCENTILE, path=f"{path}.{name}", wrong=wrong)
            for name, node in nodes.items()
            if name in PERCENTILES
        }
    )


def as_written(node: Node) -> str:
    """The text of a scalar before YAML turned it into something else. Raises Unfit."""
    if node.raw is not None and not isinstance(node.value, (list, dict)):
        text = node.raw  # a revision such as 0123456 or 1e10 is the text that was written
    elif isinstance(node.value, str):
        text = node.value
    else:
        raise _unfit(node, "str")
    if _CONTROL.search(text):
        raise Unfit("must not hold control characters")
    return text


def _text(node: Node) -> str:
    if isinstance(node.value, bool) and (node.raw or "").lower() in ("true", "false"):
        raise Unfit(f"must be a text; found {shown(node)}", help="quote it if it is a text")
    text = as_written(node)
    if not text.strip():
        raise Unfit("must not be empty")
    if CONTROL.search(text):
        raise Unfit("must not hold line breaks or other control characters")
    return text


def _finite(node: Node) -> float:
    if isinstance(node.value, float) and not math.isfinite(node.value):
        raise Unfit(f"must be a finite number; found {shown(node)}")
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    raise _unfit(node, "float")


def _scalar(node: Node, kind: Kind) -> Any:
    """A scalar of a kind. Raises Unfit."""
    value = node.value
    is_int = isinstance(value, int) and not isinstance(value, bool)
    is_text = isinstance(value, str) and not isinstance(value, Ambiguous)
    if kind == "str":
        return _text(node)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "float":
        return _finite(node)
    if kind == "device" and is_text:
        if not re.fullmatch(DEVICE, str(value)):
            raise _unfit(node, kind)
        return str(value)
    if kind == "length" and is_text and str(value).lower() == "auto":
        return -1  # vLLM: fits the length to the memory
    number = value if is_int else human_int(str(value)) if is_text and kind != "device" else None
    if not isinstance(number, int) or kind == "bool":
        raise _unfit(node, kind)
    if kind == "length" and (number == 0 or number < -1):
        raise Unfit(f"must be `auto`, -1, or a number of at least 1; found {shown(node)}")
    if kind == "device" and number < 0:
        raise _unfit(node, kind)
    return number
