"""The detached servers of this user on this host: one folder each, written whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from specserve.errors import FactError, UsageError, quoted
from specserve.files import write_whole
from specserve.serve.files import private, read_own, state_folder

VERSION = 1
MOST_BYTES = 1 << 20
"""No state is larger."""
DEFAULT_URL = "http://127.0.0.1:8000"
"""Where a server is asked if none is named and none is detached."""
_FARTHEST = 1e15
_MOST_PID = 1 << 31
_MOST_PORT = 65535


class BrokenRecord(Exception):
    """The text is not a record: cut short, of another version, or not ours."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a server ended, if nobody had asked for it."""

    at_s: float
    """Seconds since the epoch: when it was noticed."""
    exit_code: int | None
    """Of vLLM's first process, negative for a signal; None if nobody saw it."""
    message: str
    cause: str
    hint: str | None = None
    removed: tuple[str, ...] = ()
    """What it had left and we removed."""


@dataclass(frozen=True, slots=True)
class LaunchedVariant:
    """Which launch of its profile a server is: what the command line said over the file."""

    alternative: str | None = None
    settings: tuple[str, ...] = ()
    """`key.path=value`, as `--set` takes it; never a value of `env`, nor of what a launch alone needs."""


_PROMISED = frozenset({"name", "target", "speculation", "alternatives", "expect", "hardware"})
"""Sections whose `--set` is kept with the state of a server: of `env` and the like nothing is."""


def variant_of(alternative: str | None, settings: Iterable[str]) -> LaunchedVariant:
    """What has to be known later of the command line, to say what the server promises."""
    kept = (setting for setting in settings if setting.partition("=")[0].partition(".")[0] in _PROMISED)
    return LaunchedVariant(alternative, tuple(kept))


def default_name(profile_name: str, *, variant: str | None) -> str:
    """The profile's name, with the variant that is served: both may run at the same time."""
    text = f"{profile_name}-{variant}" if variant else profile_name
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63]


@dataclass(frozen=True, slots=True)
class Record:
    """One server. Processes are (pid, start time in ticks): both must be right, and the boot too."""

    name: str
    run: str
    """A name of this launch that no other has."""
    boot_id: str
    started_at_s: float
    log_path: str
    profile: str
    fingerprint: str
    vllm: str
    url: str
    host: str
    port: int
    model: str
    method: str | None
    num_speculative_tokens: int | None
    devices: tuple[str, ...]
    """Accelerators that it may use, as CUDA_VISIBLE_DEVICES names them; `cpu`."""
    device_share: float | None
    """Share of each device's memory that it may take (vLLM's gpu_memory_utilization); None if bytes say it."""
    device_bytes: int | None
    """Bytes of each device's memory that it takes at least."""
    shutdown_timeout_s: float
    stall_timeout_s: float
    api_key_env: str | None
    """NAME of the variable that held the key."""
    launcher: tuple[int, int]
    """The command that started it and waits until it answers."""
    leader: tuple[int, int] | None = None
    """vLLM's first process."""
    watcher: tuple[int, int] | None = None
    """The process that waits for its end."""
    members: tuple[tuple[int, int], ...] = ()
    traces: tuple[str, ...] = ()
    """Shared memory that it holds, to be removed if it cannot do so itself."""
    scratch: str | None = None
    """Its temporary folder, which ends with it."""
    oom_kills: int = 0
    """How often the kernel had killed for memory when it was started."""
    ready_at_s: float | None = None
    stopper: tuple[int, int] | None = None
    """The command that is stopping it."""
    ended: Ended | None = None
    variant: LaunchedVariant = field(default_factory=LaunchedVariant)
    """A state that is older than this field tells no variant; `method` still says whether it speculates."""


def to_json(record: Record) -> str:
    """One JSON document."""
    return json.dumps({"version": VERSION, **dataclasses.asdict(record)}, indent=1) + "\n"


