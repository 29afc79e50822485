"""A request to stop, as signals make it. Does not know what is to be stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Set once or more, from a signal handler or a thread. (threading.Event may deadlock in a handler.)"""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signal: int | None = None
        self.count = 0

    def request(self, number: int = signal.SIGTERM) -> None:
        """Ask for the stop; the first signal is remembered, the second means `at once`."""
        self.signal = self.signal or number
        if number != signal.SIGHUP or not self.count:  # a closing terminal may send it twice
            self.count += 1
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def wait(self, timeout_s: float, *, also: int | None = None) -> bool:
        """Until a request newer than the last wait, `also` (a file descriptor) is readable, or time is up."""
        poller = select.poll()
        for descriptor in (self._read, also):
            if descriptor is not None:
                poller.register(descriptor, select.POLLIN)
        if any(descriptor == self._read for descriptor, _ in poller.poll(timeout_s * 1000)):
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

        def handle(number: int, _frame: FrameType | None) -> None:
            stop.request(number)

        before = {
            number: signal.signal(number, handle)
            for number in SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
