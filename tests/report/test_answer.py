"""The lines under an answer."""

from __future__ import annotations

import pytest

from specserve.metrics.counters import Acceptance
from specserve.report import answer, console
from specserve.report.answer import figures, generation_line, speculation_line
from specserve.serve.batch import GenerateStatus
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


@pytest.mark.parametrize(
    ("speculation", "line"),
    [
        (SpeculationCounts(None), "acceptance unknown: the server shows no metrics"),
        (SpeculationCounts(False), "no speculation"),
        (SpeculationCounts(True), "acceptance unknown: the server shows no metrics"),
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


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(answer, "time", clock)
    monkeypatch.setattr(console, "time", clock)
    return clock


def test_a_pipe_hears_a_line_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    status = GenerateStatus(200, 3, began_s=clock.now)
    with generation_line() as show:
        for _ in range(19):
            clock.now += 1
            show(status)
        status.ready_s = clock.now
        for _ in range(11):
            clock.now += 1
            status.done, status.tokens = status.done + 1, status.tokens + 40
            show(status)
    assert capsys.readouterr().err.splitlines() == [
        "starting the engine, 10 s",
        "generating: 4 of 200 lines, 20 s, 40 tokens/s",
        "generating: 14 of 200 lines, 30 s, 40 tokens/s",
    ]
