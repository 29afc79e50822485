"""Detached servers: a JSON file each, which the process that watches one writes, and how they are.

Nothing here starts or ends a server. What one left whose watcher was killed is removed by who looks
at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from specserve.errors import FactError, SpecserveError, UsageError, quoted, system_reason
from specserve.files import private, read_own, state_folder, write_whole
from specserve.serve import files
from specserve.serve.causes import died
from specserve.serve.client import Endpoint, endpoint, is_healthy, metrics
from specserve.serve.events import Phase
from specserve.serve.files import Process, identity
from specserve.serve.process import session

_MOST_BYTES = 1 << 20
_ANSWERS_WITHIN_S = 3.0
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
State = Literal["starting", "ready", "silent", "hung", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class Record:
    """One server. `watcher` is the specserve that started it, `leader` vLLM's first process.

    `settings` are as `--set` takes them, never of `env`; `api_key_env` is the NAME of the variable
    that held the key; `traces` is what vLLM's processes hold, if they cannot remove it; `end`,
    `cause` and `hint` say how it ended.
    """

    name: str
    watcher: Process
    started_at_s: float
    log_path: str
    url: str
    profile: str = ""
    alternative: str = ""
    settings: tuple[str, ...] = ()
    drafts: str = ""
    api_key_env: str = ""
    leader: Process | None = None
    traces: tuple[str, ...] = ()
    shutdown_timeout_s: float = 0.0
    state: State = "starting"
    end: str = ""
    cause: str = ""
    hint: str = ""

    @property
    def is_watched(self) -> bool:
        """Whether the process that watches it runs: ids are used again, but not at that time."""
        start = identity(self.watcher[0])[1]
        return start > 0 and start == self.watcher[1]

    @property
    def is_running(self) -> bool:
        """Whether any process of vLLM runs; the id of a dead first one stays its session's."""
        if self.leader is None:
            return False
        if start := identity(self.leader[0])[1]:
            return start == self.leader[1]
        return self.started_at_s > psutil.boot_time() and bool(session(self.leader[0]))

    @property
    def is_sound(self) -> bool:
        """Whether all of it is of its type: a file may be changed, and signals go to its pids."""
        texts = [getattr(self, each.name) for each in fields(self) if each.type == "str"]
        processes = [self.watcher, *filter(None, [self.leader])]
        seconds = (self.started_at_s, self.shutdown_timeout_s)
        return (
            all(isinstance(each, str) for each in (*texts, *self.settings, *self.traces))
            and self.state in ("starting", "ready", "stopping")
            and all(isinstance(each, int | float) for each in seconds)
            and all(type(pid) is type(since) is int for pid, since in processes)
            and all(1 < pid < 1 << 31 for pid, _ in processes)  # 1 is init
        )


def path_of(name: str) -> Path:
    """The file of one server. Raises UsageError for what cannot be a name."""
    if not NAME.fullmatch(name):
        hint = "use at most 63 lower-case letters, digits and `-`, such as `demo-2`"
        raise UsageError(f"{quoted(name)} is not a valid server name", hint=hint)
    return state_folder() / "servers" / f"{name}.json"


def names() -> list[str]:
    """All servers that have a file, running or not."""
    with contextlib.suppress(OSError):
        found = (state_folder() / "servers").glob("*.json")
        return sorted(path.stem for path in found if NAME.fullmatch(path.stem))
    return []


