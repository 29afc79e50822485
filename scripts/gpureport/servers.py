"""Servers under `specserve up`: started, waited for by their events, ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpureport.children import Child, Children, end, last_line, tail
from gpureport.step import StepFailed


@dataclass(frozen=True, slots=True)
class Start:
    """How a start ended: ready, or failed with its cause."""

    is_ready: bool
    took_s: float
    url: str | None
    cause: str | None
    phase: str | None
    """What vLLM was doing when it failed."""
    log: str
    """All that vLLM logged until then."""
    figures: Mapping[str, Any]

    @property
    def log_tail(self) -> str:
        """The end of the log."""
        return "\n".join(self.log.rstrip().splitlines()[-30:])


@dataclass
class Server:
    """One `specserve up` that was started; `start` once it is known how that ended."""

    child: Child
    start: Start | None = None


@contextlib.contextmanager
def servers(
    children: Children, commands: Mapping[str, Sequence[str]], *, folder: Path, limit_s: float
) -> Iterator[dict[str, Start]]:
    """Start servers at the same time, wait until each is ready or has failed, and end them afterwards.

    Raises OutOfTime, and StepFailed when one takes longer than `limit_s`.
    """
    running: dict[str, Server] = {}
    try:
        for name, argv in commands.items():
            running[name] = Server(children.start(argv, folder=folder, name=name))
        while any(server.start is None for server in running.values()):
            children.check_time()
            for name, server in running.items():
                server.start = server.start or how_it_ended(server.child)
                if server.start is None and time.monotonic() - server.child.began > limit_s:
                    raise StepFailed(f"`{name}` was not ready after {limit_s:.0f} s", log=server.child.tail())
            time.sleep(0.2)
        yield {name: server.start for name, server in running.items() if server.start is not None}
    finally:
        for server in running.values():
            end(server.child)


def how_it_ended(child: Child) -> Start | None:
    """The end of a start, from the events that `up --log-format json` writes; None while it goes on."""
    has_exited = child.process.poll() is not None  # asked first: what it wrote before is there then
    events = {event["event"]: event for event in read_events(child.err)}
    log = _text(events.get("started", {}).get("log_path"))
    took_s = time.monotonic() - child.began
    if ready := events.get("ready"):
        return Start(True, ready["elapsed_s"], ready["url"], None, None, log, ready.get("figures") or {})
    if failed := events.get("failed"):
        cause = "; ".join(failed.get("causes") or ()) or failed.get("message")
        return Start(False, took_s, None, cause, failed.get("phase"), log, {})
    if has_exited:
        return Start(False, took_s, None, last_line(child), None, log or tail(child.err), {})
    return None


def read_events(file: Path) -> list[dict[str, Any]]:
    """The events of a start so far; other lines and an unfinished one are passed over."""
    found = []
    for line in _text(str(file)).splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                found.append(event)
    return found


def _text(path: str | None) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""
