"""The process that watches a detached server: it runs what `up` runs in the foreground.

`launch` starts it (`python -P -m specserve.serve.watcher`), and speaks to it until the server is
ready. A SIGTERM stops it, and the server with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from specserve.errors import FactError, Interrupted, LaunchError, SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events, files, records
from specserve.serve.events import OnEvent
from specserve.serve.files import identity
from specserve.serve.logs import default_log, open_log
from specserve.serve.process import (
    StopRequest,
    clear_session,
    resolve_env,
    session,
    stop_on_signals,
)
from specserve.serve.records import Record, end_of, reap
from specserve.serve.server import refuse_taken_port, running

_REPAIRED_WITHIN_S, _GUARDED_WITHIN_S = 3.0, 10.0
_KEPT = frozenset({"name", "target", "speculation", "alternatives", "expect", "hardware"})
"""Sections whose settings of a command line are recorded: of `env` and the like nothing is."""


def launch(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    alternative: str = "",
    settings: tuple[str, ...] = (),
    log_path: Path | None = None,
    on_event: OnEvent = lambda _event: None,
) -> Record:
    """Start the plan's server under a name; return when it is ready, and leave it.

    A signal until then stops it. Raises UsageError (no name, or a variable is unset), LaunchError
    (the name or the port is in use, it did not come up), Interrupted; nothing is left then.
    """
    resolve_env(plan.env)
    records.path_of(name)
    log_path, speculation = log_path or default_log(name), plan.speculation or {}
    k = speculation.get("num_speculative_tokens")
    record = Record(
        name=name,
        watcher=identity(os.getpid()),
        started_at_s=time.time(),
        log_path=str(log_path),
        profile=profile,
        alternative=alternative,
        settings=tuple(s for s in settings if s.partition("=")[0].partition(".")[0] in _KEPT),
        url=plan.url,
        drafts=f"{speculation.get('method', '')}{f' K={k}' if k else ''}",
        api_key_env=plan.api_key_env or "",
        shutdown_timeout_s=plan.shutdown_timeout_s,
    )
    log = open_log(log_path)
    pipe, theirs = Pipe()
    with stop_on_signals() as stop, pipe:
        with theirs:
            streams = ((theirs.fileno(), 0), (log, 1), (log, 2))
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", __name__],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, *each) for each in streams],
                setsid=True,
            )
        os.close(log)
        pipe.send((replace(plan, env=dict(plan.env), origins=()), record))
        sent = 0
        while True:
            if stop.count > sent:
                sent += 1
                os.kill(pid, stop.signal or signal.SIGTERM)
            try:
                message = pipe.recv() if pipe.poll(0.1) else None
            except (EOFError, OSError):
                if sent:
                    raise Interrupted("it was stopped before it began", exit_code=143) from None
                message = LaunchError(f"specserve ended, so `{name}` did: see {log_path}")
            if isinstance(message, Record):
                return message
            if isinstance(message, SpecserveError):
                os.waitpid(pid, 0)
                raise message
            if message is not None:
                on_event(message)


class Watch:
    """The record of the server that this process watches; nobody else writes it meanwhile."""

    def __init__(self, record: Record, pipe: Connection) -> None:
        self.record = replace(record, watcher=identity(os.getpid()))
        self._pipe = pipe

    def claim(self, plan: LaunchPlan) -> None:
        """Take the name. Raises LaunchError if another server has it, or the port."""
        name = self.record.name
        with records.locked(name):
            if before := records.read(name):
                if before.is_watched or before.is_running:
                    hint = f"`specserve down {name}` stops it; `--name` gives this one another name"
                    raise LaunchError(f"`{name}` is already running at {before.url}", hint=hint)
                reap(before)
            refuse_taken_port(plan)
            records.write(self.record)

    def keep(self, **changes: Any) -> None:
        """Change the record, and write it again if it is not on disk as it is here."""
        self.record, before = replace(self.record, **changes), None
        with contextlib.suppress(FactError):
            before = records.read(self.record.name)
        with contextlib.suppress(FactError):  # a full disk must not end a server
            if before != self.record:
                records.write(self.record)

    def __call__(self, event: events.Event) -> None:
        """Note the news, and hand it on for as long as somebody listens."""
        match event:
            case events.Started(pid):
                self.keep(leader=identity(pid))
            case events.Progress(took_s=0.0) | events.Ready() if self.record.leader is not None:
                # what has to be removed if this process cannot do it
                found = files.traces(each.pid for each in session(self.record.leader[0]))
                traces = {*self.record.traces, *map(str, found)}
                self.keep(traces=tuple(sorted(traces)))
            case events.Stopping():
                self.keep(state="stopping")
        self.tell(event)

    def tell(self, message: events.Event | Record | SpecserveError) -> None:
        """Send it to `launch`, if that still waits."""
        with contextlib.suppress(OSError):
            self._pipe.send(message)


def main() -> None:
    """Run the server of the request to its end, whatever that is."""
    with Connection(0) as pipe, stop_on_signals() as stop:
        plan, record = pipe.recv()
        watch, log_path = Watch(record, pipe), Path(record.log_path)
        is_claimed = is_ready = False
        try:
            watch.claim(plan)
            is_claimed = True
            with running(plan, log_path=log_path, on_event=watch, stop=stop) as server:
                is_ready = True
                watch.keep(state="ready")
                watch.tell(watch.record)
                server.wait(watch.keep)
            watch.keep(end="vLLM was stopped")
        except SpecserveError as error:
            if is_ready:
                watch.keep(**end_of(error))
                return
            with contextlib.suppress(FactError):
                if is_claimed:
                    records.remove(watch.record.name)
            watch.tell(error)


def stop_server(name: str, *, stop: StopRequest) -> Record | None:
    """End a server and forget it; returns its last record, None without one.

    Without its watcher its guard ends it; it is killed if that is gone too, or at a second Ctrl-C.
    Raises FactError if its file stays, or the kernel keeps a process.
    """
    record, sent, alone_s = _read_patiently(name), 0, 0.0
    while record is not None and (record.is_watched or record.is_running):
        if not record.is_watched:
            alone_s = alone_s or time.monotonic()
            ends_s = alone_s + record.shutdown_timeout_s + _GUARDED_WITHIN_S
            if record.leader and (stop.count >= 2 or time.monotonic() > ends_s):
                clear_session(record.leader[0], map(Path, record.traces))
        elif sent < 1 + (stop.count >= 2):
            sent += 1
            with contextlib.suppress(OSError):
                os.kill(record.watcher[0], signal.SIGTERM)
        stop.wait(0.05)
    with records.locked(name):
        now = _read_patiently(name)
        if record is None or now is None or now.watcher == record.watcher:
            record = reap(now or record) if record else None
            records.remove(name)
    return record


def _read_patiently(name: str) -> Record | None:
    """The record, or None if it cannot be used; one of a server that runs is repaired soon."""
    deadline = time.monotonic() + _REPAIRED_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FactError):
            return records.read(name)
        time.sleep(0.1)
    return None


if __name__ == "__main__":
    main()
