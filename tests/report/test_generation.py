"""What a pipe hears of a long run."""

from __future__ import annotations

import pytest

from specserve.report import answer, console
from specserve.report.answer import generation_line
from specserve.serve.batch import GenerateStatus


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
