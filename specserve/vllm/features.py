"""Combinations that vLLM starts with and then fails, or silently changes: one row each, back to 0.19.

The rows stand in features.json. `when` holds what must be so; `*` is any value, null none, a list one of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

OLDEST = 19
"""The oldest minor version (0.19) that a row speaks of."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One combination, in the versions in which it fails."""

    minors: str
    text: str
    severity: str
    source: str
    """Threads, or the file of vLLM that shows it."""
    methods: tuple[str, ...] = ()
    """Empty: whatever drafts."""
    when: Mapping[str, Any] = field(default_factory=dict)
    place: str = "method"
    """The key of the block at which it is reported."""
    help: str | None = None

    def applies(self, method: str, value: Callable[[str], Any]) -> bool:
        """Whether a block of this method is such a combination. `value` answers for each name in `when`."""
        return (not self.methods or method in self.methods) and all(
            _matches(value(name), wanted) for name, wanted in self.when.items()
        )


def _matches(found: Any, wanted: Any) -> bool:
    if wanted == "*":
        return found is not None
    return found in wanted if isinstance(wanted, list) else found == wanted and type(found) is type(wanted)


@lru_cache
def features() -> tuple[Feature, ...]:
    """Every row."""
    text = Path(__file__).with_name("features.json").read_text(encoding="utf-8")
    return tuple(Feature(**{**row, "methods": tuple(row.get("methods", ()))}) for row in json.loads(text))


def minors_before(oldest: str, *, spec: str) -> tuple[str, ...]:
    """The minors of a PEP 440 range from 0.19 on that are older than one of them."""
    return tuple(name for name in minors_in(spec, newest=oldest) if name != oldest)


@lru_cache
def minors_in(spec: str, *, newest: str) -> tuple[str, ...]:
    """The minors from 0.19 up to the newest with a release in a PEP 440 range. Raises ValueError for no range."""
    from packaging.specifiers import SpecifierSet

    specifiers, last = SpecifierSet(spec), int(newest.partition(".")[2])
    names = [f"0.{number}" for number in range(OLDEST, last + 1)]
    return tuple(
        name
        for name in names
        if any(specifiers.contains(f"{name}.{patch}", prereleases=True) for patch in range(10))
    )
