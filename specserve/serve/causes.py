"""Why vLLM failed, out of its log: the root cause and a hint. Knows no message itself: see cause_tables/."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.serve.causetable import TRACEBACK, Row, table
from specserve.serve.logs import LogLine
from specserve.serve.requesterrors import without_requests


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause in one sentence. `name` is the row of the table, or how it was found."""

    name: str
    message: str
    hint: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the log told it, rather than just ended."""
        return self.name not in {"last-line", "silent"}


_SHELL_SIGNAL = 128  # a shell in between turns signal n into exit code 128 + n
_LOG_HINT = "the log holds the whole story"
_KILLED_HINT = (
    "see `dmesg` and the container's memory limit; a smaller KV cache or `engine.max_num_seqs` needs less"
)

_WITHOUT_A_WORD = (
    " (SIGKILL of the out-of-memory killer or kill -9, SIGBUS for want of room in /dev/shm,"
    " SIGABRT or SIGILL of native code)"
)

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Exit|Interrupt|Fault|Expired)(?:: .*)?$"
)
_CHAINED = re.compile(
    r"^(The above exception was the direct cause|During handling of the above exception, another exception)"
)
# What the survivors say about a death elsewhere: never the root cause.
_ECHO = re.compile(
    r"EngineDeadError|Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|^RuntimeError: cancelled$|^SystemExit|KeyboardInterrupt"
    r"|CancelledError|^EOFError$|Executor failed|^(?:Connection|BrokenPipe|ConnectionReset)\w*Error"
    r"|ProcessDiedError|ActorDiedError|ncclRemoteError|^zmq\.error|^Exception: WorkerProc"
)
# Who died, in the words of who noticed. (vllm 0.26 to 0.33: v1/engine/utils.py, v1/engine/core_client.py,
# v1/executor/multiproc_executor.py)
_DEATHS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Worker proc \S+ died unexpectedly \(exit code: -(?P<signal>\d+)\)"), "a worker process"),
    (re.compile(r"Failed core proc\(s\): \{'[^']+': -(?P<signal>\d+)"), "the engine process"),
    (re.compile(r"Worker proc \S+ died unexpectedly(?: \(exit code: None\))?"), "a worker process"),
    (re.compile(r"Failed core proc\(s\): \{\}"), "the engine process"),
    (
        re.compile(r"engine core (?:proc \S+ )?(?:exited|died) unexpectedly", re.IGNORECASE),
        "the engine process",
    ),
    (re.compile(r"EngineDeadError: EngineCore encountered an issue"), "the engine process"),
)
_TOLD_TO_STOP = re.compile(r"API server: shutdown triggered|trigger received signal=SIG(?:TERM|INT)")
_CHATTER = re.compile(r"^(?:INFO|WARNING): |warnings\.warn|resource_tracker|^\s*$")


def find_cause(lines: Sequence[LogLine], *, exit_code: int | None, out_of_memory: bool = False) -> Cause:
    """The root cause of a failure, best evidence first.

    `exit_code` is that of vLLM's first process, negative for a signal, None where it had to be stopped.
    `out_of_memory`: the kernel killed a process of this host for memory meanwhile.
    """
    own = without_requests(lines)
    faults = [line.text for line in own if line.is_fault]
    return (
        _from_outside(lines, exit_code=exit_code)
        or _from_table(faults)
        or _from_traceback(faults)
        or _from_death(lines, out_of_memory=out_of_memory)
        or _from_signal(exit_code, out_of_memory=out_of_memory)
        or _from_end(own)
        or _from_last_line(faults)
    )


def _from_outside(lines: Sequence[LogLine], *, exit_code: int | None) -> Cause | None:
    """A clean end that nobody here asked for: someone else's signal."""
    if exit_code in {0, -signal.SIGTERM, -signal.SIGINT} and any(
        _TOLD_TO_STOP.search(line.text) for line in lines
    ):
        message = "something other than specserve told vLLM to stop (SIGTERM or SIGINT from outside)"
        return Cause("told-to-stop", message, "stop specserve itself: it stops vLLM")
    return None


