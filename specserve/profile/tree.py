"""YAML values that know their place, and what a plain scalar means to a person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specserve.diagnostics import Span

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


def merged(parent: Node, child: Node) -> Node:
    """The child over its parent: maps merge, lists and scalars replace, null unsets.

    A block of speculation merges only where the child keeps the method; with another one it is replaced whole.
    """
    return _merged(parent, child, path=())


def _merged(parent: Node, child: Node, *, path: tuple[str, ...]) -> Node:
    above, below = parent.mapping, child.mapping
    if child.value is None:
        return replace(child, unset=parent.value is not None or parent.unset)
    if above is None or below is None:
        return child
    if _is_speculation(path) and "method" in below and _method(above) != _method(below):
        return child
    values = dict(above)
    for key, node in below.items():
        values[key] = _merged(values[key], node, path=(*path, key)) if key in values else node
    return replace(child, value=values)


def _is_speculation(path: tuple[str, ...]) -> bool:
    return path == ("speculation",) or (len(path) == 2 and path[0] == "alternatives")


def _method(mapping: dict[str, Node]) -> Scalar | list[Node] | dict[str, Node]:
    return mapping["method"].value if "method" in mapping else None


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
