"""What a distillation says, whatever came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.measure.distill import Distilled, Proof
from specserve.measure.intervals import Estimate
from specserve.report.drafts import distilled_document

FOUND = Distilled(
    name="demo",
    is_better=True,
    folder="/runs/demo/draft",
    proof=Proof(0.671, 0.712, Estimate(1.06, 1.04, 1.09, 48), Estimate(1.07, 0.99, 1.16)),
    notes=("3 of 903 lines of the log were left out: line 7: `prompt` must be text that is not empty",),
)


def test_the_first_line_answers(golden: Callable[[str, str], None]) -> None:
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
