"""The directory of one run, and what happens while it runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specserve.errors import FactError, UsageError
from specserve.measure.bench.driver import Pass, Request
from specserve.measure.bench.result import Point, from_json
from specserve.serve.files import append_own, private, read_own, state_folder, write_anew

RUN, PASSES, REQUESTS = "run.json", "passes.jsonl", "requests.jsonl"
VERSION = 2
_KEY = ("launch", "block", "arm", "point")
"""What tells a pass from every other one of a run."""
_MOST_BYTES = 1 << 30


def new_place(kind: str, stem: str) -> Path:
    """A new directory in the user's state folder: STEM, or the first of STEM-2, STEM-3, … that is free."""
    folder = state_folder() / kind
    found, number = folder / stem, 1
    while found.exists() or found.is_symlink():
        number += 1
        found = folder / f"{stem}-{number}"
    return found


class RunDirectory:
    """A run while it is written; a context manager that lets nobody else write it. Made by `create` or `resume`."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content
        """run.json."""
        try:
            self._lock = append_own(path / PASSES)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(f"another `specserve bench` or `tune` is writing `{path}`") from None
        except OSError as error:
            raise _unwritable(path, error) from error

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._lock)

    def log(self, name: str) -> Path:
        """Where the log of a server or of the load generator goes."""
        return self.path / "logs" / f"{name}.log"

    def append(self, done: Pass) -> None:
        """Keep a pass: its requests first, so that a pass is there only if all its requests are."""
        content = asdict(replace(done, requests=()))
        place = {name: content[name] for name in _KEY}
        _append(self.path / REQUESTS, [place | asdict(request) for request in done.requests])
        _append(self.path / PASSES, [content | {"requests": len(done.requests)}])

    def passes(self) -> list[Pass]:
        """The passes that are complete, the last of each that was measured twice. Raises FactError."""
        return read_passes(self.path)

    def update(self, **fields: Any) -> None:
        """Change fields of run.json."""
        self.content |= fields
        self.write(RUN, json.dumps(self.content, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """A whole file. Raises FactError."""
        try:
            write_anew(self.path / name, text.encode())
        except OSError as error:
            raise _unwritable(self.path / name, error) from error


def read_passes(path: Path) -> list[Pass]:
    """The complete passes of a run in this directory, the last of each that was measured twice. Raises FactError."""
    requests: dict[str, list[dict[str, Any]]] = {}
    for place, line in _lines(path / REQUESTS):
        requests.setdefault(place, []).append(line)
    passes: dict[str, Pass] = {}
    try:
        for place, line in _lines(path / PASSES):
            count = line.pop("requests")
            own = requests.get(place, [])[-count:]
            if len(own) == count:
                sent = tuple(from_json(Request, each) for each in own)
                passes[place] = replace(from_json(Pass, {**line, "requests": []}), requests=sent)
    except (KeyError, TypeError, ValueError) as error:
        raise FactError(f"`{path}` cannot be resumed: specserve cannot read its recorded passes") from error
    return list(passes.values())


def create(path: Path, content: dict[str, Any]) -> RunDirectory:
    """A new run. Raises UsageError if something is there already, FactError if it cannot be written."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            goes_on = f"`--resume {path}` continues it; " if (path / RUN).is_file() else ""
            raise UsageError(f"`{path}` exists already", hint=f"{goes_on}use another `-o` to start a new run")
        private(path)
        path.chmod(0o700)
        (path / "logs").mkdir(mode=0o700)
    except OSError as error:
        raise _unwritable(path, error) from error
    run = RunDirectory(path, {"version": VERSION, **content})
    run.update()
    return run


def resume(path: Path) -> RunDirectory:
    """A run that is there. Raises UsageError if it is none, or of another version."""
    return RunDirectory(path, read_run(path))


def read_run(path: Path) -> dict[str, Any]:
    """run.json of a run. Raises UsageError if it is none, or of another version."""
    none = f"`{path}` is not a run of `specserve bench` or `tune`"
    try:
        content: dict[str, Any] = json.loads(read_own(path / RUN, most_bytes=_MOST_BYTES))
        found = content["version"]
    except OSError as error:
        raise UsageError(f"{none}: {RUN}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{none}: its {RUN} cannot be read") from error
    if found != VERSION:
        raise UsageError(
            f"`{path}` was written by another version of specserve: its format version is {found}, not "
            f"{VERSION}"
        )
    return content


def _append(path: Path, lines: list[dict[str, Any]]) -> None:
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    try:
        descriptor = append_own(path)
        with os.fdopen(descriptor, "ab") as file:
            if file.tell() and not _ends_line(path):
                data = b"\n" + data  # a line that was cut off stays one of its own
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a file, each with what tells its pass from others; one that was cut off is skipped."""
    try:
        data = read_own(path, most_bytes=_MOST_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FactError(f"cannot read `{path}`: {error.strerror}") from error
    found = []
    for line in data.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict) and content.keys() >= set(_KEY):
            found.append((json.dumps([content[name] for name in _KEY], sort_keys=True), content))
    return found


def _unwritable(path: Path, error: OSError) -> FactError:
    return FactError(
        f"cannot write `{path}`: {error.strerror or error}", hint="use `-o DIR` to write to another place"
    )


@dataclass(frozen=True, slots=True)
class Starting:
    """A server is being started; `phase` is what vLLM does."""

    arm: str
    phase: str
    log_path: str


@dataclass(frozen=True, slots=True)
class ArmReady:
    """It answers."""

    arm: str
    took_s: float


@dataclass(frozen=True, slots=True)
class WarmingUp:
    """Prompts that are not measured."""

    arm: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A block was measured on an arm."""

    arm: str
    point: Point
    tokens_per_s: float
    done: int
    total: int
    """Passes of the whole run."""
    left_s: float
    """Estimated from what has passed so far."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that the reader of the result should know, as soon as it is known."""

    text: str


@dataclass(frozen=True, slots=True)
class ArmsStopping:
    """The servers of a session are being stopped."""

    arms: tuple[str, ...]


News = Starting | ArmReady | WarmingUp | Passed | Noted | ArmsStopping
OnNews = Callable[[News], None]
