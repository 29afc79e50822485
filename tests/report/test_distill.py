"""What a distillation says, whatever came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.measure.bench.result import Comparison, Point
from specserve.measure.distill.run import Distilled, Gain, Outcome
from specserve.measure.statistics import PAYS, Estimate, Verdict
from specserve.report.drafts import card_text, distilled_json, distilled_text

AT = Point("held-out", 0.0, concurrency=4)


def example() -> Distilled:
    gain = Gain(0.669, 0.714, Estimate(0.046, 0.031, 0.061), 180)
    loss = Gain(0.708, 0.702, Estimate(-0.006, -0.021, 0.009), 64)
    return Distilled(
        name="demo",
        created="2026-11-24T01:00:00+00:00",
        outcome="better",
        draft="/models/draft",
        folder="/runs/demo/draft",
        k=4,
        platform="cpu",
        versions={"vllm": "0.33.0", "torch": "2.13.0"},
        prompts={"read": 900, "repeated": 0, "groups": 839, "train": 630, "validation": 90, "test": 180},
        overlap=0.168,
        most_overlap=0.8,
        answers=1012,
        answer_tokens=64768,
        steps=779,
        trained_s=300.0,
        simulated=gain,
        simulated_old=loss,
        measured=replace(gain, old=0.671, new=0.712),
        measured_old=loss,
        speedups=(
            Comparison("profile", "baseline", AT, Estimate(1.52, 1.44, 1.60), Verdict(PAYS, "good")),
            Comparison("distilled", "baseline", AT, Estimate(1.63, 1.55, 1.71), Verdict(PAYS, "good")),
        ),
        verified="LOSSLESS",
        alternative="distilled",
        notes=("3 of 903 lines of the log were left out: the other kind of request (chat, completion)",),
    )


def test_text_card_and_json_are_what_was_agreed(golden: Callable[[str, str], None]) -> None:
    golden("report/distill.txt", distilled_text(example()) + "\n")
    golden("report/distill_card.md", card_text(example()))
    shown = json.loads(distilled_json(example()))
    assert (shown["version"], shown["outcome"]) == (1, "better")
    assert shown["measured"]["difference"] == {
        "value": 0.046,
        "low": 0.031,
        "high": 0.061,
        "n": 0,
        "method": "",
    }


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("no_gain_simulated", "Nothing was served, and the profile is unchanged."),
        ("no_gain_measured", "not better when it is served"),
        ("faulty", "`verify` found a fault"),
    ],
)
def test_a_draft_that_is_not_written_says_why(outcome: Outcome, said: str) -> None:
    found = replace(
        example(), outcome=outcome, alternative=None, measured=None, measured_old=None, speedups=()
    )
    text = " ".join(distilled_text(found).split())
    assert said in text and "Written into the profile" not in text and "measured" not in text
