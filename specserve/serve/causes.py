"""Why a server ended or never came up, from its exit code and its log. The table is causes.toml."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from specserve.errors import LaunchError
from specserve.profile.secrets import redacted
from specserve.serve.events import Phase
from specserve.serve.logs import LogLine, is_disk_full, read_end
from specserve.serve.process import Group
from specserve.serve.signals import signal_name

_TRACEBACK = "Traceback (most recent call last):"
_STACK_CHARACTERS = 60_000
_SHELL_SIGNAL = 128  # a shell in between turns signal n into exit code 128 + n
_LOG_HINT = "the end of the log shows what vLLM was doing"
_TRACEBACK_HINT = "the log has the whole traceback; look for this message in vLLM's issues"
_KILLED_HINT = (
    "SIGKILL is the out-of-memory killer's or kill -9: see `dmesg` and the container's memory"
    " limit; a smaller KV cache or `engine.max_num_seqs` needs less"
)
_TOLD_TO_STOP = re.compile(r"API server: shutdown triggered|trigger received signal=SIG(TERM|INT)")
_CHATTER = re.compile(r"^(?:INFO|WARNING): |warnings\.warn|resource_tracker|^\s*$")
# uvicorn puts this before the stack of a request that its application did not answer
_REQUEST = re.compile(r"^ERROR: +Exception in ASGI application")
_OTHER = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL): ")
# a log of days is full of other people's errors
_SERVING_LOG_BYTES, _STARTING_LOG_BYTES = 256 << 10, 4 << 20

_VLLM_FRAME = re.compile(
    r'^[ \t]*File "[^"]{0,400}?(vllm(?:/\w{1,60}){1,9}\.py)", line (\d+), in (\w+)'
)
_NAMED = r"(?:[A-Za-z_]\w*\.)*\w{0,80}(?:Error|Exception|Failure|Exit|Interrupt|Fault|Expired"
_EXCEPTION = re.compile(rf"^(?P<name>{_NAMED}|OutOfResources))(?::(?P<message>.*))?$")
_LINK = re.compile(
    r"^The above exception was the direct cause"
    r"|^During handling of the above exception, another exception"
)
# what the engine says of a worker's exception (vllm 0.32, v1/executor/multiproc_executor.py)
_QUOTES = re.compile(r"^Worker failed with error '(?P<quoted>.*?)(?:', please check.*)?$")
# what the survivors say about a death elsewhere: never the root cause
_ECHO = re.compile(
    r"EngineDeadError|root cause above"
    r"|(?:stack ?trace|error)s? (?:\(above\)|above) for (?:the|more)"
    r"|Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|^RuntimeError: cancelled$|^SystemExit|KeyboardInterrupt"
    r"|CancelledError|^EOFError$|Executor failed|^(?:Connection|BrokenPipe|ConnectionReset)\w*Error"
    r"|ProcessDiedError|ActorDiedError|ncclRemoteError|^zmq\.error|^Exception: WorkerProc"
    r"|RemoteTraceback"
)


@dataclass(frozen=True, slots=True)
class CausePattern:
    """One row: a pattern over the log, the sentence that it means, and the way out.

    It is tried where the log contains one of the literals of `text`; `within` must stand in the
    stack above the match. A `late` row is tried last, on that many last lines of any level; one
    `of_death` after the tracebacks, on all lines: it is what survivors say.
    """

    name: str
    text: tuple[str, ...]
    pattern: re.Pattern[str]
    message: str
    hint: str
    within: re.Pattern[str] | None = None
    late: int = 0
    of_death: bool = False

    def find(self, log: str) -> re.Match[str] | None:
        """Return the first match."""
        if not any(literal in log for literal in self.text):
            return None
        for match in self.pattern.finditer(log):
            if self.within is None:
                return match
            at = match.start()
            start = max(log.rfind(_TRACEBACK, 0, at), at - _STACK_CHARACTERS, 0)
            if self.within.search(log, start, at):
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
    hint: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the log says it, rather than just ends."""
        return self.name not in {"last-line", "silent"}


def find_cause(lines: Sequence[LogLine], *, exit_code: int | None) -> Cause:
    """Return the root cause of a failure, best evidence first.

    `exit_code` is that of vLLM's first process, negative for a signal, None if it is not known.
    """
    is_clean = exit_code in {0, -signal.SIGTERM, -signal.SIGINT}
    if is_clean and any(_TOLD_TO_STOP.search(line.text) for line in lines):
        message = "something other than specserve sent vLLM SIGTERM or SIGINT"
        return Cause("told-to-stop", message, "stop specserve itself: it stops vLLM")
    own = _without_requests(lines)
    faults = [line for line in own if line.is_fault]
    # the API server talks on while the engine hangs
    texts = [line.text for line in own if not line.process.startswith("APIServer")]
    last = [text for text in texts if not _CHATTER.search(text)]
    said = "\n".join(line.text for line in faults)
    rows = table()
    return (
        _first((row, said) for row in rows if not (row.late or row.of_death))
        or _of_traceback(faults)
        or _first((row, "\n".join(line.text for line in lines)) for row in rows if row.of_death)
        or _of_exit(exit_code)
        or _first((row, "\n".join(last[-row.late :])) for row in rows if row.late)
        or _of_last_line(faults)
    )


