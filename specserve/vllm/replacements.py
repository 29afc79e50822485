"""What took the place of arguments that vLLM no longer has, and of SGLang's; the data is `tables/replacements.json`.

Sources: `EngineArgs` and `SpeculativeConfig` of earlier vLLM releases, `ServerArgs` of SGLang 0.4 to 0.5.
"""

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
    """The value of today by the earlier one as JSON, `*` for any other; None if values stay as they are."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What has to be set beside it, by dotted place."""
    aliases: tuple[str, ...] = ()


def _section(name: str) -> dict[str, Replacement]:
    data: dict[str, dict[str, Any]] = _DATA[name]
    return {key: Replacement(**item) for key, item in data.items()}


_FILE = Path(__file__).parent / "tables" / "replacements.json"
_DATA = json.loads(_FILE.read_text(encoding="utf-8"))
ARGUMENTS = _section("arguments")
"""By vLLM's own name of the time, underscores for dashes; keys of a mapping are dotted."""
KEYS = _section("speculation")
"""Keys that `speculative_config` once had."""
VARIABLES = _section("env")
SGLANG = _section("sglang")
"""SGLang's options that vLLM has by another name, with other values, or not at all."""
