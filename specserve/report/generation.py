"""The talk of `generate` on stderr: live on a terminal, a line now and then in a pipe. Knows no engine."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from specserve.report.console import is_terminal, say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY_S = 10.0
"""How often a pipe hears that the work goes on."""


class GenerationProgress:
    """Lines done and tokens per second; a context manager, so that the terminal is left clean."""

    def __init__(self, *, total: int, done: int) -> None:
        self._total = total
        self._done = done
        self._phase = "starting the engine"
        self._started = self._spoke = time.monotonic()
        self._generating_since: float | None = None
        self._tokens = 0
        self._live: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> GenerationProgress:
        if is_terminal(sys.stderr):
            self._show()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Take the live line away: what is said from now on stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._live.add_task(self._phase, total=self._total, completed=self._done, rate="")
        self._live.start()

    def generating(self) -> float:
        """The engine is ready; returns the seconds that this took."""
        self._generating_since = time.monotonic()
        self._phase = "generating"
        return self._generating_since - self._started

    def advance(self, completion_tokens: int) -> None:
        """One more line is done."""
        self._done += 1
        self._tokens += completion_tokens
        self.tick()

    @property
    def done(self) -> int:
        """Finished lines, those of earlier runs included."""
        return self._done

    @property
    def completion_tokens(self) -> int:
        """Tokens generated in this run."""
        return self._tokens

    @property
    def elapsed_s(self) -> float:
        """Seconds since the engine was ready."""
        return time.monotonic() - (self._generating_since or time.monotonic())

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second, all requests together, the loading of the model left out."""
        return self._tokens / self.elapsed_s if self.elapsed_s else 0.0

    def tick(self) -> None:
        """Called often: refresh the terminal, or say a line when it is time for one."""
        rate = f"{self.tokens_per_s:.0f} tokens/s" if self._tokens else ""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, description=self._phase, completed=self._done, rate=rate)
        elif time.monotonic() - self._spoke >= _EVERY_S:
            self._spoke = time.monotonic()
            lines = f": {self._done} of {self._total} lines" if self._generating_since else ""
            since = f"{time.monotonic() - self._started:.0f} s"
            say(f"{self._phase}{lines}, {since}{f', {rate}' if rate else ''}")
