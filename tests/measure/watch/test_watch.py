"""Watching a server over real sockets: restarts, absences, hostile answers, bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specserve.errors import TrafficError
from specserve.measure import watch as module
from specserve.measure.watch import (
    COLLAPSED,
    STEADY,
    UNDECIDED,
    UNSEEN,
    Reading,
    WatchedServer,
    WatchReport,
    reports,
)
from specserve.metrics import read

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from metrics_server import Script, Traffic

GOOD = (0.8, 0.6, 0.5, 0.3)
DEAD = (0.02, 0.01, 0.0, 0.0)


class Clock:
    """It passes only while `reports` sleeps."""

    now_s = 0.0

    def monotonic(self) -> float:
        return Clock.now_s

    time = monotonic

    def sleep(self, seconds: float) -> None:
        Clock.now_s += seconds


class Watched(WatchedServer):
    """A server whose metrics a script says, without sockets."""

    def __init__(self, script: Script) -> None:
        super().__init__("http://127.0.0.1:1")
        self.script = script
        self.error: Exception | None = None

    def read(self) -> Reading:
        if self.error is not None:
            raise self.error
        return Reading(Clock.now_s, read(self.script.text))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock.now_s = 0.0
    monkeypatch.setattr(module, "time", Clock())


@pytest.fixture
def script() -> Script:
    return Script([Traffic()])


@pytest.fixture
def watched(script: Script) -> Watched:
    return Watched(script)


@pytest.fixture
def after(watched: WatchedServer, script: Script) -> Callable[..., WatchReport]:
    """The report after so many more intervals with this acceptance."""
    every = reports(watched, window_s=60, interval_s=5)
    next(every)

    def look(*steps: tuple[float, ...], drafts: int = 100) -> WatchReport:
        report = None
        for shares in steps:
            script.engines[0].step(drafts, shares, finished=5)
            report = next(every)
        assert report is not None
        return report

    return look


After = Callable[..., WatchReport]


def test_boot_is_never_in_the_figures(watched: Watched, script: Script) -> None:
    script.engines[0].step(10**6, DEAD)
    every = reports(watched, window_s=60, interval_s=5)
    first = next(every)
    assert (first.window, first.verdict.word) == (None, UNDECIDED)
    script.engines[0].step(100, GOOD)
    second = next(every).window
    assert second is not None and second.counted.acceptance.drafts == 100


def test_a_collapse_is_told_within_20_s_of_traffic_and_by_what_to_do(after: After) -> None:
    assert after(*[GOOD] * 12).verdict.word == STEADY
    states = [after(DEAD) for _ in range(4)]
    assert states[-1].verdict.word == COLLAPSED
    assert states[-1].advice is not None and states[-1].advice.code == "restart"


def test_thin_traffic_is_undecided_and_a_longer_window_decides(
    after: After, watched: Watched, script: Script
) -> None:
    none = (0.0, 0.0, 0.0, 0.0)
    assert after(*[none] * 30, drafts=10).verdict.word == UNDECIDED
    every = reports(watched, window_s=600, interval_s=5)
    for _ in range(30):
        script.engines[0].step(10, none, finished=5)
        report = next(every)
    assert report.verdict.word == COLLAPSED


def test_a_restart_begins_the_window_anew(after: After, script: Script) -> None:
    after(*[GOOD] * 6)
    script.engines = [Traffic(drafts=10**7, created_s=1.8e9)]
    report = after(GOOD)
    assert report.window is None
    window = after(GOOD, GOOD, GOOD).window
    assert window is not None and window.counted.acceptance.drafts == 300


def test_an_absence_without_a_restart_loses_nothing(after: After, watched: Watched) -> None:
    after(GOOD, GOOD)
    watched.error = TrafficError("nobody there")
    gone = after(GOOD)
    assert (gone.verdict.word, gone.verdict.sentence) == (UNSEEN, "nobody there")
    watched.error = None
    report = after(GOOD)
    assert report.window is not None
    assert (report.window.counted.acceptance.drafts, report.window.seconds) == (400, 20.0)


def test_looks_come_in_time_and_a_slow_answer_does_not_hurry_the_next(clock: Clock, watched: Watched) -> None:
    every: Iterator[WatchReport] = reports(watched, window_s=12, interval_s=5, once=True)
    assert [report.at_s for report in every] == [0, 5, 10, 12]
    every = reports(watched, window_s=30, interval_s=5)
    begin_s = next(every).at_s
    next(every)
    Clock.now_s += 13
    assert [next(every).at_s - begin_s for _ in range(2)] == [20, 25]
