"""Why vLLM failed, from its log: the root cause and a hint. The messages are in cause_tables/."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.serve.causetable import Row, stages, table
from specserve.serve.logs import LogLine, without_requests
from specserve.serve.tracebacks import root_exception


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


_SHELL_SIGNAL = 128  # a shell in between turns signal n into exit code 128 + n
_LOG_HINT = "the end of the log shows what vLLM was doing"
_TRACEBACK_HINT = "the log has the whole traceback; look for this message in vLLM's issues"
_KILLED_HINT = (
    "see `dmesg` and the container's memory limit; a smaller KV cache or `engine.max_num_seqs` needs less"
)

_WITHOUT_A_WORD = (
    " (SIGKILL of the out-of-memory killer or kill -9, SIGBUS for want of room in /dev/shm,"
    " SIGABRT or SIGILL of native code)"
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
    faults = [line for line in own if line.is_fault]
    texts = [line.text for line in faults]
    return (
        _from_outside(lines, exit_code=exit_code)
        or _from_table(texts)
        or _from_traceback(faults)
        or _from_death(lines, out_of_memory=out_of_memory)
        or _from_signal(exit_code, out_of_memory=out_of_memory)
        or _from_end(own)
        or _from_last_line(texts)
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


def _from_traceback(faults: Sequence[LogLine]) -> Cause | None:
    """The exception at the root, with what vLLM was doing and the place in vLLM's source."""
    raised = root_exception(faults)
    if raised is None:
        return None
    stage = next((stage for stage in stages() if stage.within.search(raised.stack)), None)
    message = _shorten(f"{stage.doing}: {raised.text}" if stage else raised.text)
    if raised.place:
        message = f"{message} ({raised.place})"
    return Cause(stage.name if stage else "exception", message, stage.hint if stage else _TRACEBACK_HINT)


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
