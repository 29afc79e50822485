"""What holds in which vLLM: facts and tables, with what changed between the known minors.

A fact is a value by the first minor that has it, oldest first. In the tables an item of a section
may say `since` (the first minor that has it), `until` (the first that no longer does) and `changed`
(what it says otherwise in an older minor); scripts/update_vllm.py writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path(__file__).parent  # importlib.resources costs a lint 6 ms
T = TypeVar("T")
RAY_PIN = "Ray 2.60 asks for vLLM 0.29 by itself"
EXAMPLE_RANGE = ">=0.32,<0.34"
"""A version range for hints and documentation."""

INVERSE_FLAGS = {"0.31": False, "0.33": True}
"""`--disable-x` is the opposite of `--enable-x`, and the other way round."""
SMALL_GB10 = {"0.31": False, "0.33": True}
"""A GB10 takes the steps of a small GPU, whatever its memory."""
SHORTENS_TARGET = {"0.31": False, "0.33": True}
"""The server's context is lowered to that of a shorter draft model."""
STRETCHES_BLOCK_HEADS = {"0.31": False, "0.33": True}
"""A head that drafts all K tokens at once gets as many positions as its target is served with."""
SHOWN = {
    "INVERSE_FLAGS": ("utils/argparse_utils.py", "class EnableDisableAction"),
    "SMALL_GB10": ("engine/arg_utils.py", "current_platform.is_device_capability((12, 1))"),
    "SHORTENS_TARGET": ("config/vllm.py", "def _limit_max_model_len_to_draft(self) -> None:"),
    "STRETCHES_BLOCK_HEADS": (
        "config/speculative.py",
        "# Every draft but an independent model shares the target's",
    ),
}
"""The file of vLLM and the line in it that every version of a fact's newest value has, no older."""


@lru_cache(maxsize=256)
def minor(version: str) -> tuple[int, int]:
    """(0, 32) of `0.32.1+cpu`; (0, 0) for a text that starts with no version."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def at(fact: Mapping[str, T], version: str) -> T:
    """A fact's value in a version such as `0.32.1+cpu`; one older than all gets the first value."""
    found = [value for first, value in fact.items() if minor(first) <= minor(version)]
    return found[-1] if found else next(iter(fact.values()))


@lru_cache
def merged(name: str) -> Mapping[str, Any]:
    """A whole table: `versions` (the release by minor), and the sections by name."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


def items(section: Mapping[str, Mapping[str, Any]], version: str) -> dict[str, dict[str, Any]]:
    """The items of a section that one known minor has, as it has them."""
    found, this = {}, minor(version)
    for name, item in section.items():
        values = dict(item)
        since, until, changed = (values.pop(mark, None) for mark in ("since", "until", "changed"))
        if (not since or minor(since) <= this) and (not until or this < minor(until)):
            found[name] = {**values, **(changed or {}).get(version, {})}
    return found
