"""How a detached server is right now, by its processes, its answers and its log."""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from specserve.errors import FactError, SpecserveError, UsageError
from specserve.metrics import prometheus
from specserve.serve import health
from specserve.serve.detached import registry
from specserve.serve.detached.processes import Detached, boot_id, is_cared_for, is_running, marked, tidy
from specserve.serve.detached.registry import Record
from specserve.serve.logs import end_of_log

_END_BYTES = 256 << 10
_LATELY_S = 60.0
# vllm 0.26 to 0.33: v1/spec_decode/metrics.py and v1/metrics/loggers.py, every VLLM_LOG_STATS_INTERVAL (10 s)
_DRAFTED = re.compile(
    r"SpecDecoding metrics: .{0,400}?Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens"
)
_THROUGHPUT = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<generation>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs"
)
_CLOCK = re.compile(r"\b\d\d-\d\d \d\d:\d\d:\d\d\b")
_NO_ANSWER = re.compile(r"No available shared memory broadcast block found in (?P<seconds>\d+) seconds")


@dataclass(frozen=True, slots=True)
class Recent:
    """What the end of the log says. `still_since_s`: since then requests wait and no token came."""

    accepted_tokens: int = 0
    drafted_tokens: int = 0
    still_since_s: float | None = None
    stuck: str | None = None
    """vLLM's own words for a worker that does not answer."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of what was drafted in the last minute; None if nothing was."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


def recent(path: Path, *, now_s: float, ready_at_s: float = 0.0) -> Recent:
    """Read the end of a server's log."""
    lines = end_of_log(path, limit_bytes=_END_BYTES).splitlines()
    return of_lines(lines, now_s=now_s, ready_at_s=ready_at_s)


def of_lines(lines: Iterable[str], *, now_s: float, ready_at_s: float = 0.0) -> Recent:
    """The same, of lines in the order of the log. Lines without a time of their own belong to the line before them.

    The first figures after `ready_at_s` are of the stretch that holds our warm-up request, so they do not count.
    """
    accepted = drafted = 0
    at_s: float | None = None
    warm_at_s: float | None = None if ready_at_s else 0.0
    still_since_s: float | None = None
    stuck: str | None = None
    for line in lines:
        at_s = _time(line, now_s=now_s) or at_s
        if at_s is None:
            continue
        if match := _DRAFTED.search(line):
            stuck = None
            # engines write one after the other, and times are whole seconds
            if warm_at_s is not None and at_s > warm_at_s + 1 and now_s - at_s <= _LATELY_S:
                accepted += int(match["accepted"])
                drafted += int(match["drafted"])
        elif match := _THROUGHPUT.search(line):
            if warm_at_s is None and at_s >= int(ready_at_s):
                warm_at_s = at_s
            moves = float(match["generation"]) > 0 or float(match["prompt"]) > 0
            waits = int(match["running"]) + int(match["waiting"]) > 0
            still_since_s = (still_since_s or at_s) if waits and not moves else None
            stuck = None if moves else stuck
        elif _NO_ANSWER.search(line):
            stuck = line[line.index("No available") :]
    return Recent(accepted, drafted, still_since_s, stuck)


def _time(line: str, *, now_s: float) -> float | None:
    """Seconds since the epoch: vLLM writes month, day and local time, and no year."""
    if found := _CLOCK.search(line[:200]):
        year = datetime.datetime.fromtimestamp(now_s).year
        for guess in (year, year - 1):
            with contextlib.suppress(ValueError):
                at_s = datetime.datetime.strptime(f"{guess}-{found[0]}", "%Y-%m-%d %H:%M:%S").timestamp()
                if at_s <= now_s + 3600:
                    return at_s
    return None


