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
from specserve.files import write_whole
from specserve.measure.bench.result import Point, from_json
from specserve.metrics.counters import Acceptance
from specserve.serve.files import append_own, private, read_own, state_folder


@dataclass(frozen=True, slots=True)
class Request:
    """One answer; times in seconds, `start_s` since its pass began."""

    id: str
    """Of the prompt; `id#2` is the second copy of it in the same pass."""
    ok: bool
    prompt_tokens: int
    output_tokens: int
    start_s: float
    ttft_s: float
    latency_s: float
    chunk_gaps_ms: tuple[float, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    text_sha256: str = ""
    acceptance: Acceptance | None = None
    """Of this request alone, if the server reports it (`per_request_spec_decode_metrics`)."""
    steps: tuple[tuple[int, int], ...] = ()
    """Accepted and drafted tokens of each step, in order, if it reports them (`detailed`)."""

    @property
    def prompt(self) -> str:
        """The prompt's id, whichever copy it was."""
        return self.id.rpartition("#")[0] if "#" in self.id else self.id

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """One block of requests on one variant."""

    launch: int
    """Which start of the servers it was, from 0."""
    block: int
    point: Point
    variant: str
    duration_s: float
    client_cpu: float
    """Share of one core that the load generator used."""
    requests: tuple[Request, ...]
    acceptance: Acceptance | None = None
    """What the server's counters gained; None if it shows none, or does not speculate."""
    queue_s: float | None = None
    """What its requests waited before they ran, all together; None if the server does not say."""
    preemptions: int = 0
    """How often a request had to give its place in the KV cache back."""

    @property
    def output_tokens(self) -> int:
        """Of the answers that came whole."""
        return sum(request.output_tokens for request in self.requests if request.ok)

    @property
    def key(self) -> tuple[int, int, Point, str]:
        """What tells it from every other pass of a run."""
        return self.launch, self.block, self.point, self.variant


RUN, PASSES = "run.json", "passes.jsonl"
_MAX_BYTES = 1 << 30


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

    def append(self, done: Pass) -> None:
        """Keep a pass as one line: it is there only if the whole line is. Raises FactError."""
        self.append_line(json.dumps(asdict(done)).encode())

    def append_line(self, line: bytes = b"") -> None:
        """Write and sync a line; without one, end the line that was cut off. Raises FactError."""
        try:
            self._passes.write(line + b"\n")
            self._passes.flush()
            os.fsync(self._passes.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def passes(self) -> list[Pass]:
        """Return the passes that are whole. Raises FactError."""
        return read_passes(self.path)

    def update(self, **fields: Any) -> None:
        """Change fields of run.json."""
        self.content |= fields
        self.write(RUN, json.dumps(self.content, indent=2) + "\n")

    def require(self, what: str, value: str) -> None:
        """Record a condition that all passes share. Raises UsageError if it was another one."""
        known: dict[str, str] = self.content.setdefault("conditions", {})
        before = known.setdefault(what, value)
        if before != value:
            raise UsageError(
                f"{what} changed since the run began: from {before[:16]} to {value[:16]}",
                hint="start over, or undo the change: passes before and after do not compare",
            )
        self.update()

    def spend(self, began_s: float) -> None:
        """Add the time since `began_s` (monotonic) to that of earlier sessions."""
        self.update(spent_s=self.content.get("spent_s", 0.0) + time.monotonic() - began_s)

    def write(self, name: str, text: str) -> None:
        """Write a whole file. Raises FactError."""
        try:
            write_whole(self.path / name, text, mode=0o600)
        except OSError as error:
            raise _unwritable(self.path / name, error) from error


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
    except FileNotFoundError:
        return []
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


def new_place(kind: str, stem: str) -> Path:
    """Return a new directory in the state folder: STEM, or the first free one of STEM-2, …."""
    folder = state_folder() / kind
    found, number = folder / stem, 1
    while found.exists() or found.is_symlink():
        number += 1
        found = folder / f"{stem}-{number}"
    return found


def resume(path: Path) -> RunDirectory:
    """Return a run that is there. Raises UsageError if it is none."""
    run = RunDirectory(path, read_run(path))
    whole = read_own(path / PASSES, most_bytes=_MAX_BYTES)
    if whole and not whole.endswith(b"\n"):
        run.append_line()
    return run


def read_run(path: Path) -> dict[str, Any]:
    """Return run.json of a run. Raises UsageError if it is none."""
    none = f"`{path}` is not a run of `specserve bench` or `tune`"
    try:
        content: dict[str, Any] = json.loads(read_own(path / RUN, most_bytes=_MAX_BYTES))
        if not isinstance(content, dict):
            raise ValueError
    except OSError as error:
        raise UsageError(f"{none}: {RUN}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{none}: its {RUN} cannot be read") from error
    return content


def _unwritable(path: Path, error: OSError) -> FactError:
    hint = "use `-o DIR` to write to another place"
    return FactError(f"cannot write `{path}`: {error.strerror or error}", hint=hint)


@dataclass(frozen=True, slots=True)
class Doing:
    """What is being done now, such as a phase of a server's start; the next news replaces it."""

    text: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that the reader should know, as soon as it is known."""

    text: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A block was measured on a variant."""

    variant: str
    point: Point
    tokens_per_s: float
    done: int
    total: int
    """Passes of the whole run, as far as it is planned."""
    left_s: float
    """Estimated from what has passed so far."""


News = Doing | Noted | Passed
OnNews = Callable[[News], None]
