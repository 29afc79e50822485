"""vLLM's log: plain lines, files that grow, and the exception that its tracebacks come from."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import FactError
from specserve.files import open_regular
from specserve.serve.files import state_folder

_CHUNK_BYTES = 4 << 20
_LONGEST_LINE = 1 << 20
_HEAD, _TAIL = 3072, 1024
"""Characters that are kept of a line: its beginning says what it is, its end may hold the cause."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAUNCHER = re.compile(r"^(?:(?:[\w.-]+)? +\| |\[rank\d+\]: )")  # docker compose, torchrun
# `VLLM_LOGGING_PREFIX`, the process that vLLM puts before each line, then level, time and source line.
# (vllm 0.32, logger.py `_FORMAT`)
_PROCESS = re.compile(r"^.{0,80}?\((?P<process>\w[\w.+-]*(?: \w[\w.+-]*)*) pid=\d+[^)]{0,80}\) ?")
_LEVEL = re.compile(
    r"^.{0,80}?\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[^\s\[\]]+:\d+\] ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log without its dress; `process` and `level` are empty if the line does not say."""

    text: str
    process: str = ""
    level: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether it may tell of a failure: a bare line (tracebacks are) or one of level ERROR and above."""
        return self.level in {"", "ERROR", "CRITICAL"}


def parse(raw: str) -> list[LogLine]:
    """The lines of a piece of log, without the middle of a very long one.

    A JSON record gives one line per line of its message and its traceback.
    """
    lines: list[LogLine] = []
    for piece in re.split(r"[\r\n]+", raw):  # a progress bar rewrites its line with \r
        if piece.lstrip().startswith("{") and (record := _json_record(piece)):
            lines.extend(record)
        elif piece:
            lines.append(_plain(_cut(piece)))
    return lines


def _cut(line: str) -> str:
    return line if len(line) <= _HEAD + _TAIL else f"{line[:_HEAD]} … {line[-_TAIL:]}"


def _plain(piece: str) -> LogLine:
    text = _LAUNCHER.sub("", _COLOUR.sub("", piece))
    process = level = ""
    while match := _PROCESS.match(text):  # a worker may name itself twice
        process, text = match["process"], text[match.end() :]
    if match := _LEVEL.match(text):
        level, text = match["level"], text[match.end() :]
    return LogLine(text.rstrip(), process, level)


def _json_record(piece: str) -> list[LogLine]:
    try:
        record = json.loads(piece)
    except (ValueError, RecursionError):
        return []
    text = record.get("message", record.get("msg"))
    if not isinstance(text, str):
        return []
    process = record.get("vllm_process_name") or record.get("processName") or ""
    level = record.get("levelname") or record.get("level") or ""
    trace = record.get("exc_info")
    body = f"{text}\n{trace}" if isinstance(trace, str) else text
    return [
        LogLine(_COLOUR.sub("", _cut(line)), str(process), str(level).upper()) for line in body.splitlines()
    ]


class LogTail:
    """Reads what a growing log file has gained since the last look; an unfinished line waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        """How many bytes were read so far."""
        self.rest = b""
        """The beginning of an unfinished line."""

    def read(self) -> list[LogLine]:
        """New complete lines, parsed; none if the file is not there. No line of a log is as long as a piece."""
        lines = (line for line in self.read_raw() if len(line) <= _LONGEST_LINE)
        return parse(b"\n".join(lines).decode(errors="replace"))

    def last(self, count: int) -> list[bytes]:
        """The last complete lines as they are, or all of them for 0. Raises FactError for a log that cannot be read."""
        try:
            open_regular(self._path).close()
        except OSError as error:
            raise FactError(f"the log cannot be read: {self._path}: {error.strerror}") from error
        kept = deque[bytes](maxlen=count or None)
        while new := self.read_raw():
            kept.extend(new)
        return list(kept)

    def read_raw(self) -> list[bytes]:
        """New complete lines as they are. A very long one comes in pieces; a log that shrank is read from its start."""
        data = b""
        with contextlib.suppress(OSError), open_regular(self._path) as file:
            if file.seek(0, 2) < self.offset:
                self.offset, self.rest = 0, b""
            file.seek(self.offset)
            data = file.read(_CHUNK_BYTES)
        self.offset += len(data)
        data = self.rest + data
        # a progress bar ends its line with \r; what is printed may hold it
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LONGEST_LINE:
            end = len(data)
        self.rest = data[end:]
        return data[:end].removesuffix(b"\n").split(b"\n") if end else []


def end_of_log(path: Path, *, limit_bytes: int = _CHUNK_BYTES) -> str:
    """The last part of a log; nothing if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - limit_bytes))
            return file.read(limit_bytes).decode(errors="replace")
    except OSError:
        return ""


def read_end(path: Path, *, limit_bytes: int = _CHUNK_BYTES) -> list[LogLine]:
    """The lines of the last part of a log."""
    return parse(end_of_log(path, limit_bytes=limit_bytes))


_LEAST_FREE_BYTES = 4096


def is_disk_full(log_path: Path) -> bool:
    """Whether nothing more can be written to a log."""
    try:
        free = os.statvfs(log_path.parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _LEAST_FREE_BYTES


def default_log(name: str) -> Path:
    """A new path: logs/NAME-20260131-235959.log in the user's state folder or `SPECSERVE_STATE_DIR`."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        path = state_folder() / "logs" / f"{stem}{f'-{number}' if number > 1 else ''}.log"
        if not (path.exists() or path.is_symlink()):
            break
    return path


TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the log: its class and message, and the frames of its traceback, outermost first."""

    text: str
    stack: str = ""
    is_silent: bool = False
    """Whether it has no message of its own."""
    is_quoted: bool = False
    """Whether only another process reports it."""

    @property
    def place(self) -> str | None:
        """The innermost file of vLLM in the stack, with its line and function."""
        frames = _VLLM_FRAME.findall(self.stack)
        return f"{frames[-1][0]}:{frames[-1][1]}, in {frames[-1][2]}" if frames else None


_VLLM_FRAME = re.compile(
    r'^[ \t]*File "[^"\n]{0,400}?(vllm(?:/\w{1,60}){1,9}\.py)", line (\d+), in (\w+)', re.MULTILINE
)
_FRAME = re.compile(r'^[ \t]*File "[^"]+", line \d+, in ')
_NAMED = r"(?:[A-Za-z_]\w*\.)*\w{0,80}(?:Error|Exception|Failure|Exit|Interrupt|Fault|Expired)"
_EXCEPTION = re.compile(rf"^(?P<name>{_NAMED})(?::(?P<message>.*))?$")
# A class of a module, and the first line below the frames that is not indented: whatever the class is called.
_QUALIFIED = re.compile(r"^(?P<name>(?:[a-z_]\w*\.){2,}[A-Z]\w{0,80}):(?P<message> .*)$")
_AFTER_FRAMES = re.compile(r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w{0,80})(?::(?P<message>.*))?$")
_REPR = re.compile(rf"""^(?P<name>{_NAMED})\((?P<quote>["'])(?P<message>.{{1,1000}})(?P=quote),?\)""")
_CAUSE = re.compile(r"^The above exception was the direct cause")
_CONTEXT = re.compile(r"^During handling of the above exception, another exception")
_IGNORED = re.compile(r"^Exception ignored in")
# What the engine says of a worker's exception. (vllm 0.32, v1/executor/multiproc_executor.py)
_QUOTES = re.compile(r"^Worker failed with error '(?P<quoted>.*?)(?:', please check.*)?$")
_LOOKUP = re.compile(r"^(?:KeyError|IndexError|StopIteration|(?:_?queue\.)?Empty)\b")
# What the survivors say about a death elsewhere: never the root cause.
_ECHO = re.compile(
    r"EngineDeadError|root cause above|(?:stack ?trace|error)s? (?:\(above\)|above) for (?:the|more)"
    r"|Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|^RuntimeError: cancelled$|^SystemExit|KeyboardInterrupt"
    r"|CancelledError|^EOFError$|Executor failed|^(?:Connection|BrokenPipe|ConnectionReset)\w*Error"
    r"|ProcessDiedError|ActorDiedError|ncclRemoteError|^zmq\.error|^Exception: WorkerProc|RemoteTraceback"
)
_MESSAGE_LINES = 80
"""How far below its class the text of an exception is looked for: a compiler quotes the kernel in between."""


def root_exception(lines: Sequence[LogLine]) -> Raised | None:
    """The exception at the root of the last failure that the lines tell; None without one.

    Workers write their lines between each other's, so each process is read on its own. In a chain the
    innermost exception with a message is the root; one that only reports the failure of another process is
    none, and one raised while a failed look-up was handled comes before the look-up.
    """
    texts: dict[str, list[tuple[int, str]]] = {}
    for position, line in enumerate(lines):
        texts.setdefault(line.process, []).append((position, line.text))
    roots = [root for own in texts.values() for root in _roots(own)]
    return max(roots, key=lambda root: (not root[1].is_quoted, root[0]))[1] if roots else None


def _roots(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Raised]]:
    """The root of each chain of tracebacks of one process, with the position of the chain's end."""
    chain: list[Raised] = []
    stack: list[str] = []
    link: str | None = None
    end = 0
    is_ignored = False
    texts = [text for _, text in lines]
    for at, (position, text) in enumerate(lines):
        if _CAUSE.match(text) or _CONTEXT.match(text):
            link = text
        elif TRACEBACK in text:
            stack = []
        elif _IGNORED.match(text):
            is_ignored = True
        elif _FRAME.match(text):
            stack.append(text.strip())
        elif match := _exception(text, texts[at - 1] if at else "", in_stack=bool(stack)):
            raised = _raised(match, texts, at, stack="\n".join(stack))
            if link is None and chain:
                if root := _root(chain):
                    yield end, root
                chain = []
            is_next = bool(link and _CONTEXT.match(link) and chain and _LOOKUP.match(chain[-1].text))
            if not is_ignored:
                chain.insert(len(chain) - is_next, raised)
            stack, link, end, is_ignored = [], None, position, False
    if chain and (root := _root(chain)):
        yield end, root


def _root(chain: Sequence[Raised]) -> Raised | None:
    roots = [raised for raised in chain if not _ECHO.search(raised.text)]
    return next((raised for raised in roots if not raised.is_silent), roots[0] if roots else None)


def _exception(text: str, before: str, *, in_stack: bool) -> re.Match[str] | None:
    match = _EXCEPTION.match(text) or _QUALIFIED.match(text)
    if match is None and in_stack and before[:1].isspace():
        match = _AFTER_FRAMES.match(text)
    return match


def _raised(match: re.Match[str], texts: Sequence[str], at: int, *, stack: str) -> Raised:
    name, message = match["name"], (match["message"] or "").strip()
    if not message:
        statement = _statement(texts, at)
        is_silent = not statement.startswith("assert")
        return Raised(f"{name}: {statement}" if statement else name, stack, is_silent)
    quoted = _QUOTES.match(message)
    if quoted:
        name, message = "a worker's exception", quoted["quoted"]
    if message.endswith(":") or "validation error" in message:  # only the head of a message of several lines
        message = _below(texts, at) or message
        if found := _REPR.match(message):
            name, message = found["name"], found["message"]
    return Raised(f"{name}: {message}", "" if quoted else stack, is_quoted=quoted is not None)


def _statement(texts: Sequence[str], at: int) -> str:
    """The source line that raised an exception without a message."""
    for text in reversed(texts[max(0, at - 3) : at]):
        if _FRAME.match(text) or TRACEBACK in text:
            return ""
        if text.strip() and not set(text.strip()) <= set("^~ "):
            return text.strip()
    return ""


def _below(texts: Sequence[str], at: int) -> str:
    """The line of a message that says most: a quoted exception, what pydantic says, else the last one."""
    said = ""
    for text in texts[at + 1 : at + 1 + _MESSAGE_LINES]:
        if TRACEBACK in text or _CAUSE.match(text) or _CONTEXT.match(text) or _EXCEPTION.match(text):
            break
        line = text.strip()
        if _REPR.match(line):
            return line
        if line.startswith("Value error, "):
            return line.removeprefix("Value error, ").partition(" [type=")[0]
        if line and not set(line) <= set("^~ "):
            said = line
    return said
