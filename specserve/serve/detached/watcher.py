"""The process that watches a detached server: it runs what `up` runs in the foreground.

`launch` starts it (`python -P -m specserve.serve.detached.watcher`), and speaks to it until the
server is ready. A SIGTERM stops it, and the server with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from specserve.errors import FactError, Interrupted, LaunchError, SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events, files, health
from specserve.serve.causes import died
from specserve.serve.detached import records
from specserve.serve.detached.records import Ended, Record, boot_id, identity
from specserve.serve.events import OnEvent, Phase
from specserve.serve.logs import default_log
from specserve.serve.process import Group, clear, resolve_env, session
from specserve.serve.server import refuse_taken_port, running
from specserve.serve.signals import StopRequest, stop_on_signals

_PIPE = 3
_REPAIRED_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started."""

    plan: LaunchPlan
    record: Record
    warms_up: bool


def launch(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    alternative: str | None = None,
    settings: tuple[str, ...] = (),
    log_path: Path | None = None,
    stop: StopRequest | None = None,
    on_event: OnEvent = events.ignore,
    warms_up: bool = False,
) -> Record:
    """Start the plan's server under a name; return when it is ready, and leave it.

    A signal until then stops it. Raises UsageError (no name, or a variable is unset), LaunchError
    (the name or the port is in use, it did not come up), Interrupted; nothing is left then.
    """
    resolve_env(plan.env)
    records.path_of(name)
    log_path = log_path or default_log(name)
    speculation = plan.speculation or {}
    count = speculation.get("num_speculative_tokens")
    record = Record(
        name=name,
        boot_id=boot_id(),
        watcher=identity(os.getpid()),
        started_at_s=time.time(),
        log_path=str(log_path),
        profile=profile,
        alternative=alternative,
        settings=records.promised(settings),
        url=plan.url,
        port=plan.port,
        model=plan.model,
        method=str(speculation["method"]) if "method" in speculation else None,
        num_speculative_tokens=count if isinstance(count, int) else None,
        api_key_env=plan.api_key_env,
        shutdown_timeout_s=plan.shutdown_timeout_s,
    )
    with contextlib.ExitStack() as stack:
        stop = stop or stack.enter_context(stop_on_signals())
        pipe, pid = _spawn(log_path)
        stack.enter_context(pipe)
        pipe.send(Start(replace(plan, env=dict(plan.env), origins=()), record, warms_up))
        sent = 0
        while True:
            if stop.count > sent:
                sent += 1
                os.kill(pid, stop.signal or signal.SIGTERM)
            try:
                message = pipe.recv() if pipe.poll(0.1) else None
            except (EOFError, OSError):
                message = LaunchError(f"specserve ended, so `{name}` did: see {log_path}")
                if sent:
                    message = Interrupted("it was stopped before it began", exit_code=143)
            if isinstance(message, Record):
                return message
            if isinstance(message, SpecserveError):
                os.waitpid(pid, 0)
                raise message
            if message is not None:
                on_event(message)


def _spawn(log_path: Path) -> tuple[Connection, int]:
    """Start the watcher; returns the pipe to it, and its process id. It writes to vLLM's log."""
    try:
        files.private(log_path.parent)
        log = files.append_own(log_path)
    except OSError as error:
        raise LaunchError(f"cannot write the log `{log_path}`: {error.strerror}") from error
    ours, theirs = Pipe()
    try:
        with theirs:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", __name__],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _PIPE),
                ],
                setsid=True,
            )
    finally:
        os.close(log)
    return ours, pid


class Watch:
    """The record of the server that this process watches; nobody else writes it meanwhile."""

    def __init__(self, start: Start, pipe: Connection) -> None:
        self.record = replace(start.record, watcher=identity(os.getpid()))
        self.killed = False
        self._plan, self._pipe = start.plan, pipe

    def claim(self) -> None:
        """Take the name. Raises LaunchError if another server has it, or the port."""
        name = self.record.name
        with records.locked(name):
            before = records.read(name)
            if before is not None and (before.is_watched or before.is_running(before.leader)):
                raise LaunchError(
                    f"`{name}` is already running at {before.url}",
                    hint=f"`specserve down {name}` stops it; use `--name` to give this one"
                    " another name",
                )
            if before is not None:
                reap(before)
            refuse_taken_port(self._plan)
            records.write(self.record)

    def keep(self, **changes: Any) -> None:
        """Change the record, and write it again if it is not on disk as it is here."""
        self.record = replace(self.record, **changes)
        with contextlib.suppress(FactError):  # a full disk must not end a server
            try:
                is_there = not changes and records.read(self.record.name) == self.record
            except FactError:
                is_there = False
            if not is_there:
                records.write(self.record)

    def note_members(self) -> None:
        """Keep what has to be ended and removed if this process cannot do it."""
        if self.record.leader is None:
            return
        living = session(self.record.leader[0])
        traces = {*self.record.traces, *map(str, files.traces(each.pid for each in living))}
        self.keep(
            members=tuple(identity(each.pid) for each in living), traces=tuple(sorted(traces))
        )

    def __call__(self, event: events.Event) -> None:
        """Note the news, and hand it on for as long as somebody listens."""
        match event:
            case events.Started(pid):
                self.keep(leader=identity(pid))
            case events.PhaseStarted():
                self.note_members()
            case events.Hangs(for_s, running_requests, waiting):
                waits = f"while {running_requests} requests run and {waiting} wait"
                self.keep(trouble=f"no token for {for_s:.0f}s {waits}")
            case events.GoesOn():
                self.keep(trouble="")
            case events.Stopping():
                self.keep(is_stopping=True)
            case events.Stopped():
                self.killed = event.killed
        self.tell(event)

    def tell(self, message: events.Event | Record | SpecserveError) -> None:
        """Send it to `launch`, if that still waits."""
        with contextlib.suppress(OSError):
            self._pipe.send(message)


