"""Combinations that vLLM starts with and then fails, or silently changes, back to 0.19.

The rows stand in features.json. `when` holds what must be so; `*` is any value, null none, a list
one of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

OLDER = tuple(f"0.{number}" for number in range(19, 31))
"""The minors that only the rows know, oldest first."""


class Feature(NamedTuple):
    """One combination, in the versions in which it fails."""

    text: str
    severity: str
    source: str
    """Threads, or the file of vLLM that shows it."""
    since: str = OLDER[0]
    until: str | None = None
    """The first minor that is sound again."""
    methods: tuple[str, ...] = ()
    """Empty: whatever drafts."""
    when: Mapping[str, Any] = {}
    place: str = "method"
    """The key of the block at which it is reported."""
    help: str | None = None

    def minors(self, newest: str) -> list[str]:
        """The minors in which it fails, up to the newest."""
        last = _number(newest) + 1
        until = min(_number(self.until), last) if self.until else last
        return [f"0.{number}" for number in range(_number(self.since), until)]

    def applies(self, value: Callable[[str], Any]) -> bool:
        """Whether a block of such a method is this combination. `value` answers for `when`."""
        return all(_matches(value(name), wanted) for name, wanted in self.when.items())


def _matches(found: Any, wanted: Any) -> bool:
    if wanted == "*" or isinstance(wanted, list):
        return found is not None if wanted == "*" else found in wanted
    return found == wanted and type(found) is type(wanted)


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])


@lru_cache
def features(method: str | None = None) -> tuple[Feature, ...]:
    """Every row, or those that a method can meet."""
    if method:
        return tuple(row for row in features() if not row.methods or method in row.methods)
    text = Path(__file__).with_name("features.json").read_text(encoding="utf-8")
    return tuple(
        Feature(**{**row, "methods": tuple(row.get("methods", ()))}) for row in json.loads(text)
    )
