"""The prompts that a verification sends."""

from __future__ import annotations

from pathlib import Path

from specserve.measure.workloads import userfile
from specserve.measure.workloads.workload import Prompt

SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_PROMPTS = 64


def load_prompts(path: str | None = None) -> tuple[tuple[Prompt, ...], int]:
    """The first 64 prompts of a file (see `userfile`), and how many lie beyond them; without a file, those that ship.

    Raises FactError for what cannot be read.
    """
    found, _ = userfile.read(Path(path) if path is not None else SHIPPED, may_mix=True)
    return found[:MOST_PROMPTS], max(0, len(found) - MOST_PROMPTS)
