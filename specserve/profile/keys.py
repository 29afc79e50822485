"""What each key of a profile takes; the keys of a block of speculation stand in speculation.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specserve.vllm.speculation import METHODS

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
    """Of a text: whether a number without quotes may be meant, such as `0123456` for a commit."""
    pattern: str = ""
    """Of a text: what all of it must match; `form` says that in words."""
    form: str = ""


_GROUPS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("speculation.json").read_text(encoding="utf-8")
)
EVERY_KEY: Mapping[str, Key] = {
    name: Key(**{**item, "choices": tuple(item.get("choices", ()))})
    for group in _GROUPS.values()
    for name, item in group.items()
}
BLOCK_KEYS: Mapping[str, Mapping[str, Key]] = {
    method: {name: EVERY_KEY[name] for group in ("every", *known.groups) for name in _GROUPS[group]}
    for method, known in METHODS.items()
}
"""The keys that a block of each method takes."""
