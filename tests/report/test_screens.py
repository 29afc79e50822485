"""What `doctor` and `distill` say: the answer first, a fact with its fix, why a draft is not written."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.checks.doctor import Line, State
from specserve.measure.distill import Distilled, Proof
from specserve.measure.verdict import Estimate
from specserve.report.check import doctor_text
from specserve.report.drafts import distilled_document

LINES = [
    Line("Python", "ok", "3.11.9, /v/bin/python"),
    Line("vLLM", "bad", "not installed beside specserve: nothing can be launched here", "`pip install 'x[y]'`"),
    Line(
        "driver", "note", "580.65.06, runs CUDA up to 13.0; torch is built for 13.2: code that is compiled at run "
        "time may be refused", "update it to one that runs CUDA 13.2",
    ),
    Line("cache", "ok", f"66.9 GiB free for downloads in /{'x' * 90}/hub"),
]  # fmt: skip


def test_a_screen_has_an_entry_a_fact_with_its_fix(golden: Callable[[str, str], None]) -> None:
    golden("report/doctor.txt", doctor_text(LINES, stream=io.StringIO()))


@pytest.mark.parametrize(
    ("states", "first"),
    [
        (["ok", "note"], "nothing here breaks a launch; 1 note"),
        (["bad", "bad"], "2 things will break a launch here"),
    ],
)
def test_the_first_line_is_the_verdict(states: list[State], first: str) -> None:
    lines = [Line("x", state, "y") for state in states]
    assert doctor_text(lines).splitlines()[0] == first


FOUND = Distilled(
    name="demo",
    is_better=True,
    folder="/runs/demo/draft",
    proof=Proof(0.671, 0.712, Estimate(1.06, 1.04, 1.09, 48), Estimate(1.07, 0.99, 1.16)),
    notes=("3 of 903 lines of the log were left out: line 7: `prompt` must be text that is not empty",),
)


def test_the_first_line_of_a_distillation_answers(golden: Callable[[str, str], None]) -> None:
    golden("report/distill.txt", distilled_document(FOUND).text(sys.stdout))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(FOUND, is_better=False, proof=None), "and none was served"),
        (
            replace(FOUND, is_better=False),
            "the new draft is not better; the profile is unchanged: acceptance",
        ),
    ],
)
def test_a_draft_that_is_not_written_says_why(found: Distilled, said: str) -> None:
    text = " ".join(distilled_document(found).text(sys.stdout).split())
    assert said in text and "is the profile's alternative" not in text
