"""Why a server ended or never came up: its exit code, its log and the kernel. The messages are in cause_tables/."""

from __future__ import annotations

import re
import signal
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from specserve.errors import LaunchError
from specserve.profile.secrets import redacted
from specserve.serve.events import Phase
from specserve.serve.logs import TRACEBACK, LogLine, is_disk_full, read_end, root_exception
from specserve.serve.process import Group, count_oom_kills
from specserve.serve.signals import signal_name

# Tried in this order: what ends a start at once stands before what may also be an echo.
_TABLES = (
    "arguments",
    "environment",
    "speculation",
    "configuration",
    "hub",
    "model",
    "memory",
    "devices",
    "host",
)
_LINES_BEFORE, _LINES_AFTER = 2, 3  # around the literal: no message of the tables is longer
_STACK_CHARACTERS = 60_000


@dataclass(frozen=True, slots=True)
class CausePattern:
    """One line of a table: a pattern over the log, the sentence that it means, the way out.

    `says` are the literal texts that the pattern relies on, each with who writes it: a file below
    site-packages, or a name (`NCCL`). `within` must stand in the stack above the match. A `late` row is
    tried after everything else, on that many last lines of any level: it finds a hang or an echo.
    """

    name: str
    pattern: re.Pattern[str]
    message: str
    hint: str
    example: str
    says: tuple[tuple[str, str], ...]
    within: re.Pattern[str] | None = None
    late: int = 0

    def find(self, text: str) -> re.Match[str] | None:
        """The first match, looked for only around one of the literals stands."""
        stands_within = None
        for _, literal in self.says:
            at = text.find(literal)
            while at >= 0:
                if match := self.pattern.search(text, *_around(text, at)):
                    stands_within = stands_within or _within(self.within, text)
                    if stands_within(match.start()):
                        return match
                end = text.find("\n", at)  # the rest of this line was searched, too
                at = text.find(literal, end) if end >= 0 else -1
        return None


@dataclass(frozen=True, slots=True)
class Stage:
    """What vLLM was doing when it raised an exception that no row knows, and the way out."""

    name: str
    within: re.Pattern[str]
    doing: str
    hint: str


@cache
def table() -> tuple[CausePattern, ...]:
    """The rows of all tables, in the order in which they are tried."""
    return tuple(_row(row) for name in _TABLES for row in _read(name)["cause"])


@cache
def stages() -> tuple[Stage, ...]:
    """The stages of vLLM, in the order in which they are tried."""
    return tuple(
        Stage(**stage | {"within": re.compile(stage["within"])}) for stage in _read("stages")["stage"]
    )


