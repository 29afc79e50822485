"""YAML values that know their place, and what a plain scalar means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specserve.diagnostics import Span

Scalar = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Node:
    """One value with its place and that of its key: a scalar, a list or a mapping of nodes."""

    value: Scalar | list[Node] | dict[str, Node]
    span: Span
    key: Span | None = None
    raw: str | None = None
    """The text of a plain scalar, before YAML turned it into something else."""
    is_relative: bool = False
    """A path that was written from a folder, and made absolute."""

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
    """The child over its parent: mappings merge, lists and scalars replace, null takes away.

    A block of speculation merges only where the child keeps the method; with another one it is
    replaced whole. `path`: where the two stand.
    """
    above, below = parent.mapping, child.mapping
    if above is None or below is None:
        return child
    is_block = path == ("speculation",) or (len(path) == 2 and path[0] == "alternatives")
    method = above["method"].value if "method" in above else None
    if is_block and "method" in below and below["method"].value != method:
        return child
    values = dict(above)
    for key, node in below.items():
        was = values.get(key)
        if was and was.value is not None and node.value is None:
            del values[key]
        else:
            values[key] = merged(was, node, path=(*path, key)) if was else node
    return replace(child, value=values)


_WORDS: dict[str, None | bool | float] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", "+.inf", "-.inf", ".Inf", ".nan", ".NaN"), float("nan")),
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*|(?=[eE]))|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 30  # no number of a profile is longer; digits of a hash may be


def meaning(text: str) -> Scalar:
    """`1e-3` is a number, `yes` is true; dates and `010`, of which readers differ, are texts."""
    if text in _WORDS:
        return _WORDS[text]
    is_number = text[0] in "+-.0123456789" and len(text) <= _LONGEST_NUMBER
    digits = text.replace("_", "") if is_number else ""
    if digits and _INT.fullmatch(text):
        return int(digits, 0)
    return float(digits) if digits and _FLOAT.fullmatch(text) else text
