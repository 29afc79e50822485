"""What a distillation says, whatever came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.measure.bench.result import Comparison, Point
from specserve.measure.distill.run import Distilled, Gain
from specserve.measure.statistics import PAYS, Estimate, Verdict
from specserve.report.drafts import distilled_document

AT = Point("held-out", 0.0, concurrency=4)
FOUND = Distilled(
    name="demo",
    outcome="better",
    draft="/models/draft",
    folder="/runs/demo/draft",
    k=4,
    answers=1012,
    steps=779,
    trained_s=300.0,
    gain=Gain(0.671, 0.712, Estimate(0.046, 0.031, 0.061, 180)),
    speedups=(
        Comparison("profile", "baseline", AT, Estimate(1.52, 1.44, 1.60), Verdict(PAYS, "good")),
        Comparison("distilled", "baseline", AT, Estimate(1.63, 1.55, 1.71), Verdict(PAYS, "good")),
    ),
    verified="LOSSLESS",
    notes=("3 of 903 lines of the log were left out: line 7: `prompt` must be text that is not empty",),
)


def test_the_first_line_answers(golden: Callable[[str, str], None]) -> None:
    golden("report/distill.txt", distilled_document(FOUND).text(sys.stdout))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(FOUND, outcome="no_gain", gain=None), "and nothing was served"),
        (
            replace(FOUND, outcome="no_gain"),
            "the new draft is not better; the profile is unchanged: acceptance",
        ),
        (replace(FOUND, outcome="faulty"), "`verify` found a fault in the output with the new draft"),
    ],
)
def test_a_draft_that_is_not_written_says_why(found: Distilled, said: str) -> None:
    text = " ".join(distilled_document(found).text(sys.stdout).split())
    assert said in text and "is the profile's alternative" not in text