def _from_table(faults: Sequence[str]) -> Cause | None:
    text = "\n".join(faults)
    for row in table():
        if not row.late and (match := row.find(text)):
            return _cause(row, text, match)
    return None


def _from_end(lines: Sequence[LogLine]) -> Cause | None:
    """What the last lines of the engine tell, of whatever level; the API server talks on while it hangs."""
    texts = [line.text for line in lines if not line.process.startswith("APIServer")]
    texts = [text for text in texts if not _CHATTER.search(text)]
    for row in table():
        text = "\n".join(texts[-row.late :])
        if row.late and (match := row.find(text)):
            return _cause(row, text, match)
    return None


def _cause(row: Row, text: str, match: re.Match[str]) -> Cause:
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    words = {name: (value or "").strip() for name, value in match.groupdict().items()}
    words["line"] = text[start : end if end >= 0 else None].strip()
    return Cause(row.name, _shorten(row.message.format_map(words)), row.hint.format_map(words))


def _from_traceback(faults: Sequence[str]) -> Cause | None:
    """The innermost exception of the last chain of tracebacks that is not an echo."""
    root: str | None = None
    chained = False
    for index, text in enumerate(faults):
        if _CHAINED.match(text):
            chained = True
        elif _EXCEPTION.match(text) and not _ECHO.search(text):
            if not (chained and root):
                root = text if ": " in text else _with_source(faults, index)
            chained = False
    return Cause("exception", _shorten(root), _LOG_HINT) if root else None


def _with_source(faults: Sequence[str], index: int) -> str:
    """A bare `AssertionError` says nothing: add the statement that raised it."""
    for text in reversed(faults[max(0, index - 3) : index]):
        if text.strip() and not set(text.strip()) <= set("^~ ") and text != TRACEBACK:
            return f"{faults[index]}: {text.strip()}"
    return faults[index]


def _from_death(lines: Sequence[LogLine], *, out_of_memory: bool) -> Cause | None:
    text = "\n".join(line.text for line in lines)
    for pattern, who in _DEATHS:
        match = pattern.search(text)
        if not match:
            continue
        number = match.groupdict().get("signal")
        if number is None:
            # Python says something before it ends, except under a signal that it does not catch.
            how = _by_whom(out_of_memory) if out_of_memory else _WITHOUT_A_WORD
            return Cause(
                "killed", f"{who} died without a word in the log, as a signal makes it{how}", _KILLED_HINT
            )
        return _by_signal(who, int(number), out_of_memory=out_of_memory)
    return None


def _from_signal(exit_code: int | None, *, out_of_memory: bool) -> Cause | None:
    if exit_code is None or 0 <= exit_code <= _SHELL_SIGNAL:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL
    return _by_signal("vLLM's first process", number, out_of_memory=out_of_memory)


def _from_last_line(faults: Sequence[str]) -> Cause:
    last = next((text for text in reversed(faults) if not _CHATTER.search(text)), None)
    if last is None:
        return Cause("silent", "it said nothing", "run the command of `specserve plan` by hand")
    return Cause("last-line", f"no cause in the log; its last line: {_shorten(last)}", _LOG_HINT)


def _by_signal(who: str, number: int, *, out_of_memory: bool) -> Cause:
    by_whom = _by_whom(out_of_memory) if number == signal.SIGKILL else ""
    hint = _KILLED_HINT if number == signal.SIGKILL else _LOG_HINT
    return Cause("killed", f"{who} was killed by {signal_name(number)}{by_whom}", hint)


def _by_whom(out_of_memory: bool) -> str:
    return (
        ": the kernel's out-of-memory killer struck meanwhile"
        if out_of_memory
        else " (out-of-memory killer or kill -9)"
    )


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for one that this host does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shorten(text: str, limit: int = 400) -> str:
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit]} …"
