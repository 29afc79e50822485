"""How a detached server is right now, by its record, processes and answers; and which is meant."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from specserve.errors import FactError, UsageError
from specserve.serve import health
from specserve.serve.detached import records
from specserve.serve.detached.records import Record

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where a server is asked if none is named and none is detached."""
State = Literal["starting", "ready", "silent", "hung", "stopping", "dead"]
_ANSWERS_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as it was found. `record` is None if its state cannot be used."""

    name: str
    state: State
    detail: str = ""
    """Why it is so, in one sentence, if that needs one."""
    record: Record | None = None
    acceptance_rate: float | None = None
    """Accepted share of the draft tokens since it was ready."""
    running_requests: int | None = None
    waiting_requests: int | None = None


def observe_all() -> Iterator[Seen]:
    """Every detached server of this user."""
    yield from filter(None, map(observe, records.names()))


def observe(name: str) -> Seen | None:
    """One server; None if there is none of that name."""
    try:
        record = records.read(name)
    except FactError as error:
        return Seen(name, "dead", error.message)
    if record is None:
        return None
    if not record.is_watched and record.ended is None:
        if record.is_running(record.leader):
            return Seen(name, "stopping", "the specserve that watched it was killed", record)
        from specserve.serve.detached.watcher import reap

        with records.locked(name):
            record = reap(records.read(name) or record)
    if record.ended is not None:
        detail = ": ".join(filter(None, [record.ended.message, record.ended.cause]))
        return Seen(name, "dead", detail, record)
    if record.is_stopping:
        return Seen(name, "stopping", "", record)
    if record.ready_at_s is None:
        return Seen(name, "starting", "", record)
    found = health.metrics(record.url, timeout_s=_ANSWERS_WITHIN_S)
    state, detail = _trouble(record)
    if found is None:
        return Seen(name, state, detail, record)
    total, (drafted, accepted) = found.total.acceptance, record.warm_up
    drafted, accepted = total.draft_tokens - drafted, total.accepted_tokens - accepted
    rate = accepted / drafted if drafted > 0 else None
    return Seen(name, state, detail, record, rate, found.running_requests, found.waiting_requests)


def _trouble(record: Record) -> tuple[State, str]:
    """`ready`, or what is wrong with a server that runs."""
    for process in record.members:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(process[0]).status() == psutil.STATUS_STOPPED:
                why = f"its process {process[0]} was stopped (SIGSTOP): `kill -CONT {process[0]}`"
                return "hung", why
    if record.trouble:
        return "hung", record.trouble
    if not health.is_healthy(record.url, timeout_s=_ANSWERS_WITHIN_S):
        why = f"{record.url}/health does not answer 200 within {_ANSWERS_WITHIN_S:.0f}s"
        return "silent", why
    return "ready", ""


def only_server(name: str | None) -> Record:
    """The server of that name, or the only one there is. Raises UsageError and FactError."""
    known = records.names()
    if name is None:
        if not known:
            raise UsageError(
                "there is no server", hint="`specserve up PROFILE --detach` starts one"
            )
        if len(known) > 1:
            raise UsageError(f"there are {len(known)} servers: {', '.join(known)}", hint="name one")
        name = known[0]
    record = records.read(name)
    if record is None:
        hint = "`specserve ps` lists the servers; a URL looks like http://127.0.0.1:8000"
        raise UsageError(f"there is no server {name!r}", hint=hint)
    return record


def locate(server: str | None) -> tuple[str, Record | None]:
    """The URL of a server, and what is known of it if it is detached. `server`: its name or URL.

    Without it: the only detached server, else port 8000 of this host. Raises UsageError, and
    FactError for a detached server that runs no longer.
    """
    if server is None and len(records.names()) != 1:
        return DEFAULT_URL, None
    if server and (server.endswith((".yaml", ".yml")) or Path(server).is_file()):
        raise UsageError(
            f"`{server}` is a file, not a server's name or URL",
            hint="`specserve up FILE --detach` starts one; `specserve ps` lists those that run",
        )
    if server is not None and any(mark in server for mark in ":./"):  # which no name has
        return server, None
    record = only_server(server)
    runs = record.is_watched and record.ended is None
    if not runs and (seen := observe(record.name)) and seen.state == "dead":
        hint = (
            f"`specserve logs {record.name}` shows its log; `specserve down {record.name}` ends it"
        )
        ended = seen.record.ended if seen.record else None
        raise FactError(
            f"the server `{record.name}` is dead: {ended.message if ended else seen.detail}",
            causes=(ended.cause,) if ended and ended.cause else (),
            hint=(ended and ended.hint) or hint,
        )
    return record.url, record


def find_server(server: str | None) -> tuple[str, str | None]:
    """The URL as `locate` has it, and the variable with a detached server's key, if it has one."""
    url, record = locate(server)
    return url, record.api_key_env if record else None


def running_records() -> Iterator[Record]:
    """The records of the detached servers that run, or start."""
    for name in records.names():
        with contextlib.suppress(FactError):
            record = records.read(name)
            if record is not None and record.is_watched:
                yield record


def running_command(name: str) -> list[str] | None:
    """The command of a detached server as its process has it; None if none has that name."""
    if name not in records.names():
        return None
    record = records.read(name)
    if record is None or record.leader is None or not record.is_running(record.leader):
        raise UsageError(
            f"the server `{name}` is not running", hint="`specserve ps` lists the servers"
        )
    words = psutil.Process(record.leader[0]).cmdline()
    # a script's first word is its interpreter
    return words[1:] if "python" in Path(words[0]).name else words
