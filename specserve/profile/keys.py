"""What each key of a profile takes: the JSON Schema that values, editors and the reference read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specserve.vllm.speculation import METHODS

Key = Mapping[str, Any]
SCHEMA: dict[str, Any] = json.loads(
    Path(__file__).with_name("keys.json").read_text(encoding="utf-8")
)
"""`$defs` has the kinds of keys, and the sections; `title` says what a value must be."""
KINDS: dict[str, dict[str, Any]] = SCHEMA["$defs"]
TOP: Mapping[str, Key] = SCHEMA["properties"]
ELSEWHERE: Mapping[str, str] = SCHEMA["x-elsewhere"]
"""The place of what the profile does not take where a stranger would write it."""
EVERY_KEY: Mapping[str, Key] = KINDS["speculation"]["properties"]
BLOCK_KEYS: Mapping[str, Mapping[str, Key]] = {
    method: {
        name: key for name, key in EVERY_KEY.items() if key.get("x-group") in (None, *known.groups)
    }
    for method, known in METHODS.items()
}
"""The keys that a block of each method takes."""


def kind_of(key: Key) -> str:
    """The name of what the key takes, in `$defs`."""
    return str(key["$ref"].rpartition("/")[2])


def words(key: Key) -> str:
    """What the value must be, such as `an integer of at least 1`."""
    if "enum" in key and "title" not in key:
        *first, last = (f"`{choice}`" for choice in key["enum"] if choice is not None)
        return f"{', '.join(first)} or {last}" if first else last
    text = str(key.get("title") or KINDS[kind_of(key)]["title"])
    if "items" in key and "title" not in key:
        text += f", each item {words(key['items'])}"
    if "maximum" in key:
        return f"{text} from {key['minimum']:g} to {key['maximum']:g}"
    return f"{text} of at least {key['minimum']:g}" if "minimum" in key else text
