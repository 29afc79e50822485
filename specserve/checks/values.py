"""Values of engine arguments as vLLM takes them. Knows no rule."""

from __future__ import annotations

from typing import Any

from specserve.profile.values import human_int


def count(value: Any) -> int | None:
    """The integer behind `8192` or `8K`; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return human_int(value)
    return value if isinstance(value, int) else None
