"""The recorded terminal: what the commands print today is what the picture shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from record_terminal import missing

ROOT = Path(__file__).parents[2]


@pytest.mark.engine
def test_the_recorded_terminal_is_up_to_date() -> None:
    script = ROOT / "scripts" / "record_terminal.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, "up to date\n"), done.stdout + done.stderr


def test_a_line_that_the_picture_lacks_is_named_and_figures_do_not_count() -> None:
    picture = "<text>$ specserve</text><text>up&#160;x</text><text>ready&#160;in&#160;24s</text>"
    shown = [
        ("specserve up x", "  loading weights … 5.1s\n  comparing, 2 of about 60 s\nready in 3.1s\nstopped\n")
    ]
    assert missing(shown, picture) == ["stopped"]


def test_dots_after_a_number_are_not_a_part_of_it() -> None:
    assert missing([("x", "7\n...")], "<text>$ x</text><text>7</text><text>...</text>") == []
