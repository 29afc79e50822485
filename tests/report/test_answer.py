"""The lines under an answer."""

from __future__ import annotations

import pytest

from specserve.metrics.counters import Acceptance
from specserve.report.answer import acceptance_json, acceptance_line, figures, speculation_line
from specserve.serve.client import Answer, SpeculationCounts

RUN = Acceptance(100, 400, 264, (90, 74, 58, 42))


def test_the_speed_is_one_line() -> None:
    answer = Answer(
        "m", "chat", completion_tokens=101, ttft_s=0.0354, last_token_s=1.0354, finish_reason="stop"
    )
    assert figures(answer) == [
        "TTFT 35 ms, 101 tokens, 100.0 tokens/s",
        "acceptance unknown: the server shows no metrics",
    ]


def test_an_answer_that_was_cut_says_so() -> None:
    answer = Answer("m", "chat", completion_tokens=1, ttft_s=0.01, last_token_s=0.01, finish_reason="length")
    assert figures(answer)[0] == "TTFT 10 ms, 1 token, stopped at the token limit"


@pytest.mark.parametrize(
    ("speculation", "line"),
    [
        (SpeculationCounts(None), "acceptance unknown: the server shows no metrics"),
        (SpeculationCounts(False), "no speculation"),
        (SpeculationCounts(True), "acceptance unknown: the server's metrics went away"),
        (SpeculationCounts(True, Acceptance(), "request"), "speculation is on, but nothing was drafted"),
        (
            SpeculationCounts(True, RUN, "request"),
            "acceptance 0.66, mean acceptance length 3.64, per position 0.90 0.74 0.58 0.42",
        ),
        (
            SpeculationCounts(True, RUN, "counters", other_requests=1),
            "acceptance 0.66, mean acceptance length 3.64, per position 0.90 0.74 0.58 0.42"
            " (1 other request ran: acceptance is the server's)",
        ),
    ],
)
def test_speculation_is_one_line_whatever_is_known(speculation: SpeculationCounts, line: str) -> None:
    assert speculation_line(speculation) == line


def test_without_speculation_there_is_no_acceptance() -> None:
    assert acceptance_line(None) == "no speculation"
    assert acceptance_json(None) is None


def test_scripts_get_null_rather_than_zero_where_nothing_was_drafted() -> None:
    found = acceptance_json(Acceptance())
    assert found is not None
    assert found["acceptance_rate"] is None
    assert found["num_drafts"] == 0
