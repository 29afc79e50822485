"""A run of `generate`: the lines of its input, the engine, and the journal of its output."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from specserve.errors import FactError, Interrupted, LaunchError, UsageError
from specserve.files import open_descriptor
from specserve.metrics.counters import Acceptance
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.causes import died, stalled
from specserve.serve.lines import Entry, Record, entries
from specserve.serve.logs import default_log
from specserve.serve.process import JsonChild, resolve_env
from specserve.serve.signals import stop_on_signals

CHILD = (sys.executable, "-P", "-m", "specserve.engine.offline")
"""-P: a folder named vllm in the working directory must not be taken for the library."""


def _opened(path: Path, flags: int) -> IO[bytes]:
    """A plain file to write, made if it is missing. Raises OSError."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(open_descriptor(path, flags, mode=0o666), "wb", buffering=0)


class Output:
    """OUT.jsonl while it is being made: until all lines are done, the journal `OUT.jsonl.partial`.

    The first line of the journal is its `origin`, so that only the same work is resumed. Then comes
    one record per finished line of the input, failed ones included, in the order in which they
    finished. Raises UsageError if a file is in the way, with the way out.
    """

    def __init__(self, path: Path, *, origin: Mapping[str, str], lines: int) -> None:
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self.done: dict[int, int] = {}
        """Where the record of each finished line starts in the journal."""
        self.errors: dict[int, str] = {}
        """The lines that failed, by index."""
        self._end = 0
        if path.exists():
            raise UsageError(f"`{path}` exists already", hint="delete it, or use another `-o`")
        with contextlib.ExitStack() as undo:
            try:
                self._file = undo.enter_context(_opened(self.partial, os.O_APPEND))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._resume(dict(origin), lines)
            except BlockingIOError:
                raise UsageError(
                    f"another `specserve generate` is writing `{self.partial}`"
                ) from None
            except OSError as error:
                raise FactError(f"cannot write `{self.partial}`: {error.strerror}") from error
            undo.pop_all()

    def _resume(self, origin: dict[str, str], lines: int) -> None:
        """Read the journal. A damaged record is left out and computed again."""
        with self.partial.open("rb") as journal:
            head = journal.readline()
            if not head.endswith(b"\n"):  # nothing was finished yet
                self._file.truncate(0)
                self._append(_encoded(origin))
                self._end = len(_encoded(origin))
                return
            if head != _encoded(origin):
                is_engine = json.dumps(origin["engine"]).encode() in head
                what = "another input" if is_engine else "another profile or other options"
                raise UsageError(
                    f"`{self.partial}` was made from {what}",
                    hint="delete it to start over, or use another `-o`",
                )
            self._end = len(head)
            for raw in journal:
                if not raw.endswith(b"\n"):
                    break
                with contextlib.suppress(ValueError, TypeError, LookupError):
                    body = json.loads(raw)
                    if type(body["index"]) is int and 0 <= body["index"] < lines:
                        self._remember(body)
                self._end += len(raw)
        self._file.truncate(self._end)

    def _remember(self, body: Record) -> None:
        """Note the record that starts at the end of the journal."""
        self.done[body["index"]] = self._end
        if "error" in body:
            self.errors[body["index"]] = str(body["error"])

    def write(self, body: Record) -> None:
        """Append the record of one finished line. Raises FactError if the disk is full."""
        line = _encoded(body)
        self._append(line)
        self._remember(body)
        self._end += len(line)

    def _append(self, line: bytes) -> None:
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(self._end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._unwritable(error) from error

    def complete(self) -> None:
        """Write OUT.jsonl in the order of the input, then remove the journal."""
        ordered = self._path.with_name(f"{self._path.name}.partial.ordered")
        try:
            with self.partial.open("rb") as journal, _opened(ordered, os.O_TRUNC) as file:
                for index in sorted(self.done):
                    journal.seek(self.done[index])
                    file.write(journal.readline())
                os.fsync(file.fileno())
            ordered.replace(self._path)
        except OSError as error:
            ordered.unlink(missing_ok=True)
            raise self._unwritable(error) from error
        self.partial.unlink()

    def kept(self, total: int) -> str:
        """How much of it is there, and where, as a sentence."""
        there = f"{len(self.done)} of {total} lines are in `{self.partial}`"
        return f"{there}; the same command resumes there"

    def _unwritable(self, error: OSError) -> FactError:
        hint = f"finished lines are in `{self.partial}`; the same command resumes there"
        return FactError(f"cannot write `{self._path}`: {error.strerror}", hint=hint)

    def close(self) -> None:
        """Close the journal; the next run resumes it unless it is complete."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()


def _encoded(body: Mapping[str, Any]) -> bytes:
    """One JSON line, of ASCII only: no reader splits it at U+2028, no terminal obeys it."""
    return json.dumps(body).encode() + b"\n"


class OfflineEngine(JsonChild):
    """A `vllm.LLM` in a child; a context manager, so that no process outlives it.

    `on_tick` is called a few times a second while there is nothing to report. Raises LaunchError,
    with the phase and the path of the log, when the engine does not come up or dies.
    """

    def __init__(self, plan: LaunchPlan, *, log_path: Path, on_tick: Callable[[], None]) -> None:
        self._plan, self._on_tick = plan, on_tick
        self._phase = "starting the engine"
        self.acceptance: Acceptance | None = None
        """Set once all requests are answered; None if the engine does not speculate."""
        # no server, no key
        env = {name: value for name, value in plan.env.items() if name != "VLLM_API_KEY"}
        super().__init__(CHILD, env=resolve_env(env), log_path=log_path)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()  # at once: vLLM's own end takes seconds

    def start(self) -> str:
        """Load the model; returns vLLM's version. Only a time without progress is limited."""
        self.tell({"engine_kwargs": dict(self._plan.engine_kwargs)})
        ready = self._next()
        self._phase = "generating"
        self.note_traces()
        return str(ready["vllm"])

    def answers(self, requests: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """An answer to each request with its `index`, as they come: a text or an `error`."""
        for request in requests:
            self.tell(request)
        self.tell({"end": True})
        while (message := self._next()).pop("event") != "done":
            yield message
        if (counts := message["acceptance"]) is not None:
            positions = tuple(counts.pop("accepted_per_position"))
            self.acceptance = Acceptance(**counts, accepted_per_position=positions)

    def _next(self) -> dict[str, Any]:
        """The next message of the engine, or LaunchError if there will be none."""
        while True:
            try:
                message = self.receive(0.2)
            except queue.Empty:
                self._on_tick()
                if self._phase != "generating":  # once it is ready, silence may be long
                    limit_s = self.stalled_s(self._plan.stall_timeout_s)
                    if limit_s is not None:
                        raise stalled(self, self._phase, limit_s=limit_s) from None
                continue
            if message is None or message["event"] == "failed":
                self.wait()  # the log is complete once the process is gone
                said = str(message["error"]) if message is not None else None
                raise died(self, self._phase, after_s=self.elapsed_s, said=said)
            return message


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


def generate(
    plan: LaunchPlan,
    *,
    data: bytes,
    path: Path,
    show: Callable[[GenerateStatus], None],
    say: Callable[[str], None],
) -> Generated:
    """Answer every line of `data` that the output does not hold yet. `show` is called often.

    Raises UsageError if a file is in the way, LaunchError if the engine fails, and Interrupted on a
    signal; what is written stays.
    """
    lines = list(entries(data))
    # what the answers depend on besides the input
    engine = json.dumps(dict(plan.engine_kwargs), sort_keys=True)
    sources = {"engine": f"{plan.fingerprint}\n{plan.vllm}\n{engine}".encode(), "input": data}
    origin = {name: hashlib.sha256(text).hexdigest() for name, text in sources.items()}
    with (
        contextlib.closing(Output(path, origin=origin, lines=len(lines))) as output,
        stop_on_signals() as stop,
    ):
        todo = {entry.index: entry for entry in lines if entry.index not in output.done}
        asked = [
            {"index": entry.index, **entry.request}
            for entry in todo.values()
            if entry.request is not None
        ]
        status, took_s, acceptance = GenerateStatus(len(lines), len(output.done)), None, None
        if not lines:
            say("nothing to do: the input has no lines")
        if status.done:
            say(f"resuming: {status.done} of {status.total} lines are already done")

        def tick() -> None:
            """Ends the run between two answers if a signal came, never inside a write."""
            if stop.count:
                code = 128 + (stop.signal or signal.SIGTERM)
                raise Interrupted(f"stopped: {output.kept(len(lines))}", exit_code=code)
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
                with OfflineEngine(plan, log_path=log_path, on_tick=tick) as child:
                    version, status.ready_s = child.start(), time.monotonic()
                    took_s = status.ready_s - status.began_s
                    say(f"the engine is ready after {took_s:.1f} s (vLLM {version})")
                    for answer in child.answers(asked):
                        finish(todo[answer["index"]], answer)
                    took_s, acceptance = time.monotonic() - status.ready_s, child.acceptance
            except LaunchError:
                say(output.kept(len(lines)))
                raise
        output.complete()
    errors = tuple(output.errors[index] for index in sorted(output.errors))
    return Generated(errors, status.tokens, took_s, acceptance)
