"""The tables of arguments and of models: one file for all known versions, with what changed.

An item of a section may say `since` (the first minor that has it), `until` (the first that no
longer does) and `changed` (what it says otherwise in an older minor). Written by
scripts/update_vllm.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from specserve.vllm.fact import minor

FOLDER = Path(__file__).parent  # importlib.resources costs a lint 6 ms
MARKS = ("since", "until", "changed")


@lru_cache
def merged(name: str) -> Mapping[str, Any]:
    """The whole file: `versions` (the release by minor), and the sections by name."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


def items(section: Mapping[str, Mapping[str, Any]], version: str) -> dict[str, dict[str, Any]]:
    """The items that one known minor has, as it has them."""
    found = {}
    for name, item in section.items():
        since, until = item.get("since"), item.get("until")
        if (since and minor(version) < minor(since)) or (until and minor(version) >= minor(until)):
            continue
        values = {key: value for key, value in item.items() if key not in MARKS}
        found[name] = {**values, **item.get("changed", {}).get(version, {})}
    return found
