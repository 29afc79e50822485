"""Why a server ended or never came up, from its exit code and its log. The table is causes.toml."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from specserve.errors import LaunchError
from specserve.profile.secrets import redacted
from specserve.serve.events import Phase
from specserve.serve.logs import LogLine, end_of, is_disk_full, parse

_TRACEBACK = "Traceback (most recent call last):"
_STACK_CHARACTERS = 60_000
_LOG_HINT = "the end of the log shows what vLLM was doing"
_TRACEBACK_HINT = "the log has the whole traceback; look for this message in vLLM's issues"
_KILLED_HINT = (
    "SIGKILL is the out-of-memory killer's or kill -9: see `dmesg` and the container's memory"
    " limit; a smaller KV cache or `engine.max_num_seqs` needs less"
)
_CHATTER = re.compile(r"^(?:INFO|WARNING): |warnings\.warn|resource_tracker|^\s*$")
# uvicorn puts this before the stack of a request that its application did not answer
_REQUEST = re.compile(r"^ERROR: +Exception in ASGI application")
_OTHER = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL): ")
# a log of days is full of other people's errors
_SERVING_LOG_BYTES, _STARTING_LOG_BYTES = 256 << 10, 4 << 20

_NAMED = r"(?:[A-Za-z_]\w*\.)*\w{0,80}(?:Error|Exception|Failure|Exit|Interrupt|Fault|Expired"
_EXCEPTION = re.compile(rf"^(?P<name>{_NAMED}|OutOfResources))(?::(?P<message>.*))?$")
_LINK = re.compile(
    r"^The above exception was the direct cause"
    r"|^During handling of the above exception, another exception"
)
# what the survivors say about a death elsewhere: never the root cause
_ECHO = re.compile(
    r"EngineDeadError|root cause above|Worker failed with error"
    r"|(?:stack ?trace|error)s? (?:\(above\)|above) for (?:the|more)"
    r"|Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|^RuntimeError: cancelled$|^SystemExit|KeyboardInterrupt"
    r"|CancelledError|^EOFError$|Executor failed|^(?:Connection|BrokenPipe|ConnectionReset)\w*Error"
    r"|ProcessDiedError|ActorDiedError|ncclRemoteError|^zmq\.error|^Exception: WorkerProc"
    r"|RemoteTraceback"
)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for one that this host does not know."""
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


@dataclass(frozen=True, slots=True)
class CausePattern:
    """One row: a pattern over the log, the sentence that it means, and the way out.

    It is tried where the log contains one of the literals of `text`; `within` must stand in the
    stack above the match. One with `last` is tried after the tracebacks, on that many last lines
    of any level: it is what survivors say.
    """

    name: str
    text: tuple[str, ...]
    pattern: re.Pattern[str]
    message: str
    hint: str
    within: re.Pattern[str] | None = None
    last: int = 0

    def find(self, log: str) -> re.Match[str] | None:
        """Return the first match."""
        is_tried = any(literal in log for literal in self.text)
        for match in self.pattern.finditer(log) if is_tried else ():
            at = match.start()
            start = max(log.rfind(_TRACEBACK, 0, at), at - _STACK_CHARACTERS, 0)
            if self.within is None or self.within.search(log, start, at):
                return match
        return None


