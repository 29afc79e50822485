"""Detached servers: a JSON file each, which the process that watches one writes, and how they are.

Nothing here starts a server; what one left whose watcher was killed is ended by who looks at it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from specserve.errors import FactError, SpecserveError, UsageError, quoted, system_reason
from specserve.files import write_whole
from specserve.serve import requests
from specserve.serve.files import Process, is_alive, private, read_own, state_folder

_MOST_BYTES = 1 << 20
_PATIENCE_S, _ANSWERS_WITHIN_S = 20.0, 3.0
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
State = Literal["starting", "ready", "silent", "hung", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a server ended. `cause` is empty if it was asked to; `killed`: it took SIGKILL."""

    message: str
    cause: str = ""
    hint: str | None = None
    killed: bool = False

    @classmethod
    def by(cls, error: SpecserveError) -> Ended:
        """By what was raised."""
        return cls(error.message, error.causes[0] if error.causes else "", error.hint)


@dataclass(frozen=True, slots=True)
class Record:
    """One server. `watcher` is the specserve that started it, `leader` vLLM's first process.

    `settings` are as `--set` takes them, never of `env`; `api_key_env` is the NAME of the variable
    that held the key; `traces` is what the members hold, to be removed if they cannot do it.
    """

    name: str
    boot_id: str
    watcher: Process
    started_at_s: float
    log_path: str
    profile: str
    alternative: str | None
    settings: tuple[str, ...]
    url: str
    port: int
    drafts: str
    api_key_env: str | None
    shutdown_timeout_s: float
    leader: Process | None = None
    members: tuple[Process, ...] = ()
    traces: tuple[str, ...] = ()
    is_ready: bool = False
    is_stopping: bool = False
    ended: Ended | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the process that watches it runs."""
        return self.is_running(self.watcher)

    def is_running(self, process: Process | None) -> bool:
        """Whether this very process still runs: ids are used again, and a reboot begins anew."""
        is_of_now = process is not None and self.boot_id == boot_id()
        return is_of_now and process is not None and is_alive(process[0], since=process[1])


def boot_id() -> str:
    """A name of this boot of this host; empty if the kernel has none."""
    with contextlib.suppress(OSError, ValueError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def default_name(profile_name: str, *, variant: str | None) -> str:
    """The profile's name, with the variant that is served: both may run at the same time."""
    text = f"{profile_name}-{variant}" if variant else profile_name
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63]


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
    path, why = path_of(name), "it does not hold a state"
    try:
        record = from_json(read_own(path, most_bytes=_MOST_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        why = system_reason(error) if isinstance(error, OSError) else why
        raise FactError(
            f"the state of `{name}` cannot be used: {path}: {why}",
            hint=f"a server that runs writes it again; `specserve down {name}` clears it",
        ) from error
    if record.name != name:
        raise FactError(f"the state of `{name}` belongs to `{record.name}`: {path}")
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
    flags, deadline = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, time.monotonic() + _PATIENCE_S
    with _changing(name) as path:
        descriptor = os.open(private(path.parent) / f".{name}.lock", flags, 0o600)
    with os.fdopen(descriptor):  # which releases it
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise FactError(f"another command has locked the state of `{name}`")
            time.sleep(0.05)
        yield


def to_json(record: Record) -> str:
    """One JSON document."""
    return json.dumps(dataclasses.asdict(record), indent=1) + "\n"


def from_json(text: str) -> Record:
    """The record of a text. Raises ValueError, TypeError, LookupError and the like."""
    content = {name: _tuples(value) for name, value in json.loads(text).items()}
    ended = content.pop("ended")
    record = Record(**content, ended=Ended(**ended) if ended else None)
    for pid, since in (record.watcher, *filter(None, [record.leader]), *record.members):
        # signals are sent to what it names, and 1 is init
        if not (type(pid) is type(since) is int and 1 < pid < 1 << 31):
            raise ValueError("a process id is out of range")
    return record


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def reap(record: Record) -> Record:
    """End what is left of a server without a watcher; its record, with how it ended."""
    from specserve.serve.causes import died
    from specserve.serve.events import Phase
    from specserve.serve.process import Group

    if record.ended is not None or record.is_watched:
        return record
    ended = Ended("the host was restarted", "it ran before the restart")
    if record.boot_id == boot_id():
        left = Group(Path(record.log_path), record.leader, record.members, record.traces)
        left.clear()
        ended = Ended.by(died(left, Phase.SERVING if record.is_ready else Phase.ENGINE))
    record = dataclasses.replace(record, ended=ended)
    with contextlib.suppress(FactError):  # a full disk: the next command finds it out again
        write(record)
    return record


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as it was found, and why it is so if that needs a sentence.

    `record` is None if its state cannot be used.
    """

    name: str
    state: State
    detail: str = ""
    record: Record | None = None
    acceptance_rate: float | None = None
    """Accepted share of all its draft tokens."""


def observe_all() -> Iterator[Seen]:
    """Every detached server of this user."""
    yield from filter(None, map(observe, names()))


def observe(name: str) -> Seen | None:
    """One server; None if there is none of that name."""
    try:
        record = read(name)
    except FactError as error:
        return Seen(name, "dead", error.message)
    if record is None:
        return None
    if not record.is_watched and record.ended is None:
        if record.is_running(record.leader):
            return Seen(name, "stopping", "the specserve that watched it was killed", record)
        with locked(name):
            record = reap(read(name) or record)
    if record.ended is not None:
        detail = ": ".join(filter(None, [record.ended.message, record.ended.cause]))
        return Seen(name, "dead", detail, record)
    if record.is_stopping or not record.is_ready:
        return Seen(name, "stopping" if record.is_stopping else "starting", "", record)
    url, rate = record.url, None
    if found := requests.metrics(url, timeout_s=_ANSWERS_WITHIN_S, verify=False):
        rate = found.total.acceptance.acceptance_rate
    for pid, _ in record.members:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                why = f"its process {pid} was stopped (SIGSTOP): `kill -CONT {pid}`"
                return Seen(name, "hung", why, record, rate)
    if not requests.is_healthy(url, timeout_s=_ANSWERS_WITHIN_S):
        why = f"{url}/health does not answer 200 within {_ANSWERS_WITHIN_S:.0f}s"
        return Seen(name, "silent", why, record, rate)
    return Seen(name, "ready", "", record, rate)


def only_server(name: str | None) -> Record:
    """The server of that name, or the only one there is. Raises UsageError and FactError."""
    known = names() if name is None else [name]
    if not known:
        raise UsageError("there is no server", hint="`specserve up PROFILE --detach` starts one")
    if len(known) > 1:
        raise UsageError(f"there are {len(known)} servers: {', '.join(known)}", hint="name one")
    if (record := read(known[0])) is None:
        hint = "`specserve ps` lists the servers; a URL looks like http://127.0.0.1:8000"
        raise UsageError(f"there is no server {known[0]!r}", hint=hint)
    return record


def locate(server: str | None) -> tuple[str, Record | None]:
    """The URL of a server, and what is known of it if it is detached. `server`: its name or URL.

    Without it: the only detached server, else port 8000 of this host. Raises UsageError, and
    FactError for a detached server that runs no longer.
    """
    if server is None and len(names()) != 1:
        return "http://127.0.0.1:8000", None
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
        ended = (seen.record and seen.record.ended) or Ended(seen.detail)
        hint = f"`specserve logs {record.name}` shows its log"
        raise FactError(
            f"the server `{record.name}` is dead: {ended.message}",
            causes=(ended.cause,) if ended.cause else (),
            hint=ended.hint or hint,
        )
    return record.url, record
