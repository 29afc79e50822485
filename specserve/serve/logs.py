"""vLLM's log: plain lines, and files that grow."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections import deque
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
# VLLM_LOGGING_PREFIX, the process that vLLM puts before each line, then level, time and source
# line (vllm 0.32, logger.py `_FORMAT`)
_PROCESS = re.compile(r"^.{0,80}?\((?P<process>\w[\w.+-]*(?: \w[\w.+-]*)*) pid=\d+[^)]{0,80}\) ?")
_LEVEL = re.compile(
    r"^.{0,80}?\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    r" \[?[^\s\[\]]+:\d+\] ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without its dress; `process` and `level` are empty if the line does not say."""

    text: str
    process: str = ""
    level: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether it may tell of a failure: a bare line (of a traceback), or one of level ERROR."""
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
        LogLine(_COLOUR.sub("", _cut(line)), str(process), str(level).upper())
        for line in body.splitlines()
    ]


class LogTail:
    """Reads what a log has gained since the last look; an unfinished line waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        """How many bytes were read so far."""
        self.rest = b""
        """The beginning of an unfinished line."""

    def read(self) -> list[LogLine]:
        """New complete lines, parsed; none if the file is not there."""
        lines = (line for line in self.read_raw() if len(line) <= _LONGEST_LINE)
        return parse(b"\n".join(lines).decode(errors="replace"))

    def last(self, count: int) -> list[bytes]:
        """The last complete lines as they are, or all for 0. Raises FactError without a log."""
        try:
            open_regular(self._path).close()
        except OSError as error:
            raise FactError(f"the log cannot be read: {self._path}: {error.strerror}") from error
        kept = deque[bytes](maxlen=count or None)
        while new := self.read_raw():
            kept.extend(new)
        return list(kept)

    def read_raw(self) -> list[bytes]:
        """New complete lines; a long one in pieces. A log that shrank is read from its start."""
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
    """A new path: logs/NAME-20260131-235959.log in the state folder."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        path = state_folder() / "logs" / f"{stem}{f'-{number}' if number > 1 else ''}.log"
        if not (path.exists() or path.is_symlink()):
            break
    return path
