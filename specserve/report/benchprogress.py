"""A benchmark's progress on stderr: a live line on a terminal, one line a stage and now and then in a pipe."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from specserve.measure.bench import news
from specserve.report.benchview import where
from specserve.report.console import in_one_line, is_terminal, say
from specserve.report.serving import duration

_EVERY_S = 15.0


class BenchView:
    """Tells what happens; a context manager that leaves no half line behind."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = is_terminal(self._stream)
        self._said_s = 0.0
        self._phase = ""

    def __enter__(self) -> BenchView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._erase()

    def begin(self, ready: Any, directory: Path) -> None:
        """What is about to be done, in two lines."""
        wish = ready.wish
        names = ", ".join(in_one_line(arm.name) for arm in wish.arms)
        say(f"{len(wish.points)} points, {wish.sizes.blocks} blocks each, on {names}")
        say(f"run directory: {in_one_line(str(directory))}")

    def __call__(self, what: news.News) -> None:
        """One piece of news."""
        match what:
            case news.Starting():
                self._show(f"starting {in_one_line(what.arm)}: {what.phase}")
            case news.Ready():
                self._say(f"{in_one_line(what.arm)} is ready after {duration(what.took_s)}")
            case news.WarmingUp():
                self._show(f"warming up {in_one_line(what.arm)}")
            case news.Noted():
                self._say(f"note: {in_one_line(what.text)}")
            case news.Passed():
                self._passed(what)
            case news.Stopping():
                self._show("stopping the servers")

    def _passed(self, what: news.Passed) -> None:
        left = f"about {duration(what.left_s)} left (estimated)" if what.done < what.total else "done"
        line = (
            f"{what.done}/{what.total} {in_one_line(what.arm)}, {in_one_line(where(what.point))}: "
            f"{what.tokens_per_s:.1f} tokens/s; {left}"
        )
        now = time.monotonic()
        if self._live:
            self._show(line)
        elif now - self._said_s >= _EVERY_S or what.done == what.total:
            self._said_s = now
            say(line)

    def _show(self, line: str) -> None:
        """In the place of the live line; in a pipe only what is new."""
        if self._live:
            import shutil

            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{line[: width - 1]}")
            self._stream.flush()

    def _say(self, line: str) -> None:
        self._erase()
        say(line)

    def _erase(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
