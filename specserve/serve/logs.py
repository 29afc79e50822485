"""vLLM's log: plain lines, and a file that grows."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import LaunchError
from specserve.files import open_regular, private, state_folder
from specserve.serve.files import append_own

CHUNK_BYTES = 4 << 20
"""The most that is read of a log at once."""
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
    """One line without its prefixes; `process` and `level` are empty if the line does not say."""

    text: str
    process: str = ""
    level: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether it may tell of a failure: a bare line (of a traceback), or one of level ERROR.

        A line of JSON, of which another logger makes each record, says too much at once.
        """
        return self.level in {"", "ERROR", "CRITICAL"} and not self.text.startswith('{"')


def parse(raw: str) -> list[LogLine]:
    """The lines of a piece of log, without the middle of a very long one."""
    lines = []
    for piece in filter(None, re.split(r"[\r\n]+", raw)):  # a progress bar ends its line with \r
        if len(piece) > _HEAD + _TAIL:
            piece = f"{piece[:_HEAD]} … {piece[-_TAIL:]}"  # noqa: PLW2901
        text, process, level = _LAUNCHER.sub("", _COLOUR.sub("", piece)), "", ""
        while match := _PROCESS.match(text):  # a worker may name itself twice
            process, text = match["process"], text[match.end() :]
        if match := _LEVEL.match(text):
            level, text = match["level"], text[match.end() :]
        lines.append(LogLine(text.rstrip(), process, level))
    return lines


class LogTail:
    """Reads what a log has gained since the last look; an unfinished line waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def read(self) -> list[LogLine]:
        """New complete lines, parsed; none if the file is not there."""
        data = b""
        with contextlib.suppress(OSError), open_regular(self._path) as file:
            file.seek(self._offset)
            data = file.read(CHUNK_BYTES)
        self._offset += len(data)
        data = self._rest[-CHUNK_BYTES:] + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[end:]
        return parse(data[:end].decode(errors="replace"))


def end_of(path: Path, *, limit_bytes: int = CHUNK_BYTES) -> str:
    """The text of the last part of a log. Raises OSError."""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, 2) - limit_bytes))
        return file.read(limit_bytes).decode(errors="replace")


def open_log(path: Path) -> int:
    """A descriptor that appends to a log, made if it is missing. Raises LaunchError."""
    try:
        private(path.parent)
        return append_own(path)
    except OSError as error:
        raise LaunchError(f"cannot write the log `{path}`: {error.strerror}") from error


def is_disk_full(log_path: Path) -> bool:
    """Whether not even a page more can be written to a log."""
    with contextlib.suppress(OSError):
        free = os.statvfs(log_path.parent)
        return free.f_bavail * free.f_frsize < 4096
    return False


def default_log(name: str) -> Path:
    """The path of a new one: logs/NAME-20260131-235959.log in the state folder."""
    return state_folder() / "logs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.log"
