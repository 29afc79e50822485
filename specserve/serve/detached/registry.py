"""The servers of this user on this host: one folder each, written whole or not at all. Starts and stops nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specserve.errors import FactError, UsageError
from specserve.serve.detached.record import MOST_BYTES, BrokenRecord, Record, from_json, to_json
from specserve.serve.ownfiles import read_own, write_anew
from specserve.serve.statefolder import private, state_folder

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PATIENCE_S = 20.0


def folder_of(name: str) -> Path:
    """The folder of one server. Raises UsageError for what cannot be a name: it becomes part of a path."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a server", hint="lower-case letters, digits and `-`, such as `demo-2`"
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
    """What is known of a server; None where there is none. Raises FactError where its state cannot be read."""
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
            hint=f"`specserve down {name}` stops what runs under that name, and clears it",
        ) from error
    if record.name != name:
        raise FactError(f"the state of `{name}` is that of `{record.name}`: {path}")
    return record


def write(record: Record) -> None:
    """Put it on disk, whole. Raises FactError where that fails."""
    folder = folder_of(record.name)
    try:
        private(folder)
        temporary = folder / f".state-{os.getpid()}"
        try:
            write_anew(temporary, to_json(record).encode())
            temporary.replace(folder / "state.json")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FactError(f"the state of `{record.name}` cannot be written: {folder}: {_why(error)}") from error


def change(record: Record, **changes: Any) -> Record | None:
    """The same launch with these values, on disk; None where another launch, or none, has the name by now."""
    with held(record.name):
        now = read(record.name)
        if now is None or now.run != record.run:
            return None
        now = dataclasses.replace(now, **changes)
        write(now)
        return now


def remove(name: str, *, run: str | None = None) -> bool:
    """Forget a server, or only this launch of it. False where it was another's by now."""
    with held(name):
        if run is not None:
            now = read(name)
            if now is None or now.run != run:
                return False
        folder = folder_of(name)
        if folder.is_symlink():
            folder.unlink(missing_ok=True)  # what it leads to is not ours
        shutil.rmtree(folder, ignore_errors=True)
        return True


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """For a moment, nobody else changes this server's state. Raises FactError where that cannot be had."""
    path = state_folder() / "servers" / f".{name}.lock"
    folder_of(name)
    try:
        private(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FactError(f"the state of `{name}` cannot be written: {path.parent}: {_why(error)}") from error
    try:
        _wait_for(descriptor, name)
        yield
    finally:
        os.close(descriptor)  # releases it


def _wait_for(descriptor: int, name: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FactError(f"another command holds the state of `{name}`") from None
            time.sleep(0.05)
        else:
            return


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