def read(name: str) -> Record | None:
    """What is known of a server; None if there is none. Raises FactError if that cannot be used."""
    path, why, record = path_of(name), "it does not hold a state", None
    try:
        record = from_json(read_own(path, most_bytes=_MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = system_reason(error)
    if record is None or record.name != name:
        raise FactError(
            f"the state of `{name}` cannot be used: {path}: {why}",
            hint=f"a server that runs writes it again; `specserve down {name}` clears it",
        )
    return record


def write(record: Record) -> None:
    """Put it on disk, whole. Raises FactError if that fails."""
    with _changing(record.name) as path:
        write_whole(private(path.parent) / path.name, to_json(record), mode=0o600)


def remove(name: str) -> None:
    """Forget a server. Raises FactError if its file stays."""
    with _changing(name) as path:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def _changing(name: str) -> Iterator[Path]:
    path = path_of(name)
    try:
        yield path
    except OSError as error:
        why = system_reason(error)
        raise FactError(f"the state of `{name}` cannot be written: {path}: {why}") from error


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Until it ends, no other command claims or clears this name. Raises FactError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with _changing(name) as path:
        descriptor = os.open(private(path.parent) / f".{name}.lock", flags, 0o600)
    with os.fdopen(descriptor):  # which releases it
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def to_json(record: Record) -> str:
    """The text of a record."""
    return json.dumps(asdict(record), indent=1) + "\n"


def from_json(text: str | bytes) -> Record | None:
    """The record of a text; None for any other text."""
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        content: dict[str, Any] = json.loads(text)
        lists = {key: tuple(value) for key, value in content.items() if isinstance(value, list)}
        record = Record(**{**content, **lists})
        return record if record.is_sound else None
    return None


def end_of(error: SpecserveError) -> dict[str, Any]:
    """How a server ended, as its record has it."""
    cause = error.causes[0] if error.causes else ""
    return {"end": error.message, "cause": cause, "hint": error.hint or ""}


def reap(record: Record) -> Record:
    """Remove what a server without a watcher left; its record, with how it ended."""
    if record.end or record.is_watched:
        return record
    end: dict[str, Any] = {"end": "the host was restarted", "cause": "it ran before the restart"}
    if record.started_at_s > psutil.boot_time():
        files.remove(map(Path, record.traces))
        phase = Phase.SERVING if record.state == "ready" else Phase.ENGINE
        end = end_of(died(Path(record.log_path), phase, exit_code=None))
    record = replace(record, **end)
    with contextlib.suppress(FactError):  # a full disk: the next command finds it out again
        write(record)
    return record


def settled(record: Record) -> Record:
    """The record, with how the server ended if neither it nor its watcher runs any more."""
    if not (record.end or record.is_watched or record.is_running):
        with locked(record.name):
            now = read(record.name)  # None: another command cleared it meanwhile, which stays so
            return reap(now) if now else replace(record, end="it was stopped")
    return record


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as it was found, and why so; `record` is None if it cannot be used."""

    name: str
    state: State
    detail: str = ""
    record: Record | None = None
    acceptance_rate: float | None = None
    """Accepted share of all its draft tokens."""


def observe_all() -> list[Seen]:
    """Every detached server of this user."""
    return [seen for name in names() if (seen := observe(name))]


def observe(name: str) -> Seen | None:
    """One server; None if there is none of that name."""
    try:
        record = read(name)
    except FactError as error:
        return Seen(name, "dead", error.message)
    if record is None:
        return None
    record = settled(record)
    if record.end:
        return Seen(name, "dead", ": ".join(filter(None, [record.end, record.cause])), record)
    if not record.is_watched:
        return Seen(name, "stopping", "the specserve that watched it was killed", record)
    if record.state != "ready":
        return Seen(name, record.state, "", record)
    found = metrics(record.url, timeout_s=_ANSWERS_WITHIN_S)
    rate = found.total.acceptance.acceptance_rate if found else None
    for process in session(record.leader[0]) if record.leader else ():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:
                why = f"its process {process.pid} was stopped (SIGSTOP): `kill -CONT {process.pid}`"
                return Seen(name, "hung", why, record, rate)
    if is_healthy(record.url, timeout_s=_ANSWERS_WITHIN_S):
        return Seen(name, "ready", "", record, rate)
    why = f"{record.url}/health does not answer 200 within {_ANSWERS_WITHIN_S:.0f}s"
    return Seen(name, "silent", why, record, rate)


def only_server(name: str | None) -> Record:
    """The server of that name, or the only one there is. Raises UsageError and FactError."""
    known = names() if name is None else [name]
    if len(known) != 1:
        text = f"there are {len(known) or 'no'} servers: {', '.join(known)}".rstrip(": ")
        raise UsageError(text, hint="name one; `specserve up PROFILE --detach` starts one")
    if (record := read(known[0])) is None:
        hint = "`specserve ps` lists the servers; a URL looks like http://127.0.0.1:8000"
        raise UsageError(f"there is no server {known[0]!r}", hint=hint)
    return record


def locate(server: str | None) -> tuple[Endpoint, Record | None]:
    """Where a server is, with its key, and what is known of it if it is detached.

    `server`: its name or URL; None: the only detached one, else port 8000 of this host. The key of
    a named URL is in VLLM_API_KEY, that of a detached server where its profile says. Raises
    UsageError, and FactError for a detached server that runs no longer.
    """
    if server is None and len(names()) != 1:
        return endpoint("http://127.0.0.1:8000", api_key_env=None), None
    if server and (Path(server).is_file() or server.endswith((".yaml", ".yml"))):
        hint = "`specserve up FILE --detach` starts one"
        raise UsageError(f"`{server}` is a file, not a server's name or URL", hint=hint)
    if server is not None and any(mark in server for mark in ":./"):  # which no name has
        return endpoint(server, api_key_env="VLLM_API_KEY"), None
    record = settled(only_server(server))
    if record.end:
        raise FactError(
            f"the server `{record.name}` is dead: {record.end}",
            causes=(record.cause,) if record.cause else (),
            hint=record.hint or f"`specserve logs {record.name}` shows its log",
        )
    return endpoint(record.url, api_key_env=record.api_key_env), record