def _read(name: str) -> dict[str, Any]:
    import tomllib

    folder = resources.files("specserve.serve").joinpath("cause_tables")
    return tomllib.loads(folder.joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _row(row: dict[str, Any]) -> CausePattern:
    within = re.compile(row["within"]) if "within" in row else None
    says = tuple((who, literal) for who, literal in row["says"])
    pattern = re.compile(row["pattern"], re.MULTILINE)
    return CausePattern(**row | {"pattern": pattern, "says": says, "within": within})


def _within(pattern: re.Pattern[str] | None, text: str) -> Callable[[int], bool]:
    """Tells of a place in the text whether the pattern stands in the stack above it; reads the text once."""
    if pattern is None:
        return lambda _: True
    spans = [found.span() for found in pattern.finditer(text)]
    ends = [end for _, end in spans]
    stacks = [found.end() for found in re.finditer(re.escape(TRACEBACK), text)]

    def stands_within(at: int) -> bool:
        last, stack = bisect_right(ends, at), bisect_right(stacks, at)
        start = max(at - _STACK_CHARACTERS, stacks[stack - 1] if stack else 0)
        return last > 0 and spans[last - 1][0] >= start

    return stands_within


def _around(text: str, at: int) -> tuple[int, int]:
    """The lines about a place in the text: where they start and end."""
    start, end = at, at - 1
    for _ in range(_LINES_BEFORE + 1):
        start = text.rfind("\n", 0, max(start, 0))
    for _ in range(_LINES_AFTER + 1):
        end = text.find("\n", end + 1) if end < len(text) else end
        end = len(text) if end < 0 else end
    return start + 1, end


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
    " (SIGKILL of the out-of-memory killer or kill -9, SIGBUS if /dev/shm is full,"
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

    `exit_code` is that of vLLM's first process, negative for a signal, None if it had to be stopped.
    `out_of_memory`: the kernel killed a process of this host for memory meanwhile.
    """
    own = _without_requests(lines)
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
        message = "something other than specserve sent vLLM SIGTERM or SIGINT"
        return Cause("told-to-stop", message, "stop specserve itself: it stops vLLM")
    return None


def _from_table(faults: Sequence[str]) -> Cause | None:
    text = "\n".join(faults)
    return _first((row, text) for row in table() if not row.late)


def _from_end(lines: Sequence[LogLine]) -> Cause | None:
    """What the last lines of the engine tell, of whatever level; the API server talks on while it hangs."""
    texts = [line.text for line in lines if not line.process.startswith("APIServer")]
    texts = [text for text in texts if not _CHATTER.search(text)]
    return _first((row, "\n".join(texts[-row.late :])) for row in table() if row.late)


def _first(candidates: Iterable[tuple[CausePattern, str]]) -> Cause | None:
    for row, text in candidates:
        if match := row.find(text):
            return _cause(row, text, match)
    return None


def _cause(row: CausePattern, text: str, match: re.Match[str]) -> Cause:
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
    found = ((who, pattern.search(text)) for pattern, who in _DEATHS)
    who, match = next(((who, match) for who, match in found if match), ("", None))
    if match is None:
        return None
    if number := match.groupdict().get("signal"):
        return _by_signal(who, int(number), out_of_memory=out_of_memory)
    # Python says something before it ends, except under a signal that it does not catch
    how = _struck(_WITHOUT_A_WORD, out_of_memory=out_of_memory)
    message = f"{who} died without a message in the log, which points to a signal{how}"
    return Cause("killed", message, _KILLED_HINT)


def _from_signal(exit_code: int | None, *, out_of_memory: bool) -> Cause | None:
    if exit_code is None or 0 <= exit_code <= _SHELL_SIGNAL:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL
    return _by_signal("vLLM's first process", number, out_of_memory=out_of_memory)


def _by_signal(who: str, number: int, *, out_of_memory: bool) -> Cause:
    if number != signal.SIGKILL:
        return Cause("killed", f"{who} was killed by {signal_name(number)}", _LOG_HINT)
    by_whom = _struck(" (out-of-memory killer or kill -9)", out_of_memory=out_of_memory)
    return Cause("killed", f"{who} was killed by SIGKILL{by_whom}", _KILLED_HINT)


def _struck(otherwise: str, *, out_of_memory: bool) -> str:
    return ": the kernel's out-of-memory killer struck meanwhile" if out_of_memory else otherwise


def _from_last_line(faults: Sequence[str]) -> Cause:
    last = next((text for text in reversed(faults) if not _CHATTER.search(text)), None)
    if last is None:
        return Cause("silent", "vLLM printed nothing", "run the command of `specserve plan` by hand")
    return Cause("last-line", f"the log shows no cause; its last line: {_shorten(last)}", _LOG_HINT)


def _shorten(text: str, limit: int = 400) -> str:
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit]} …"


# a log of days is full of other people's errors
_SERVING_LOG_BYTES, _STARTING_LOG_BYTES = 256 << 10, 4 << 20


def died(group: Group, phase: str, *, after_s: float | None = None, said: str | None = None) -> LaunchError:
    """vLLM ended and nobody here had asked for it. `said`: its own report, which counts if its log tells no cause."""
    code = group.exit_code
    if code is None:
        how = "is gone, and how it ended is not known"
    elif code < 0:
        how = f"was killed by {signal_name(-code)}"
    else:
        how = f"exited with code {code}"
    after = f" after {duration(after_s)}" if after_s is not None else ""
    return _error(f"vLLM {how}{after}, while {phase}", phase, group, exit_code=code, said=said)


def stalled(group: Group, phase: str, *, limit_s: float) -> LaunchError:
    """Nothing moved for too long, so it was stopped."""
    message = f"vLLM made no progress for {duration(limit_s)} while {phase}: it was stopped"
    hint = "no log line, nothing read and no CPU time used; `server.stall_timeout_s` is the limit"
    return _error(message, phase, group, exit_code=None, hint=hint)


def _error(
    message: str,
    phase: str,
    group: Group,
    *,
    exit_code: int | None,
    said: str | None = None,
    hint: str | None = None,
) -> LaunchError:
    """`said` and `hint` count if the log tells no cause."""
    limit_bytes = _SERVING_LOG_BYTES if phase == Phase.SERVING else _STARTING_LOG_BYTES
    lines = read_end(group.log_path, limit_bytes=limit_bytes)
    cause = find_cause(lines, exit_code=exit_code, out_of_memory=count_oom_kills() > group.oom_kills)
    if not cause.is_known and is_disk_full(group.log_path):
        cause = Cause(
            "log-disk-full",
            "the disk of the log is full, and vLLM ends or hangs if it cannot write",
            f"make room in {group.log_path.parent}, or name another folder in SPECSERVE_STATE_DIR",
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


def duration(seconds: float) -> str:
    """`3.1s`, `41s`."""
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"


# uvicorn puts this before the stack of a request that its application did not answer.
_REQUEST = re.compile(r"^ERROR: +Exception in ASGI application")


_OTHER = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL): ")


def _without_requests(lines: Sequence[LogLine]) -> list[LogLine]:
    """The lines without the failures of single requests.

    The API server reports those, and the deaths of others, at level ERROR; what ends itself it raises, and
    that has no level. (vllm 0.26 to 0.33, entrypoints/)
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
        if line.level == "ERROR" and line.process.startswith("APIServer"):
            continue
        kept.append(line)
    return kept
