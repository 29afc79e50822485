"""The manual pages of the codes, which stand in pages.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def texts() -> dict[str, str]:
    """What is written about each code: what it is, why that is bad, what to do instead, sources."""
    whole = Path(__file__).with_name("pages.md").read_text(encoding="utf-8")
    parts = (part.partition("\n\n") for part in whole.split("\n## ")[1:])
    return {heading.partition(" ")[0]: text.strip() for heading, _, text in parts}
