"""One key of a profile: its type, its bounds, its meaning; and how a YAML value becomes a Python one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from specserve.profile.numbers import human_int
from specserve.profile.tree import Ambiguous, Node

Kind = Literal[
    "str", "int", "length", "float", "bool", "list", "map", "schedule", "size_percentiles", "device"
]
_WORDS = {
    "str": "a text", "int": "an integer", "length": "a number of tokens or auto", "float": "a number", "bool": "true or false", "list": "a list",
    "map": "a mapping", "schedule": "a list of [first batch size, last batch size, K]",
    "size_percentiles": "a mapping of percentiles, such as {p50: 800, p95: 4000}", "device": "an index or a UUID",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """What one key takes. `nullable` keys take null, which means vLLM's own default."""

    kind: Kind
    doc: str
    default: Any = None
    required: bool = False
    nullable: bool = True
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    items: Kind | None = None

    def convert(self, node: Node) -> Any:
        """The value as Python. Raises ValueError with the reason, to follow the name of the key."""
        if node.value is None:
            if self.nullable:
                return self.default
            raise ValueError(f"must be {_WORDS[self.kind]}, and is empty")
        value = _CONVERT[self.kind](node)
        if self.items and isinstance(node.value, list):
            value = tuple(_CONVERT[self.items](item) for item in node.value)
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}; found {shown(node)}")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.minimum:g}; found {shown(node)}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"must be at most {self.maximum:g}; found {shown(node)}")
        return value


def shown(node: Node) -> str:
    """A value as it may stand in a message: short, quoted."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    text = node.raw if node.raw is not None else str(node.value)
    return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"


def plain(node: Node) -> Any:
    """Any value as plain Python, read-only. Raises ValueError where YAML and a person would read differently."""
    if isinstance(node.value, Ambiguous):
        raise ValueError(ambiguous(node.value))
    if isinstance(node.value, dict):
        return MappingProxyType({key: plain(child) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return tuple(plain(child) for child in node.value)
    if isinstance(node.value, str):
        return _text(node)
    if isinstance(node.value, float) and not math.isfinite(node.value):
        raise ValueError(f"must be a finite number; found {shown(node)}")
    return node.value


def ambiguous(text: str) -> str:
    """Why a number with a leading zero is refused."""
    return (
        f"`{text}` is octal in YAML 1.1: write `{text.lstrip('+0') or '0'}` for the number, or quote the text"
    )


def _wrong(node: Node, kind: Kind) -> ValueError:
    if isinstance(node.value, Ambiguous):
        return ValueError(ambiguous(node.value))
    hint = ""
    if isinstance(node.value, str) and node.raw is None and kind in ("int", "float", "bool"):
        hint = " (without the quotes)" if _unquoted_fits(node.value, kind) else ""
    return ValueError(f"must be {_WORDS[kind]}{hint}; found {shown(node)}")


def _unquoted_fits(text: str, kind: Kind) -> bool:
    return text in ("true", "false") if kind == "bool" else text.replace(".", "", 1).isdigit()


def _text(node: Node) -> str:
    if node.raw is not None and not isinstance(node.value, (list, dict)):
        text = node.raw  # a revision such as 0123456 or 1e10 is the text that was written
    elif isinstance(node.value, str):
        text = node.value
    else:
        raise _wrong(node, "str")
    if any(ord(character) < 32 and character not in "\n\t" for character in text) or "\x7f" in text:
        raise ValueError("must not hold control characters")
    return text


def _int(node: Node) -> int:
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node.value, str) and not isinstance(node.value, Ambiguous):
        number = human_int(node.value)
        if number is not None:
            return number
    raise _wrong(node, "int")


def _length(node: Node) -> int:
    return -1 if node.value == "auto" else _int(node)  # vLLM: -1 fits the length to the memory


def _float(node: Node) -> float:
    if (
        isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
        and math.isfinite(node.value)
    ):
        return node.value
    raise _wrong(node, "float")


def _bool(node: Node) -> bool:
    if isinstance(node.value, bool):
        return node.value
    raise _wrong(node, "bool")


def _list(node: Node) -> tuple[Any, ...]:
    if isinstance(node.value, list):
        return tuple(plain(child) for child in node.value)
    raise _wrong(node, "list")


def _map(node: Node) -> Mapping[str, Any]:
    if isinstance(node.value, dict):
        return MappingProxyType({key: plain(child) for key, child in node.value.items()})
    raise _wrong(node, "map")


def _schedule(node: Node) -> tuple[tuple[int, ...], ...]:
    if not isinstance(node.value, list):
        raise _wrong(node, "schedule")
    rows = []
    for row in node.value:
        if not isinstance(row.value, list) or len(row.value) != 3:
            raise _wrong(row, "schedule")
        rows.append(tuple(_int(cell) for cell in row.value))
    return tuple(rows)


def _percentiles(node: Node) -> Mapping[str, float]:
    if not isinstance(node.value, dict) or not set(node.value) <= {"p50", "p95", "p99"}:
        raise _wrong(node, "size_percentiles")
    return MappingProxyType({key: _float(child) for key, child in node.value.items()})


def _device(node: Node) -> int | str:
    return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else _text(node)


_CONVERT: Mapping[Kind, Any] = {
    "str": _text, "int": _int, "length": _length, "float": _float, "bool": _bool, "list": _list, "map": _map,
    "schedule": _schedule, "size_percentiles": _percentiles, "device": _device,
}  # fmt: skip
