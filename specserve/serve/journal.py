"""The output of `generate`: a journal of finished lines, and the ordered file that it becomes; or stdout."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import cast

from specserve.errors import FactError, UsageError
from specserve.plan.launchplan import Json, LaunchPlan


class Output:
    """OUT.jsonl while it is being made: until all lines are done, the journal `OUT.jsonl.partial`.

    The journal holds one record per finished line of the input, failed ones included, in the order in which they
    finished. `OUT.jsonl.partial.json` says which input and engine the journal belongs to, so that only the same work
    is resumed. Raises UsageError if a file is in the way, with the option that clears it.
    """

    def __init__(self, path: Path, *, origin: str, data: bytes, resume: bool, overwrite: bool) -> None:
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self._state = path.with_name(f"{path.name}.partial.json")
        self._origin = {"origin": origin, "input_sha256": hashlib.sha256(data).hexdigest()}
        self._offsets: dict[int, int] = {}  # where the record of each finished line starts in the journal
        self._end = 0
        self.errors: dict[int, str] = {}
        """The resumed lines that failed, by index."""
        if path.exists() and not overwrite:
            raise UsageError(
                f"`{path}` exists already", hint="`--overwrite` replaces it once the new one is complete"
            )
        try:
            self._file = FileIO(self.partial, "a+")
            with ExitStack() as undo:
                undo.callback(self._file.close)
                self._open(data, resume=resume)
                undo.pop_all()
        except BlockingIOError:
            raise UsageError(f"another `specserve generate` is writing `{self.partial}`") from None
        except OSError as error:
            raise FactError(f"cannot write `{self.partial}`: {error.strerror}") from error

    @property
    def done(self) -> AbstractSet[int]:
        """The indices of the finished lines."""
        return self._offsets.keys()

    @property
    def place(self) -> str:
        """Where the finished lines are, to end a sentence."""
        return f"are in `{self.partial}`; the same command resumes there"

    @property
    def written(self) -> int:
        """How many finished lines the journal holds."""
        return len(self._offsets)

    def _open(self, data: bytes, *, resume: bool) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not resume:
            self._file.truncate(0)
        if os.fstat(self._file.fileno()).st_size:
            self._check_origin()
            self._resume(lines=sum(1 for line in data.split(b"\n") if line.strip()))
        else:
            self._state.write_text(json.dumps({"version": 2, **self._origin}) + "\n")

    def _check_origin(self) -> None:
        """Raise UsageError unless the journal was made from this input by this engine."""
        try:
            state = json.loads(self._state.read_bytes())
            same = {key: state.get(key) for key in self._origin}
        except (FileNotFoundError, ValueError, AttributeError):
            same = {}
        changed = [key for key, value in self._origin.items() if same.get(key) != value]
        if changed:
            what = "another input" if changed == ["input_sha256"] else "another profile or other options"
            raise UsageError(
                f"`{self.partial}` was made from {what}",
                hint="`--no-resume` drops it and starts over; another `-o` keeps it",
            )

    def _resume(self, *, lines: int) -> None:
        """Read the journal. A record that a kill or a power cut damaged is left out and computed again."""
        with self.partial.open("rb") as journal:
            for raw in journal:
                if not raw.endswith(b"\n"):
                    break
                with contextlib.suppress(ValueError, TypeError, LookupError):
                    body = json.loads(raw)
                    index = body["index"]
                    if type(index) is int and 0 <= index < lines:
                        self._offsets[index] = self._end
                        if "error" in body:
                            self.errors[index] = str(body["error"])
                self._end += len(raw)
        self._file.truncate(self._end)

    def write(self, body: dict[str, Json]) -> None:
        """Append the record of one finished line. Raises FactError if the disk is full."""
        line = _encoded(body)
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(self._end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._unwritable(error) from error
        self._offsets[cast("int", body["index"])] = self._end
        self._end += len(line)

    def complete(self) -> None:
        """Write OUT.jsonl in the order of the input, then remove the journal."""
        ordered = self._path.with_name(f"{self._path.name}.partial.ordered")
        try:
            with self.partial.open("rb") as journal, ordered.open("wb") as file:
                for index in sorted(self._offsets):
                    journal.seek(self._offsets[index])
                    file.write(journal.readline())
                file.flush()
                os.fsync(file.fileno())
            ordered.replace(self._path)
        except OSError as error:
            ordered.unlink(missing_ok=True)
            raise self._unwritable(error) from error
        self.partial.unlink()
        self._state.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> FactError:
        hint = f"finished lines are in `{self.partial}`; the same command resumes there"
        return FactError(f"cannot write `{self._path}`: {error.strerror}", hint=hint)

    def close(self) -> None:
        """Close the journal; the next run resumes it unless it is complete."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()


class Stdout:
    """The same for stdout: each answer as soon as everything before it is known."""

    done: AbstractSet[int] = frozenset()
    place = "were written"

    def __init__(self) -> None:
        self.errors: dict[int, str] = {}
        self.written = 0
        self._waiting: dict[int, bytes] = {}

    def write(self, body: dict[str, Json]) -> None:
        """Write the record of one finished line, and those that waited for it."""
        self._waiting[cast("int", body["index"])] = _encoded(body)
        while self.written in self._waiting:
            sys.stdout.buffer.write(self._waiting.pop(self.written))
            sys.stdout.buffer.flush()
            self.written += 1

    def complete(self) -> None:
        """Everything is written already."""

    def close(self) -> None:
        """There is nothing to close."""


def _encoded(body: dict[str, Json]) -> bytes:
    """One JSON line. ASCII only: no reader splits it at U+2028, no terminal takes orders from it."""
    return json.dumps(body).encode() + b"\n"


def open_output(
    plan: LaunchPlan, *, data: bytes, path: Path | None, resume: bool, overwrite: bool
) -> Output | Stdout:
    """The output of one run; see Output for what it refuses. `path` None: stdout."""
    if path is None:
        return Stdout()
    # what the answers depend on besides the input
    engine = json.dumps(dict(plan.engine_kwargs), sort_keys=True)
    origin = hashlib.sha256(f"{plan.fingerprint}\n{plan.vllm}\n{engine}".encode()).hexdigest()
    return Output(path, origin=origin, data=data, resume=resume, overwrite=overwrite)
