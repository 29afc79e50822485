"""The directory of one run: the passes that were measured, and what they rest on."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specserve.errors import FactError, UsageError
from specserve.files import write_named
from specserve.measure.bench.blocks import Pass
from specserve.measure.bench.result import Point, from_json
from specserve.serve.files import append_own, private, read_own

RUN, PASSES = "run.json", "passes.jsonl"
_MAX_BYTES = 1 << 30
_ELSEWHERE = "use `-o DIR` to write to another place"


class RunDirectory:
    """A run while it is written; a context manager that lets nobody else write it."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        """`content`: that of run.json. Raises UsageError if another command writes it."""
        self.path = path
        self.content = content
        try:
            self._passes = os.fdopen(append_own(path / PASSES), "ab")
            fcntl.flock(self._passes, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._passes.close()
            raise UsageError(f"another `specserve bench` or `tune` is writing `{path}`") from None
        except OSError as error:
            raise _unwritable(path, error) from error

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._passes.close()

    def log(self, name: str) -> Path:
        """Return where the log of a server or of the load generator goes."""
        return self.path / "logs" / f"{name}.log"

    def append(self, done: Pass | None) -> None:
        """Keep a pass as one line; None: end the line that was cut off. Raises FactError."""
        try:
            self._passes.write((json.dumps(asdict(done)) if done else "").encode() + b"\n")
            self._passes.flush()
            os.fsync(self._passes.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def update(self, **fields: Any) -> None:
        """Change fields of run.json."""
        self.content |= fields
        self.write(RUN, json.dumps(self.content, indent=2) + "\n")

    def pin(self, what: str, value: str) -> None:
        """Record a condition that all passes share. Raises UsageError if it was another one."""
        known: dict[str, str] = self.content.setdefault("conditions", {})
        before = known.setdefault(what, value)
        if before != value:
            raise UsageError(
                f"{what} changed since the run began: from {before[:16]} to {value[:16]}",
                hint="start over, or undo the change: passes before and after do not compare",
            )
        self.update()

    def add_elapsed(self, began_s: float) -> None:
        """Add the time since `began_s` (monotonic) to that of earlier sessions."""
        self.update(spent_s=self.content.get("spent_s", 0.0) + time.monotonic() - began_s)

    def write(self, name: str, text: str) -> None:
        """Write a whole file. Raises FactError."""
        write_named(self.path / name, text, mode=0o600, hint=_ELSEWHERE)


def read_passes(path: Path) -> list[Pass]:
    """Return the whole passes of a run, the last of each that was measured twice."""
    passes: dict[tuple[int, int, Point, str], Pass] = {}
    try:
        for line in read_own(path / PASSES, most_bytes=_MAX_BYTES).splitlines():
            try:
                done = from_json(Pass, line)
            except ValueError as error:
                if "Invalid JSON" in str(error):  # it was cut off
                    continue
                raise
            passes[done.key] = done
    except (OSError, ValueError) as error:
        raise FactError(f"cannot read `{path / PASSES}`: {error}") from error
    return list(passes.values())


def create(path: Path, content: dict[str, Any]) -> RunDirectory:
    """Return a new run. Raises UsageError if something is there already, FactError."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            goes_on = f"`--resume {path}` continues it; " if (path / RUN).is_file() else ""
            hint = f"{goes_on}use another `-o` to start a new run"
            raise UsageError(f"`{path}` exists already", hint=hint)
        private(path)
        path.chmod(0o700)
        (path / "logs").mkdir(mode=0o700)
    except OSError as error:
        raise _unwritable(path, error) from error
    run = RunDirectory(path, json.loads(json.dumps(content)))  # as a resumed run reads it
    run.update()
    return run


def resume(path: Path) -> RunDirectory:
    """Return a run that is there. Raises UsageError if it is none."""
    try:
        content = {} | json.loads(read_own(path / RUN, most_bytes=_MAX_BYTES))
    except (OSError, ValueError, TypeError):
        none = f"`{path}` is not a run of `specserve bench` or `tune`"
        raise UsageError(f"{none}: its {RUN} cannot be read") from None
    run = RunDirectory(path, content)
    whole = read_own(path / PASSES, most_bytes=_MAX_BYTES)
    if whole and not whole.endswith(b"\n"):
        run.append(None)
    return run


def _unwritable(path: Path, error: OSError) -> FactError:
    return FactError(f"cannot write `{path}`: {error.strerror or error}", hint=_ELSEWHERE)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done now, or what the reader should keep: `is_note`."""

    text: str
    is_note: bool = False
    done: int = 0
    """Passes of the whole run that are measured, if it tells of one."""
    total: int = 0
    left_s: float = 0.0
    """An estimate."""


OnProgress = Callable[[Progress], None]
