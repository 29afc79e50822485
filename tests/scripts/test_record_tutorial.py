"""The tutorial: its words are the script's, and what needs no server prints what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "record_tutorial.py"


def test_the_tutorial_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "docs/tutorial.md is up to date\n")
