"""One key of a profile: its type, its bounds, its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "str", "int", "length", "float", "bool", "list", "map", "schedule", "size_percentiles", "device"
]
WORDS: Mapping[Kind, str] = {
    "str": "a text",
    "int": "an integer",
    "length": "a number of tokens or `auto`",
    "float": "a number",
    "bool": "`true` or `false`",
    "list": "a list",
    "map": "a mapping",
    "schedule": "a list of `[first batch size, last batch size, K]`",
    "size_percentiles": "a mapping such as `{p50: 800, p95: 4000}`",
    "device": "an index or a UUID",
}
PERCENTILES = ("p50", "p95", "p99")


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
    numeric: bool = True
    """Of a text: whether a number without quotes may be meant as one, such as `0123456` for a commit."""
