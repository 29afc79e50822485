"""What is known of detached servers: a JSON file each, written by the process that watches it."""

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
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from specserve.errors import FactError, UsageError, quoted, system_reason
from specserve.files import write_whole
from specserve.serve.files import is_alive, private, read_own, state_folder, ticks

_MOST_BYTES = 1 << 20
_FARTHEST = 1e15
_PATIENCE_S = 20.0
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PROMISED = frozenset({"name", "target", "speculation", "alternatives", "expect", "hardware"})
Process = tuple[int, int]
"""A process id, and when that process started, in clock ticks since the boot."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a server ended. `cause` is empty if it was asked to."""

    message: str
    cause: str = ""
    hint: str | None = None
    killed: bool = False
    """Whether it took SIGKILL."""


@dataclass(frozen=True, slots=True)
class Record:
    """One server."""

    name: str
    boot_id: str
    watcher: Process
    """The specserve that started it, and stops it."""
    started_at_s: float
    log_path: str
    profile: str
    alternative: str | None
    settings: tuple[str, ...]
    """`key.path=value`, as `--set` takes it; never a value of `env`."""
    url: str
    port: int
    model: str
    method: str | None
    num_speculative_tokens: int | None
    api_key_env: str | None
    """NAME of the variable that held the key."""
    shutdown_timeout_s: float
    leader: Process | None = None
    """vLLM's first process."""
    members: tuple[Process, ...] = ()
    traces: tuple[str, ...] = ()
    """Shared memory that they hold, to be removed if they cannot do so themselves."""
    ready_at_s: float | None = None
    warm_up: tuple[int, int] = (0, 0)
    """Draft tokens, and those accepted, before anybody else could ask it."""
    is_stopping: bool = False
    trouble: str = ""
    """Why no token comes, if none does."""
    ended: Ended | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the process that watches it runs."""
        return self.is_running(self.watcher)

    def is_running(self, process: Process | None) -> bool:
        """Whether this very process still runs: ids are used again, and a reboot begins anew."""
        is_now = process is not None and self.boot_id == boot_id()
        return is_now and process is not None and is_alive(process[0], since=process[1])


def identity(pid: int) -> Process:
    """A process as a record names it."""
    return pid, ticks(pid) or 0


def boot_id() -> str:
    """A name of this boot of this host; empty if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def promised(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a command line's settings that are kept: of `env` and the like nothing is."""
    return tuple(s for s in settings if s.partition("=")[0].partition(".")[0] in _PROMISED)


def default_name(profile_name: str, *, variant: str | None) -> str:
    """The profile's name, with the variant that is served: both may run at the same time."""
    text = f"{profile_name}-{variant}" if variant else profile_name
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63]


def path_of(name: str) -> Path:
    """The file of one server. Raises UsageError for what cannot be a name."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} is not a valid server name",
            hint="use at most 63 lower-case letters, digits and `-`, such as `demo-2`",
        )
    return state_folder() / "servers" / f"{name}.json"


def names() -> list[str]:
    """All servers that have a file, running or not."""
    found = (state_folder() / "servers").glob("*.json")
    with contextlib.suppress(OSError):
        return sorted(path.stem for path in found if NAME.fullmatch(path.stem))
    return []


def read(name: str) -> Record | None:
    """What is known of a server; None if there is none. Raises FactError if that cannot be used."""
    path = path_of(name)
    try:
        record = from_json(read_own(path, most_bytes=_MOST_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = system_reason(error) if isinstance(error, OSError) else "it does not hold a state"
        raise FactError(
            f"the state of `{name}` cannot be used: {path}: {why}",
            hint=f"a server that runs writes it again; `specserve down {name}` clears it",
        ) from error
    if record.name != name:
        raise FactError(f"the state of `{name}` belongs to `{record.name}`: {path}")
    return record


def write(record: Record) -> None:
    """Put it on disk, whole. Raises FactError if that fails."""
    path = path_of(record.name)
    try:
        write_whole(private(path.parent) / path.name, to_json(record), mode=0o600)
    except OSError as error:
        why = system_reason(error)
        raise FactError(f"the state of `{record.name}` cannot be written: {path}: {why}") from error


def remove(name: str) -> None:
    """Forget a server. Raises FactError if its file stays."""
    path = path_of(name)
    try:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    except OSError as error:
        raise FactError(f"cannot remove {path}: {system_reason(error)}") from error


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Until it ends, no other command claims or clears this name. Raises FactError."""
    folder = path_of(name).parent
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(private(folder) / f".{name}.lock", flags, 0o600)
    except OSError as error:
        why = system_reason(error)
        raise FactError(f"the state of `{name}` cannot be written: {folder}: {why}") from error
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise FactError(f"another command has locked the state of `{name}`")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)  # releases it


def to_json(record: Record) -> str:
    """One JSON document."""
    return json.dumps(dataclasses.asdict(record), indent=1) + "\n"


def from_json(text: str) -> Record:
    """The record of a text. Raises ValueError, TypeError, KeyError or RecursionError."""
    if len(text) > _MOST_BYTES:
        raise ValueError("the file is too large")
    record: Record = _typed(Record, json.loads(text))
    # signals are sent to what it names, and 1 is init
    if not all(
        1 < each[0] < 1 << 31 for each in (record.watcher, record.leader, *record.members) if each
    ):
        raise ValueError("a process id is out of range")
    if not 0 <= record.port < 1 << 16:
        raise ValueError("the port is out of range")
    return record


def _typed(kind: Any, value: Any) -> Any:
    """What a JSON value is as a declared type. Raises TypeError, KeyError, ValueError."""
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
