"""A clock for `specserve watch`, and traffic that goes by it: no figure depends on how fast the machine is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from metrics_server import Script


class Clock:
    """The time of `run(["watch", …])`: it passes only while that waits, and the traffic goes on meanwhile."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy: list[tuple[Script, tuple[float, ...]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + 0.001  # a real one is never exact
        for script, shares in self.busy:
            for engine in script.engines:
                for _ in range(round(seconds / 0.02)):
                    engine.step(200, shares, finished=2)
        time.sleep(0.001)  # for the threads of the test


CLOCK = Clock()


def use_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be the time of every watch in this process."""
    monkeypatch.setattr(CLOCK, "now_s", 0.0)
    monkeypatch.setattr("specserve.measure.watch.watch.time", CLOCK)


@contextmanager
def traffic(script: Script, shares: tuple[float, ...] = (0.8, 0.6, 0.5, 0.3)) -> Iterator[None]:
    """Steps and finished requests in every engine, until it ends."""
    CLOCK.busy.append((script, shares))
    yield
    CLOCK.busy.clear()
