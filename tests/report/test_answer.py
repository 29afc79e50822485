"""The lines under an answer."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.metrics import Acceptance
from specserve.report.servers import figures
from specserve.serve.client import Answer

RUN = Acceptance(100, 400, 264, (90, 74, 58, 42))


def test_the_speed_is_one_line() -> None:
    answer = Answer(
        "m", "chat", completion_tokens=101, ttft_s=0.0354, last_token_s=1.0354, finish_reason="stop"
    )
    assert figures(answer) == [
        "TTFT 35 ms, 101 tokens, 100.0 tokens/s",
        "acceptance unknown: the server shows no metrics",
    ]


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ({"speculates": False}, "no speculation"),
        ({"speculates": True}, "acceptance unknown: the server shows no metrics"),
        ({"speculates": True, "acceptance": Acceptance()}, "speculation is on, but nothing was drafted"),
        (
            {"speculates": True, "acceptance": RUN},
            "acceptance 0.66, mean acceptance length 3.64, per position 0.90 0.74 0.58 0.42",
        ),
        (
            {"speculates": True, "acceptance": RUN, "other_requests": 1},
            "acceptance 0.66, mean acceptance length 3.64, per position 0.90 0.74 0.58 0.42"
            " (1 other request ran: acceptance is the server's)",
        ),
    ],
)
def test_speculation_is_one_line_whatever_is_known(known: dict[str, Any], line: str) -> None:
    assert figures(Answer("m", "chat", **known))[1] == line