@cache
def table() -> tuple[CausePattern, ...]:
    """Return the rows, in the order in which they are tried."""
    import tomllib

    file = resources.files("specserve.serve").joinpath("causes.toml")
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["cause"]
    for row in rows:
        row["text"] = tuple(row["text"])
        for key in {"pattern", "within"} & row.keys():
            row[key] = re.compile(row[key], re.MULTILINE)
    return tuple(CausePattern(**row) for row in rows)


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause in one sentence. `name` is the row of the table, or how it was found."""

    name: str
    message: str
    hint: str
    is_known: bool = True
    """Whether the log says it, rather than just ends."""


def find_cause(lines: Sequence[LogLine], *, exit_code: int | None) -> Cause:
    """Return the root cause of a failure, best evidence first.

    `exit_code` is that of vLLM's first process, negative for a signal, None if it is not known.
    """
    faults = [line for line in _without_requests(lines) if line.is_fault]
    said = "\n".join(line.text for line in faults)
    killed = None
    if exit_code is not None and exit_code < 0:
        message = f"vLLM's first process was killed by {signal_name(-exit_code)}"
        killed = Cause("killed", message, _KILLED_HINT)
    # the API server talks on while the engine hangs
    last = [
        line.text
        for line in lines
        if not (
            _CHATTER.search(line.text) or (line.level == "INFO" and line.process == "APIServer")
        )
    ]
    return (
        _first((row, said) for row in table() if not row.last)
        or _of_traceback(faults)
        or killed
        or _first((row, "\n".join(last[-row.last :])) for row in table() if row.last)
        or _of_last_line(faults)
    )


def _first(candidates: Iterable[tuple[CausePattern, str]]) -> Cause | None:
    for row, log in candidates:
        if match := row.find(log):
            words = {name: (value or "").strip() for name, value in match.groupdict().items()}
            if number := words.get("signal"):
                words["signal"] = signal_name(int(number))
            message = _shortened(row.message.format_map(words))
            return Cause(row.name, message, row.hint.format_map(words))
    return None


def _of_traceback(lines: Sequence[LogLine]) -> Cause | None:
    """The exception at the root of the last failure.

    Workers write their lines between each other's, so each process is read on its own. In a chain
    the innermost exception is the root, unless it reports another process's failure.
    """
    by_process: dict[str, list[tuple[int, str]]] = {}
    for position, line in enumerate(lines):
        by_process.setdefault(line.process, []).append((position, line.text))
    found: list[tuple[int, str]] = []
    for own in by_process.values():
        root, statement, is_linked = "", "", False
        for position, text in own:
            is_linked |= _LINK.match(text) is not None
            if text.lstrip().startswith("assert "):
                statement = text.strip()
            elif match := _EXCEPTION.match(text):
                message = (match["message"] or "").strip() or statement
                said = f"{match['name']}: {message}" if message else match["name"]
                root = root if is_linked else ""
                if not root and not _ECHO.search(said):
                    root = _shortened(said)
                if root:
                    found.append((position, root))
                statement, is_linked = "", False
    return Cause("exception", max(found)[1], _TRACEBACK_HINT) if found else None


def _of_last_line(faults: Sequence[LogLine]) -> Cause:
    for line in reversed(faults):
        if not _CHATTER.search(line.text):
            message = f"the log shows no cause; its last line: {_shortened(line.text)}"
            return Cause("last-line", message, _LOG_HINT, is_known=False)
    hint = "run the command of `specserve plan` by hand"
    return Cause("silent", "vLLM printed nothing", hint, is_known=False)


def _shortened(text: str, limit: int = 400) -> str:
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit]} …"


def _without_requests(lines: Sequence[LogLine]) -> list[LogLine]:
    """The lines without the failures of single requests.

    The API server reports those, and the deaths of others, at level ERROR; what ends itself it
    raises, and that has no level. (vllm 0.31 to 0.33, entrypoints/)
    """
    kept = []
    in_request: str | None = None  # the process whose request fails
    for line in lines:
        if _REQUEST.match(line.text):
            in_request = line.process
        elif line.process == in_request and not line.level and not _OTHER.match(line.text):
            continue
        else:
            in_request = None
            if line.level != "ERROR" or not line.process.startswith("APIServer"):
                kept.append(line)
    return kept


def died(
    log_path: Path, phase: str, *, exit_code: int | None, after_s: float = 0, said: str = ""
) -> LaunchError:
    """Return why vLLM ended without being asked to. `said`: its own report, if the log has none."""
    if exit_code is None:
        how = "is gone, and how it ended is not known"
    elif exit_code < 0:
        how = f"was killed by {signal_name(-exit_code)}"
    else:
        how = f"exited with code {exit_code}"
    after = f" after {round(after_s, 1):g}s" if after_s else ""
    return _error(f"vLLM {how}{after}, while {phase}", log_path, phase, exit_code, said=said)


def stalled(log_path: Path, phase: str, *, limit_s: float) -> LaunchError:
    """Nothing moved for too long, so it was stopped."""
    message = f"vLLM made no progress for {round(limit_s, 1):g}s while {phase}: it was stopped"
    hint = "no log line, nothing read and no CPU time used; `server.stall_timeout_s` is the limit"
    return _error(message, log_path, phase, None, hint=hint)


def _error(
    message: str, log_path: Path, phase: str, code: int | None, *, said: str = "", hint: str = ""
) -> LaunchError:
    """`said` and `hint` count if the log tells no cause."""
    limit_bytes = _SERVING_LOG_BYTES if phase == Phase.SERVING else _STARTING_LOG_BYTES
    lines: list[LogLine] = []
    with contextlib.suppress(OSError):
        lines = parse(end_of(log_path, limit_bytes=limit_bytes))
    cause = find_cause(lines, exit_code=code)
    if not cause.is_known and is_disk_full(log_path):
        cause = Cause(
            "log-disk-full",
            "the disk of the log is full, and vLLM ends or hangs if it cannot write",
            f"make room in {log_path.parent}, or set SPECSERVE_STATE_DIR to another folder",
        )
    elif not cause.is_known:
        cause = replace(cause, message=said or cause.message, hint=hint or cause.hint)
    return LaunchError(
        message,
        log_path=str(log_path),
        # if the cause is known, the end of the log is its echo
        log_tail=() if cause.is_known else tuple(redacted(line.text) for line in lines[-5:]),
        causes=(redacted(cause.message),),  # it may quote the log, and is kept on disk
        hint=cause.hint,
    )
