"""How a detached server is right now: from its processes, its answers and its log. Changes only what is stale."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from specserve.errors import FactError, SpecserveError
from specserve.metrics import prometheus
from specserve.serve import health
from specserve.serve.detached import registry
from specserve.serve.detached.aftermath import is_cared_for, tidy
from specserve.serve.detached.group import Detached, marked, noted
from specserve.serve.detached.identity import boot_id
from specserve.serve.detached.recent import Recent, recent
from specserve.serve.detached.record import Record
from specserve.serve.identity import is_alive

State = Literal["starting", "ready", "silent", "hung", "stopping", "dead", "gone", "lost"]
"""silent: runs and does not answer. hung: answers, and no token comes while requests wait. dead: ended by itself.
gone: the host was started anew. lost: runs, and its state on disk cannot be used."""
_ANSWERS_WITHIN_S = 3.0
_STILL_S = 30.0
_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as it was found. `record` is None where its state is lost."""

    name: str
    state: State
    detail: str = ""
    """Why it is so, in one sentence, where that needs one."""
    record: Record | None = None
    lately: Recent = field(default_factory=Recent)
    running_requests: int | None = None
    waiting_requests: int | None = None
    pids: tuple[int, ...] = ()


def observe_all() -> Iterator[Seen]:
    """Every server of this user: those with a state, and those that run without one."""
    known = registry.names()
    for name in known:
        seen = observe(name)
        if seen is not None:
            yield seen
    runs: dict[str, list[int]] = {}
    for pid, name in marked().items():
        runs.setdefault(name, []).append(pid)
    for name in sorted(runs.keys() - set(known)):
        yield _lost(name, pids=tuple(runs[name]), why="its state on disk was removed")


def observe(name: str) -> Seen | None:
    """One server; None where there is none of that name."""
    try:
        record = registry.read(name)
    except FactError as error:
        found = tuple(marked(name))
        if found:
            return _lost(name, pids=found, why=error.message)
        return Seen(name, "dead", error.message)
    return _judge(record) if record is not None else None


def _lost(name: str, *, pids: tuple[int, ...], why: str) -> Seen:
    return Seen(name, "lost", f"{why}; `specserve down {name}` ends it", pids=pids)


def _judge(record: Record) -> Seen:
    if record.boot_id != boot_id():
        return Seen(record.name, "gone", "the host was started anew since", record)
    if record.ended is None and not Detached(record).is_running():
        if record.stopper is not None and is_cared_for(record):
            return Seen(record.name, "stopping", "", record)
        if record.ready_at_s is None and is_cared_for(record):
            return Seen(record.name, "starting", "", record)
        record = _ended(record)
    if record.ended is not None:
        return Seen(record.name, "dead", f"{record.ended.message}: {record.ended.cause}", record)
    if record.stopper is not None and is_cared_for(record):
        return Seen(record.name, "stopping", "", record)
    return _asked(record)


def _ended(record: Record) -> Record:
    """Its watcher tells how it ended, or we do, where that is gone too."""
    deadline = time.monotonic() + 3.0
    while (
        record.watcher
        and is_alive(record.watcher[0], since=record.watcher[1])
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
        now = registry.read(record.name)
        if now is None or now.run != record.run:
            break
        if now.ended is not None:
            return now
    return tidy(record)


def _asked(record: Record) -> Seen:
    """What it answers. A server that nobody waited for until it was ready becomes ready here."""
    is_up = health.is_healthy(record.url, timeout_s=_ANSWERS_WITHIN_S)
    if record.ready_at_s is None:
        if not is_up:
            return Seen(record.name, "starting", "", record)
        with contextlib.suppress(SpecserveError):
            record = registry.change(record, ready_at_s=time.time(), **noted(Detached(record))) or record
    lately = recent(Path(record.log_path), now_s=time.time())
    metrics = health.metrics(record.url, timeout_s=_ANSWERS_WITHIN_S)
    running, waiting = (metrics.running_requests, metrics.waiting_requests) if metrics else (None, None)
    state, detail = _troubled(record, lately, metrics, is_up=is_up)
    return Seen(record.name, state, detail, record, lately, running, waiting)


def _troubled(
    record: Record, lately: Recent, metrics: prometheus.Metrics | None, *, is_up: bool
) -> tuple[State, str]:
    """`ready`, or what is wrong with a server that runs."""
    for process in Detached(record).members():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:
                return "hung", f"its process {process.pid} was stopped (SIGSTOP): `kill -CONT {process.pid}`"
    if lately.stuck:
        return "hung", f"a worker does not answer: {lately.stuck}"
    if not is_up:
        return "silent", f"{record.url}/health does not answer 200 within {_ANSWERS_WITHIN_S:.0f}s"
    if metrics is None or not metrics.running_requests + metrics.waiting_requests:
        return "ready", ""
    waits = f"while {metrics.running_requests} requests run and {metrics.waiting_requests} wait"
    still_s = time.time() - lately.still_since_s if lately.still_since_s else 0.0
    if still_s >= _STILL_S:
        return "hung", f"no token for {still_s:.0f}s {waits}"
    if lately.is_quiet:
        time.sleep(_LOOK_S)
        now = health.metrics(record.url, timeout_s=_ANSWERS_WITHIN_S)
        if now is not None and now.tokens == metrics.tokens and now.running_requests:
            return "ready", f"no token within {_LOOK_S:.0f}s {waits}"
    return "ready", ""
