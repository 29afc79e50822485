"""What counts as an answer, and what as standing still."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from specserve.hardware.host import free_port
from specserve.serve.health import Activity, StallClock, activity, get, is_healthy

STILL = Activity(log_bytes=100, io_bytes=10_000, cpu_s=5.0)


def test_nobody_there_is_no_answer() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert get(f"{url}/health", timeout_s=1) is None
    assert not is_healthy(url)


def test_standing_still_for_the_limit_is_a_stall() -> None:
    clock = StallClock(10.0)
    assert not clock.is_stalled(STILL, at_s=0.0)
    assert not clock.is_stalled(STILL, at_s=9.9)
    assert clock.is_stalled(STILL, at_s=10.0)
    assert not clock.is_stalled(STILL, at_s=10.0, limit_s=12.0)
    assert clock.is_stalled(STILL, at_s=3.0, limit_s=3.0)


@pytest.mark.parametrize(
    "moved",
    [
        Activity(log_bytes=101, io_bytes=10_000, cpu_s=5.0),
        Activity(log_bytes=100, io_bytes=10_000 + (1 << 20), cpu_s=5.0),
        Activity(log_bytes=100, io_bytes=10_000, cpu_s=5.2),
        Activity(log_bytes=100, io_bytes=10_000, cpu_s=1.0),
    ],
    ids=["a log line", "bytes", "CPU time", "a process that ended"],
)
def test_any_movement_starts_the_clock_anew(moved: Activity) -> None:
    clock = StallClock(10.0)
    clock.is_stalled(STILL, at_s=0.0)
    assert not clock.is_stalled(moved, at_s=9.0)
    assert not clock.is_stalled(moved, at_s=18.0)
    assert clock.is_stalled(moved, at_s=19.0)


def test_the_ticks_of_idle_threads_are_no_movement() -> None:
    clock = StallClock(600.0)
    clock.is_stalled(STILL, at_s=0.0)
    assert clock.is_stalled(Activity(log_bytes=100, io_bytes=10_500, cpu_s=8.0), at_s=600.0)


def test_reading_and_computing_show_as_activity_of_a_process() -> None:
    me = [psutil.Process(os.getpid())]
    before = activity(me, log_bytes=1)
    with Path("/dev/zero").open("rb") as zeros:
        zeros.read(4 << 20)
    sum(range(3_000_000))
    after = activity(me, log_bytes=1)
    assert after.io_bytes - before.io_bytes >= 4 << 20
    assert after.cpu_s > before.cpu_s
