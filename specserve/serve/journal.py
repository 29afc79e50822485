"""The output of `generate`: a journal of finished lines, and the ordered file that it becomes; or stdout."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Set as AbstractSet
from io import FileIO
from pathlib import Path

from specserve.errors import FactError, UsageError
from specserve.plan.launchplan import Json, LaunchPlan

_SYNC_EVERY_S = 5.0
"""How much work a power cut may cost. A killed process loses nothing: each line is with the kernel at once."""


class Output:
    """OUT.jsonl while it is being made: until all lines are done, the journal `OUT.jsonl.partial`.

    The journal holds one record per finished line of the input, in the order in which they finished, each with
    its index. Records of failed lines count as finished. `OUT.jsonl.partial.json` says which input and engine
    the journal belongs to, so that only the same work is resumed. Raises UsageError if a file is in the way,
    with the option that clears it.
    """

    def __init__(self, path: Path, *, origin: str, data: bytes, resume: bool, overwrite: bool) -> None:
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self._state = path.with_name(f"{path.name}.partial.json")
        self._origin = {"origin": origin, "input_sha256": hashlib.sha256(data).hexdigest()}
        self._offsets: dict[int, int] = {}  # where the record of each finished line starts in the journal
        self._end = 0
        self._synced_at = time.monotonic()
        self.errors: dict[int, str] = {}
        """The resumed lines that failed, by index."""
        if path.exists() and not overwrite:
            raise UsageError(
                f"`{path}` exists already", hint="`--overwrite` replaces it once the new one is complete"
            )
        try:
            self._file = self._open(data, resume=resume)
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
        """How many finished lines the journal holds, also if a signal came in the middle of `write`."""
        size = os.fstat(self._file.fileno()).st_size
        return sum(offset < size for offset in self._offsets.values())

    def _open(self, data: bytes, *, resume: bool) -> FileIO:
        file = FileIO(self.partial, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not resume:
                file.truncate(0)
            if os.fstat(file.fileno()).st_size:
                self._check_origin()
                self._resume(file, lines=sum(1 for line in data.split(b"\n") if line.strip()))
            else:
                self._state.write_text(json.dumps({"version": 2, **self._origin}) + "\n")
        except BlockingIOError:
            file.close()
            raise UsageError(f"another `specserve generate` is writing `{self.partial}`") from None
        except BaseException:
            file.close()
            raise
        return file

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

    def _resume(self, file: FileIO, *, lines: int) -> None:
        """Read the journal. A record that a kill or a power cut damaged is left out and computed again."""
        with self.partial.open("rb") as journal:
            for raw in journal:
                if not raw.endswith(b"\n"):
                    break
                body = _record(raw)
                index = body.get("index")
                if type(index) is int and 0 <= index < lines:
                    self._offsets[index] = self._end
                    if "error" in body:
                        self.errors[index] = str(body["error"])
                self._end += len(raw)
        file.truncate(self._end)

    def write(self, body: dict[str, Json]) -> None:
        """Append the record of one finished line. Raises FactError if the disk is full."""
        line, index = _encoded(body), body["index"]
        assert isinstance(index, int)
        self._offsets[index] = self._end  # before the write: a signal between the two must not lose the line
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(self._end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if time.monotonic() - self._synced_at >= _SYNC_EVERY_S:
                os.fsync(self._file.fileno())
                self._synced_at = time.monotonic()
        except OSError as error:
            raise self._unwritable(error) from error
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
        return FactError(
            f"cannot write `{self._path}`: {error.strerror}",
            hint=f"finished lines are in `{self.partial}`; the same command resumes there",
        )

    def close(self) -> None:
        """Close the journal; the next run resumes it unless it is complete."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()


class Stdout:
    """The same for stdout: each answer as soon as everything before it is known."""

    def __init__(self) -> None:
        self.done: AbstractSet[int] = frozenset()
        self.errors: dict[int, str] = {}
        self.place = "were written"
        self.written = 0
        self._waiting: dict[int, bytes] = {}

    def write(self, body: dict[str, Json]) -> None:
        """Write the record of one finished line, and those that waited for it."""
        index = body["index"]
        assert isinstance(index, int)
        self._waiting[index] = _encoded(body)
        while self.written in self._waiting:
            sys.stdout.buffer.write(self._waiting.pop(self.written))
            sys.stdout.buffer.flush()
            self.written += 1

    def complete(self) -> None:
        """Everything is written already."""

    def close(self) -> None:
        """There is nothing to close."""


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


def _encoded(body: dict[str, Json]) -> bytes:
    """One JSON line. ASCII only: no reader splits it at U+2028, no terminal takes orders from it."""
    return json.dumps(body).encode() + b"\n"


def _record(raw: bytes) -> dict[str, Json]:
    """The record in a line of the journal; an empty one if the line is damaged."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
