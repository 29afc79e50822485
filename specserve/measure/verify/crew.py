"""Several requests at once, answers as they come, an end at any moment. Knows nothing of what is asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")
Job = Callable[[], Result]
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Done(Generic[Result]):
    """What a job returned; it may be None."""

    result: Result


class Crew(Generic[Result]):
    """So many threads that take jobs from an iterable, one by one."""

    def __init__(self, jobs: Iterable[Job[Result]], *, concurrency: int) -> None:
        self._jobs = iter(jobs)
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[_Done[Result] | Exception | None] = queue.SimpleQueue()
        self._is_over = False
        self._count = concurrency

    def results(self, *, on_tick: Callable[[], None]) -> Iterator[Result]:
        """What the jobs return, in the order in which they end; what one of them raises ends it.

        `on_tick` is called at least five times a second, and may raise. Nobody waits for the threads then: they end
        with their request, which whoever made it can break off.
        """
        for _ in range(self._count):
            threading.Thread(target=self._work, daemon=True).start()
        working = self._count
        try:
            while working:
                on_tick()
                try:
                    item = self._done.get(timeout=_LOOK_EVERY_S)
                except queue.Empty:
                    continue
                if item is None:
                    working -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item.result
        finally:
            self._is_over = True

    def _next(self) -> Job[Result] | None:
        with self._lock:
            return None if self._is_over else next(self._jobs, None)

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._done.put(_Done(job()))
        except Exception as error:  # handed to whoever waits for the results
            self._is_over = True
            self._done.put(error)
        finally:
            self._done.put(None)
