"""Several jobs at once, and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from specserve.measure.verify.session import results_of


def nothing() -> None:
    """Of ticks."""


def test_every_job_is_done_once_and_as_many_run_as_asked_for_and_no_more() -> None:
    """Each waits for two others: with fewer at once none would end."""
    running, most, lock, three = 0, 0, threading.Lock(), threading.Barrier(3)

    def job(number: int) -> Callable[[], int]:
        def do() -> int:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            three.wait(timeout=60)
            with lock:
                running -= 1
            return number

        return do

    found = list(results_of((job(number) for number in range(21)), concurrency=3, on_tick=nothing))
    assert sorted(found) == list(range(21))
    assert most == 3


def test_an_error_of_a_job_is_raised_and_no_further_job_begins() -> None:
    begun = []

    def jobs() -> Iterator[Callable[[], int]]:
        for number in range(1000):
            begun.append(number)
            yield lambda number=number: 1 // (number - 5)  # type: ignore[misc]

    with pytest.raises(ZeroDivisionError):
        list(results_of(jobs(), concurrency=2, on_tick=nothing))
    count = len(begun)
    time.sleep(0.05)
    assert len(begun) <= count + 2 < 1000


def test_what_a_tick_raises_ends_it_though_a_job_hangs() -> None:
    hangs = threading.Event()

    def stop() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(results_of(iter([hangs.wait]), concurrency=1, on_tick=stop))
    hangs.set()
    assert time.monotonic() - began < 60


def test_a_job_may_return_nothing() -> None:
    assert list(results_of(iter([nothing, nothing]), concurrency=2, on_tick=nothing)) == [None, None]


def test_no_job_is_no_result() -> None:
    assert list(results_of(iter([]), concurrency=4, on_tick=nothing)) == []
