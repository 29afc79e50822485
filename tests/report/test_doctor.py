"""The doctor's screen: 80 columns, each fix under its line, text from elsewhere made harmless; the same as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from specserve.checks.doctor import Line, State
from specserve.report.check import doctor_text

LINES = [
    Line("Python", "ok", "3.11.9, /v/bin/python"),
    Line("vLLM", "bad", "not installed beside specserve: nothing can be launched here", "`pip install 'x[y]'`"),
    Line(
        "driver", "note", "580.65.06, runs CUDA up to 13.0; torch is built for 13.2: code that is compiled at run "
        "time may be refused", "update it to one that runs CUDA 13.2",
    ),
    Line("cache", "ok", f"66.9 GiB free for downloads in /{'x' * 90}/hub"),
]  # fmt: skip
STATES: list[State] = ["ok", "note", "bad"]


def test_a_screen_has_an_entry_a_fact_with_its_fix(golden: Callable[[str, str], None]) -> None:
    golden("report/doctor.txt", doctor_text(LINES, stream=io.StringIO()))


@pytest.mark.parametrize(
    ("states", "first"),
    [
        (["ok"], "nothing here breaks a launch"),
        (["ok", "note"], "nothing here breaks a launch; 1 note"),
        (["bad"], "1 thing will break a launch here"),
        (["bad", "bad", "note", "note"], "2 things will break a launch here; 2 notes"),
    ],
)
def test_the_first_line_is_the_verdict(states: list[State], first: str) -> None:
    lines = [Line("x", state, "y") for state in states]
    assert doctor_text(lines).splitlines()[0] == first
