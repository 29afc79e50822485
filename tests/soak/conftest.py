"""What the long runs are made of: a server of their own, traffic, and figures that are printed."""

from __future__ import annotations

import datetime
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.server import ROOT, Server, unstarted

PROMPTS = [json.loads(line)["prompt"] for line in (ROOT / "demo" / "prompts.jsonl").read_text().splitlines()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is for `make soak`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("engine")
            item.add_marker("soak")
            item.add_marker(pytest.mark.timeout(7200))


def figures(*values: object) -> None:
    """Print what was measured, on a line of its own: pytest writes its dots in between."""
    print(f"\n{datetime.date.today()}:", *values, flush=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with unstarted(tmp_path) as made:
        yield made


class Traffic:
    """Requests without a pause, until it is closed or `count` were sent; a context manager."""

    def __init__(self, server: Server, *, concurrency: int, max_tokens: int, count: int = 1 << 40) -> None:
        self.done, self.failed, self._left = 0, [], count  # type: tuple[int, list[str], int]
        self._server, self._max_tokens, self._lock = server, max_tokens, threading.Lock()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(concurrency)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._lock:
            self._left = 0
        for thread in self._threads:
            thread.join()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _ask(self) -> None:
        while True:
            with self._lock:
                if self._left <= 0:
                    return
                self._left -= 1
                number = self._left
            body = {"model": "demo", "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": self._max_tokens}
            try:
                self._server.post("/v1/completions", {**body, "temperature": 0})
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
            self.done += 1
