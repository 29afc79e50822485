"""Requests to stop, as signals make them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for one that this host does not know."""
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


class StopRequest:
    """Set once or more, by a signal handler or a thread. (threading.Event may deadlock there.)"""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signal: int | None = None
        self.count = 0

    def request(self, number: int = signal.SIGTERM, _frame: object = None) -> None:
        """Ask for the stop; the first signal is remembered, the second means `at once`."""
        self.signal = self.signal or number
        if number != signal.SIGHUP or not self.count:  # a closing terminal may send it twice
            self.count += 1
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request newer than the last wait, or the time; whether one was ever made."""
        if select.select([self._read], [], [], timeout_s)[0]:
            with contextlib.suppress(OSError):
                os.read(self._read, 64)
        return self.count > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._read)
        os.close(self._write)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGINT, SIGTERM and SIGHUP become requests instead of exceptions. For the main thread.

    A SIGHUP that is ignored (`nohup`) stays ignored.
    """
    with StopRequest() as stop:
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = _SIGNALS[:-1] if is_nohup else _SIGNALS
        before = {number: signal.signal(number, stop.request) for number in numbers}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
