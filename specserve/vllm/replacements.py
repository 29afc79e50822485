"""What took the place of arguments, keys and variables that earlier vLLMs had."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """What became of an argument, a key or a variable."""

    why: str = ""
    now: str | None = None
    """Its dotted place in a profile; None if nothing took its place."""
    values: Mapping[str, Any] | None = None
    """The value of today by the earlier one as JSON, `*` for any other; None: the same ones."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What has to be set beside it, by dotted place."""


_DATA = json.loads(Path(__file__).with_name("replacements.json").read_text(encoding="utf-8"))
ARGUMENTS, KEYS, VARIABLES = (  # keys of a mapping are dotted
    {key: Replacement(**item) for key, item in _DATA[part].items()} for part in _DATA
)