def _first(candidates: Iterable[tuple[CausePattern, str]]) -> Cause | None:
    for row, log in candidates:
        if match := row.find(log):
            start, end = log.rfind("\n", 0, match.start()) + 1, log.find("\n", match.end())
            words = {name: (value or "").strip() for name, value in match.groupdict().items()}
            if number := words.get("signal"):
                words["signal"] = signal_name(int(number))
            words["line"] = log[start : end if end >= 0 else None].strip()
            message = _shortened(row.message.format_map(words))
            return Cause(row.name, message, row.hint.format_map(words))
    return None


def _of_traceback(lines: Sequence[LogLine]) -> Cause | None:
    """The exception at the root of the last failure, with the place in vLLM's source.

    Workers write their lines between each other's, so each process is read on its own. In a chain
    the innermost exception is the root, unless it reports another process's failure.
    """
    by_process: dict[str, list[tuple[int, str]]] = {}
    for position, line in enumerate(lines):
        by_process.setdefault(line.process, []).append((position, line.text))
    found: list[tuple[bool, int, str]] = []
    for own in by_process.values():
        root, place, statement, is_linked = "", "", "", False
        for position, text in own:
            is_linked |= _LINK.match(text) is not None
            if _TRACEBACK in text:
                place = ""
            elif match := _VLLM_FRAME.match(text):
                place = " ({}:{}, in {})".format(*match.groups())
            elif text.lstrip().startswith("assert "):
                statement = text.strip()
            elif match := _EXCEPTION.match(text):
                name, message = match["name"], (match["message"] or "").strip() or statement
                if quoted := _QUOTES.match(message):  # only another process reports it
                    name, message, place = "a worker's exception", quoted["quoted"], ""
                said = f"{name}: {message}" if message else name
                root = root if is_linked else ""
                if not root and not _ECHO.search(said):
                    root = f"{_shortened(said)}{place}"
                if root:
                    found.append((quoted is None, position, root))
                place, statement, is_linked = "", "", False
    return Cause("exception", max(found)[2], _TRACEBACK_HINT) if found else None


def _of_exit(code: int | None) -> Cause | None:
    if code is None or 0 <= code <= _SHELL_SIGNAL:
        return None
    name = signal_name(-code if code < 0 else code - _SHELL_SIGNAL)
    return Cause("killed", f"vLLM's first process was killed by {name}", _KILLED_HINT)


def _of_last_line(faults: Sequence[LogLine]) -> Cause:
    for line in reversed(faults):
        if not _CHATTER.search(line.text):
            message = f"the log shows no cause; its last line: {_shortened(line.text)}"
            return Cause("last-line", message, _LOG_HINT)
    return Cause("silent", "vLLM printed nothing", "run the command of `specserve plan` by hand")


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
            continue
        if in_request is not None:
            if not line.level and line.process == in_request and not _OTHER.match(line.text):
                continue
            in_request = None
        if line.level != "ERROR" or not line.process.startswith("APIServer"):
            kept.append(line)
    return kept


def died(
    group: Group, phase: str, *, after_s: float | None = None, said: str | None = None
) -> LaunchError:
    """Return why vLLM ended without being asked to. `said`: its own report, if the log has none."""
    code = group.exit_code
    if code is None:
        how = "is gone, and how it ended is not known"
    else:
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    after = f" after {_duration(after_s)}" if after_s is not None else ""
    return _error(f"vLLM {how}{after}, while {phase}", phase, group, said=said)


def stalled(group: Group, phase: str, *, limit_s: float) -> LaunchError:
    """Nothing moved for too long, so it was stopped."""
    message = f"vLLM made no progress for {_duration(limit_s)} while {phase}: it was stopped"
    hint = "no log line, nothing read and no CPU time used; `server.stall_timeout_s` is the limit"
    return _error(message, phase, group, hint=hint)


def _error(
    message: str, phase: str, group: Group, *, said: str | None = None, hint: str | None = None
) -> LaunchError:
    """`said` and `hint` count if the log tells no cause."""
    limit_bytes = _SERVING_LOG_BYTES if phase == Phase.SERVING else _STARTING_LOG_BYTES
    lines = read_end(group.log_path, limit_bytes=limit_bytes)
    cause = find_cause(lines, exit_code=group.exit_code)
    if not cause.is_known and is_disk_full(group.log_path):
        cause = Cause(
            "log-disk-full",
            "the disk of the log is full, and vLLM ends or hangs if it cannot write",
            f"make room in {group.log_path.parent}, or set SPECSERVE_STATE_DIR to another folder",
        )
    elif not cause.is_known:
        cause = replace(cause, message=said or cause.message, hint=hint or cause.hint)
    return LaunchError(
        message,
        log_path=str(group.log_path),
        # if the cause is known, the end of the log is its echo
        log_tail=() if cause.is_known else tuple(redacted(line.text) for line in lines[-5:]),
        causes=(redacted(cause.message),),  # it may quote the log, and is kept on disk
        hint=cause.hint,
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
