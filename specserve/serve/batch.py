"""A run of `generate`: the lines of its input, the engine, and the journal of its output."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from specserve.errors import FactError, Interrupted, LaunchError, UsageError
from specserve.files import open_descriptor, write_whole
from specserve.metrics.counters import Acceptance
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.lines import Entry, Record, entries
from specserve.serve.logs import default_log
from specserve.serve.offline import OfflineEngine
from specserve.serve.signals import stop_on_signals


def _opened(path: Path, flags: int, *, buffering: int = -1) -> IO[bytes]:
    """A plain file to write, made if it is missing. Raises OSError."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(open_descriptor(path, flags, mode=0o666), "wb", buffering=buffering)


class Output:
    """OUT.jsonl while it is being made: until all lines are done, the journal `OUT.jsonl.partial`.

    The journal holds one record per finished line of the input, failed ones included, in the order
    in which they finished. `OUT.jsonl.partial.json` says of which input and engine, so that only
    the same work is resumed. Raises UsageError if a file is in the way, with the way out.
    """

    def __init__(self, path: Path, *, origin: str, data: bytes) -> None:
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self._note = path.with_name(f"{path.name}.partial.json")
        self._origin = {"origin": origin, "input_sha256": hashlib.sha256(data).hexdigest()}
        self._offsets: dict[
            int, int
        ] = {}  # where the record of each finished line starts in the journal
        self._end = 0
        self.place = f"are in `{self.partial}`; the same command resumes there"
        """Where the finished lines are, to end a sentence."""
        self.errors: dict[int, str] = {}
        """The lines that failed, by index."""
        if path.exists():
            raise UsageError(f"`{path}` exists already", hint="delete it, or use another `-o`")
        with contextlib.ExitStack() as undo:
            try:
                self._file = undo.enter_context(_opened(self.partial, os.O_APPEND, buffering=0))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._resume(data)
            except BlockingIOError:
                raise UsageError(
                    f"another `specserve generate` is writing `{self.partial}`"
                ) from None
            except OSError as error:
                raise FactError(f"cannot write `{self.partial}`: {error.strerror}") from error
            undo.pop_all()

    @property
    def done(self) -> AbstractSet[int]:
        """The indices of the finished lines."""
        return self._offsets.keys()

    @property
    def written(self) -> int:
        """How many finished lines the journal holds."""
        return len(self._offsets)

    def _resume(self, data: bytes) -> None:
        """Read the journal. A damaged record is left out and computed again."""
        if not self.partial.stat().st_size:
            self._file.truncate(0)
            write_whole(self._note, json.dumps({"version": 2, **self._origin}) + "\n")
            return
        self._check_origin()
        lines = sum(1 for line in data.split(b"\n") if line.strip())
        with self.partial.open("rb") as journal:
            for raw in journal:
                if not raw.endswith(b"\n"):
                    break
                with contextlib.suppress(ValueError, TypeError, LookupError):
                    body = json.loads(raw)
                    if type(body["index"]) is int and 0 <= body["index"] < lines:
                        self._remember(body)
                self._end += len(raw)
        self._file.truncate(self._end)

    def _check_origin(self) -> None:
        """Raise UsageError unless the journal was made from this input by this engine."""
        try:
            note = json.loads(self._note.read_bytes())
            changed = [key for key, value in self._origin.items() if note.get(key) != value]
        except (FileNotFoundError, ValueError, AttributeError):
            changed = list(self._origin)
        if changed:
            what = (
                "another input"
                if changed == ["input_sha256"]
                else "another profile or other options"
            )
            raise UsageError(
                f"`{self.partial}` was made from {what}",
                hint="delete it to start over, or use another `-o`",
            )

    def _remember(self, body: Record) -> None:
        """Note the record that starts at the end of the journal."""
        self._offsets[body["index"]] = self._end
        if "error" in body:
            self.errors[body["index"]] = str(body["error"])

    def write(self, body: Record) -> None:
        """Append the record of one finished line. Raises FactError if the disk is full."""
        line = _encoded(body)
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(self._end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._unwritable(error) from error
        self._remember(body)
        self._end += len(line)

    def complete(self) -> None:
        """Write OUT.jsonl in the order of the input, then remove the journal."""
        ordered = self._path.with_name(f"{self._path.name}.partial.ordered")
        try:
            with self.partial.open("rb") as journal, _opened(ordered, os.O_TRUNC) as file:
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
        self._note.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> FactError:
        return FactError(
            f"cannot write `{self._path}`: {error.strerror}", hint=f"finished lines {self.place}"
        )

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

    def write(self, body: Record) -> None:
        """Write the record of one finished line, and those that waited for it."""
        self._waiting[body["index"]] = _encoded(body)
        if "error" in body:
            self.errors[body["index"]] = str(body["error"])
        while self.written in self._waiting:
            sys.stdout.buffer.write(self._waiting.pop(self.written))
            sys.stdout.buffer.flush()
            self.written += 1

    def complete(self) -> None:
        """Everything is written already."""

    def close(self) -> None:
        """There is nothing to close."""


def _encoded(body: Record) -> bytes:
    """One JSON line, of ASCII only: no reader splits it at U+2028, no terminal obeys it."""
    return json.dumps(body).encode() + b"\n"


def open_output(plan: LaunchPlan, *, data: bytes, path: Path | None) -> Output | Stdout:
    """The output of one run; see Output for what it refuses. `path` None: stdout."""
    if path is None:
        return Stdout()
    # what the answers depend on besides the input
    engine = json.dumps(dict(plan.engine_kwargs), sort_keys=True)
    origin = hashlib.sha256(f"{plan.fingerprint}\n{plan.vllm}\n{engine}".encode()).hexdigest()
    return Output(path, origin=origin, data=data)


@dataclass(slots=True)
class GenerateStatus:
    """How far a run is; times on the monotonic clock."""

    total: int
    done: int
    """Lines that are finished, those of earlier runs included."""
    began_s: float = field(default_factory=time.monotonic)
    ready_s: float | None = None
    """When the engine was ready."""
    tokens: int = 0
    """Completion tokens of this run."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A complete run. `errors`: what could not be done, in the order of the lines."""

    errors: tuple[str, ...]
    completion_tokens: int = 0
    took_s: float | None = None
    """From the moment when the engine was ready; None if no line needed one."""
    acceptance: Acceptance | None = None
    """None without speculation."""


def run(
    plan: LaunchPlan,
    *,
    data: bytes,
    output: Output | Stdout,
    show: Callable[[GenerateStatus], None],
    say: Callable[[str], None],
) -> Generated:
    """Answer every line of `data` that the output does not hold yet. `show` is called often.

    Raises LaunchError if the engine fails, and Interrupted on a signal; what is written stays.
    """
    lines = list(entries(data))
    todo = {entry.index: entry for entry in lines if entry.index not in output.done}
    asked = [
        {"index": index, **entry.request}
        for index, entry in todo.items()
        if entry.request is not None
    ]
    status, took_s, acceptance = GenerateStatus(len(lines), len(output.done)), None, None
    if not lines:
        say("nothing to do: the input has no lines")
    if status.done:
        say(f"resuming: {status.done} of {status.total} lines are already done")
    with stop_on_signals() as stop:

        def tick() -> None:
            """Ends the run between two answers if a signal came, never inside a write."""
            if stop.count:
                message = f"stopped: {output.written} of {len(lines)} lines {output.place}"
                raise Interrupted(message, exit_code=128 + (stop.signal or signal.SIGTERM))
            show(status)

        def finish(entry: Entry, answer: Mapping[str, Any]) -> None:
            output.write(entry.record(answer))
            status.done += 1
            status.tokens += answer.get("completion_tokens", 0)
            tick()

        for entry in todo.values():
            if entry.request is None:
                finish(entry, {"error": entry.error})
        if asked:
            log_path = default_log(f"{plan.name}-generate")
            say(f"starting the engine, log: {log_path}")
            try:
                with OfflineEngine(plan, log_path=log_path, on_tick=tick) as engine:
                    version, status.ready_s = engine.start(), time.monotonic()
                    took_s = status.ready_s - status.began_s
                    say(f"the engine is ready after {took_s:.1f} s (vLLM {version})")
                    for answer in engine.answers(asked):
                        finish(todo[answer["index"]], answer)
                    took_s, acceptance = time.monotonic() - status.ready_s, engine.acceptance
            except LaunchError:
                say(f"{output.written} of {len(lines)} lines {output.place}")
                raise
    output.complete()
    errors = tuple(output.errors[index] for index in sorted(output.errors))
    return Generated(errors, status.tokens, took_s, acceptance)