def from_json(text: str) -> Record:
    """The record of a text. Raises BrokenRecord if it is none."""
    if len(text) > MOST_BYTES:
        raise BrokenRecord("the file is too large")
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("version", None) != VERSION:
            raise BrokenRecord("its format is that of another version of specserve")
        record: Record = _typed(Record, content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BrokenRecord("the file is truncated, or does not hold a state") from error
    processes = (record.launcher, record.leader, record.watcher, record.stopper, *record.members)
    # signals are sent to what it names, and 1 is init
    if not 0 <= record.port <= _MOST_PORT or not all(1 < each[0] < _MOST_PID for each in processes if each):
        raise BrokenRecord("its values are out of range")
    return record


def _typed(kind: Any, value: Any) -> Any:
    """What a JSON value is as a declared type: a class, a union, or a tuple of such. Raises TypeError, KeyError."""
    parts = get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{name: _typed(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if isinstance(kind, UnionType):  # `X | None`
        return None if value is None else _typed(parts[0], value)
    if get_origin(kind) is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(_typed(part, item) for part, item in zip(kinds, value, strict=True))
    # neither NaN nor more than a float holds
    is_number = type(value) in (int, float) and abs(value) < _FARTHEST
    if is_number if kind is float else type(value) is kind:
        return value
    raise TypeError(f"{value!r} is not {kind}")


NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PATIENCE_S = 20.0


def folder_of(name: str) -> Path:
    """The folder of one server. Raises UsageError for what cannot be a name: it becomes part of a path."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} is not a valid server name",
            hint="use at most 63 lower-case letters, digits and `-`, such as `demo-2`",
        )
    return state_folder() / "servers" / name


def names() -> list[str]:
    """All that have a folder, running or not."""
    try:
        entries = list(os.scandir(state_folder() / "servers"))
    except OSError:
        return []
    return sorted(entry.name for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir())


def read(name: str) -> Record | None:
    """What is known of a server; None if there is none. Raises FactError if its state cannot be read."""
    path = folder_of(name) / "state.json"
    try:
        record = from_json(read_own(path, most_bytes=MOST_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FactError(f"the state of `{name}` cannot be read: {path}: {_why(error)}") from error
    except BrokenRecord as error:
        raise FactError(
            f"the state of `{name}` cannot be used: {path}: {error}",
            hint=f"run `specserve down {name}` to stop what runs under that name and clear its state",
        ) from error
    if record.name != name:
        raise FactError(f"the state of `{name}` belongs to `{record.name}`: {path}")
    return record


def write(record: Record) -> None:
    """Put it on disk, whole. Raises FactError if that fails."""
    with _writing(record.name):
        folder = private(folder_of(record.name))
        write_whole(folder / "state.json", to_json(record), mode=0o600)


@contextlib.contextmanager
def _writing(name: str) -> Iterator[None]:
    """Raises FactError if the state cannot be written."""
    try:
        yield
    except OSError as error:
        raise FactError(
            f"the state of `{name}` cannot be written: {folder_of(name)}: {_why(error)}"
        ) from error


def change(record: Record, **changes: Any) -> Record | None:
    """The same launch with these values, on disk; None if another launch, or none, has the name by now."""
    with held(record.name):
        now = read(record.name)
        if now is None or now.run != record.run:
            return None
        now = dataclasses.replace(now, **changes)
        write(now)
        return now


def remove(name: str, *, run: str | None = None) -> None:
    """Forget a server, or only this launch of it: the name may be another's by now."""
    with held(name):
        now = read(name) if run is not None else None
        if run is None or (now is not None and now.run == run):
            folder = folder_of(name)
            if folder.is_symlink():
                folder.unlink(missing_ok=True)  # what it leads to is not ours
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """For a moment, nobody else changes this server's state. Raises FactError if that cannot be had."""
    folder = folder_of(name).parent
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with _writing(name):
        descriptor = os.open(private(folder) / f".{name}.lock", flags, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _is_locked(descriptor):
            if time.monotonic() > deadline:
                raise FactError(f"another command has locked the state of `{name}`")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)  # releases it


def _is_locked(descriptor: int) -> bool:
    """Whether the lock is ours now."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def only_server(name: str | None) -> Record:
    """The server of that name, or the only one there is. Raises UsageError, FactError for a state that is broken."""
    known = names()
    if name is None:
        if not known:
            raise UsageError("there is no server", hint="`specserve up PROFILE --detach` starts one")
        if len(known) > 1:
            raise UsageError(f"there are {len(known)} servers: {', '.join(known)}", hint="name one")
        name = known[0]
    record = read(name)
    if record is None:
        hint = "`specserve ps` lists the servers; a URL looks like http://127.0.0.1:8000"
        raise UsageError(f"there is no server {name!r}", hint=hint)
    return record
