"""Answers of vLLM that are kept between checks: one JSON object a file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def recall_answer(file: Path) -> dict[str, Any] | None:
    """The kept answer, or None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else None
    return None


def keep_answer(file: Path, answer: Mapping[str, Any]) -> None:
    """Write the answer in one step; a cache that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(answer), encoding="utf-8")
        part.replace(file)