State = Literal["starting", "ready", "silent", "hung", "stopping", "dead", "gone", "lost"]
"""silent: runs and does not answer. hung: answers, and no token comes while requests wait. dead: ended by itself.
gone: the host was restarted. lost: runs, and its state on disk cannot be used."""
_ANSWERS_WITHIN_S = 3.0
_STILL_S = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as it was found. `record` is None if its state is lost."""

    name: str
    state: State
    detail: str = ""
    """Why it is so, in one sentence, if that needs one."""
    record: Record | None = None
    lately: Recent = field(default_factory=Recent)
    running_requests: int | None = None
    waiting_requests: int | None = None
    pids: tuple[int, ...] = ()


def observe_all() -> Iterator[Seen]:
    """Every server of this user: those with a state, and those that run without one."""
    known, running = registry.names(), marked()
    yield from filter(None, map(observe, known))
    for name in sorted(set(running.values()) - set(known)):
        pids = tuple(pid for pid, its_name in running.items() if its_name == name)
        yield _lost(name, pids=pids, why="its state on disk was removed")


def observe(name: str) -> Seen | None:
    """One server; None if there is none of that name."""
    try:
        record = registry.read(name)
    except FactError as error:
        found = tuple(marked(name))
        return _lost(name, pids=found, why=error.message) if found else Seen(name, "dead", error.message)
    return _judge(record) if record is not None else None


def _lost(name: str, *, pids: tuple[int, ...], why: str) -> Seen:
    return Seen(name, "lost", f"{why}; `specserve down {name}` ends it", pids=pids)


def _judge(record: Record) -> Seen:
    if seen := _past(record):
        return seen
    if is_running(record.stopper):
        return Seen(record.name, "stopping", "", record)
    return _probe(record)


def _past(record: Record) -> Seen | None:
    """A server that runs no longer, and why; None for one that runs, or that another command sees to."""
    if record.boot_id != boot_id():
        return Seen(record.name, "gone", "the host was restarted since", record)
    if record.ended is None and not Detached(record).is_running() and not is_cared_for(record):
        record = _ended(record)
    if record.ended is not None:
        return Seen(record.name, "dead", f"{record.ended.message}: {record.ended.cause}", record)
    return None


def refuse_ended(record: Record) -> None:
    """Raises FactError with the cause if the server died, or its host was restarted since."""
    if (seen := _past(record)) is None:
        return
    ended = seen.record.ended if seen.record else None
    raise FactError(
        f"the server `{record.name}` is {seen.state}: {ended.message if ended else seen.detail}",
        causes=(ended.cause,) if ended else (),
        hint=(ended and ended.hint)
        or f"`specserve logs {record.name}` shows its log; `specserve down {record.name}` removes it",
    )


def _ended(record: Record) -> Record:
    """How it ended, from its watcher; if that is gone too, found out here."""
    deadline = time.monotonic() + 3.0
    while is_running(record.watcher) and time.monotonic() < deadline:
        time.sleep(0.05)
        now = registry.read(record.name)
        if now is None or now.run != record.run:
            break
        if now.ended is not None:
            return now
    return tidy(record)


def _probe(record: Record) -> Seen:
    """What it answers. A server that nobody waited for until it was ready becomes ready here."""
    is_up = health.is_healthy(record.url, timeout_s=_ANSWERS_WITHIN_S)
    if record.ready_at_s is None:
        if not is_up:
            return Seen(record.name, "starting", "", record)
        with contextlib.suppress(SpecserveError):
            record = Detached(record).keep_ready() or record
    lately = recent(Path(record.log_path), now_s=time.time(), ready_at_s=record.ready_at_s or 0.0)
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
    still_s = time.time() - lately.still_since_s if lately.still_since_s else 0.0
    if metrics and metrics.running_requests + metrics.waiting_requests and still_s >= _STILL_S:
        waits = f"while {metrics.running_requests} requests run and {metrics.waiting_requests} wait"
        return "hung", f"no token for {still_s:.0f}s {waits}"
    return "ready", ""


def locate(server: str | None) -> tuple[str, Record | None]:
    """The URL of a server, and what is known of it if it is detached. `server`: its name or URL.

    Without it: the only detached server, else port 8000 of this host. Raises UsageError, FactError; also for a
    detached server that runs no longer.
    """
    if server is None and len(registry.names()) != 1:
        return registry.DEFAULT_URL, None
    if (
        server is not None
        and "://" not in server
        and (server.endswith((".yaml", ".yml")) or Path(server).is_file())
    ):
        raise UsageError(
            f"`{server}` is a file, not a server's name or URL",
            hint="`specserve up FILE --detach` starts one; `specserve ps` lists the running ones",
        )
    if server is not None and any(mark in server for mark in ":./"):  # which no name has
        return server, None
    record = registry.only_server(server)
    refuse_ended(record)
    return record.url, record


def find_server(server: str | None) -> tuple[str, str | None]:
    """The URL as `locate` has it, and for a detached server the variable with its key, if its profile names one."""
    url, record = locate(server)
    return url, record.api_key_env if record else None