def main() -> None:
    """Run the server of the request to its end, whatever that is."""
    with Connection(_PIPE) as pipe, stop_on_signals() as stop:
        os.set_inheritable(_PIPE, False)
        start: Start = pipe.recv()
        watch = Watch(start, pipe)
        try:
            watch.claim()
        except SpecserveError as error:
            watch.tell(error)
            return
        try:
            with running(
                start.plan,
                log_path=Path(watch.record.log_path),
                on_event=watch,
                stop=stop,
                warms_up=start.warms_up,
            ) as server:
                watch.note_members()
                if found := health.metrics(start.plan.url):
                    warm = found.total.acceptance
                    watch.keep(warm_up=(warm.draft_tokens, warm.accepted_tokens))
                watch.keep(ready_at_s=time.time())
                watch.tell(watch.record)
                server.wait(watch.keep)
        except SpecserveError as error:
            if watch.record.ready_at_s is None:
                with contextlib.suppress(FactError):
                    records.remove(watch.record.name)
                watch.tell(error)
                return
            watch.keep(ended=_ended(error))
        else:
            watch.keep(ended=Ended("vLLM was stopped", killed=watch.killed))


def _ended(error: SpecserveError) -> Ended:
    return Ended(error.message, error.causes[0] if error.causes else "", error.hint)


class Unwatched(Group):
    """What is left of a server whose watcher is gone."""

    exit_code = None

    def __init__(self, record: Record) -> None:
        self._record = record
        self.pid = record.leader[0] if record.leader else 0
        self.log_path = Path(record.log_path)
        self.traces = frozenset(map(Path, record.traces))

    def is_running(self) -> bool:
        """Whether vLLM's first process runs."""
        return self._record.is_running(self._record.leader)

    def members(self) -> list[psutil.Process]:
        """The processes that the record names and that still run."""
        found = []
        for process in {self._record.leader, *self._record.members}:
            if process is not None and self._record.is_running(process):
                with contextlib.suppress(psutil.Error):
                    found.append(psutil.Process(process[0]))
        return found


def reap(record: Record) -> Record:
    """End what is left of a server without a watcher; its record, with how it ended."""
    if record.ended is not None or record.is_watched:
        return record
    if record.boot_id != boot_id():
        ended = Ended("the host was restarted", "it ran before the restart")
    else:
        clear(Unwatched(record))
        phase = Phase.ENGINE if record.ready_at_s is None else Phase.SERVING
        ended = _ended(died(Unwatched(record), phase))
    record = replace(record, ended=ended)
    with contextlib.suppress(FactError):  # a full disk: the next command finds it out again
        records.write(record)
    return record


def stop_server(name: str, *, stop: StopRequest, emit: OnEvent) -> Record | None:
    """End a server, what is left of it, and forget it; returns its last record, None without one.

    Raises FactError if a process cannot be ended, or the file stays.
    """
    record = _read_patiently(name)
    began_s, sent = time.monotonic(), 0
    while record is not None and record.is_watched:
        if sent < 1 + (stop.count >= 2):  # a second Ctrl-C
            if sent == 0 and record.ready_at_s is not None:
                emit(events.Stopping("SIGTERM", record.shutdown_timeout_s))
            sent += 1
            with contextlib.suppress(OSError):
                os.kill(record.watcher[0], signal.SIGTERM)
        stop.wait(0.05)
    with records.locked(name):
        now = _read_patiently(name)
        if record is not None and (now is None or now.watcher == record.watcher):
            record = reap(now or record)
            if sent:
                killed = record.ended is not None and record.ended.killed
                emit(events.Stopped(time.monotonic() - began_s, killed=killed))
        if now is None or record is None or now.watcher == record.watcher:
            records.remove(name)
    return record


def _read_patiently(name: str) -> Record | None:
    """The record, or None if it cannot be used; one of a server that runs is repaired soon."""
    deadline = time.monotonic() + _REPAIRED_WITHIN_S
    while True:
        try:
            return records.read(name)
        except FactError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)


if __name__ == "__main__":
    main()
