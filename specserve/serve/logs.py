"""vLLM's log as plain lines, without prefixes, colours and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from specserve.serve.ownfiles import open_regular

_CHUNK_BYTES = 4 << 20
_LONGEST_LINE = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAUNCHER = re.compile(r"^(?:(?:[\w.-]+)? +\| |\[rank\d+\]: )")  # docker compose, torchrun
# `VLLM_LOGGING_PREFIX`, the process that vLLM puts before each line, then level, time and source line.
# (vllm 0.32, logger.py `_FORMAT`)
_PROCESS = re.compile(r"^.{0,80}?\((?P<process>\w[\w.+-]*(?: \w[\w.+-]*)*) pid=\d+[^)]*\) ?")
_LEVEL = re.compile(
    r"^.{0,80}?\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[^\s\[\]]+:\d+\] ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log without its dress; `process` and `level` are empty where the line does not say."""

    text: str
    process: str = ""
    level: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether it may tell of a failure: a bare line (tracebacks are) or one of level ERROR and above."""
        return self.level in {"", "ERROR", "CRITICAL"}


def parse(raw: str) -> list[LogLine]:
    """The lines of a piece of log. A JSON record gives one line per line of its message and its traceback."""
    lines: list[LogLine] = []
    for piece in re.split(r"[\r\n]+", raw):  # a progress bar rewrites its line with \r
        if piece.lstrip().startswith("{") and (record := _json_record(piece)):
            lines.extend(record)
        elif piece:
            lines.append(_plain(piece))
    return lines


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
    if not isinstance(record, dict):
        return []
    text = record.get("message", record.get("msg"))
    if not isinstance(text, str):
        return []
    process = record.get("vllm_process_name") or record.get("processName") or ""
    level = record.get("levelname") or record.get("level") or ""
    trace = record.get("exc_info") or ""
    body = f"{text}\n{trace}" if isinstance(trace, str) and trace else text
    return [LogLine(_COLOUR.sub("", line), str(process), str(level).upper()) for line in body.splitlines()]


class LogTail:
    """Reads what a growing log file has gained since the last look; an unfinished line waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    @property
    def offset(self) -> int:
        """How many bytes were read so far."""
        return self._offset

    def read(self) -> list[LogLine]:
        """New whole lines; none where the file is not there."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                data = file.read(_CHUNK_BYTES)
        except OSError:
            return []
        self._offset += len(data)
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[end:] if len(data) - end <= _LONGEST_LINE else b""  # no line of a log is so long
        return parse(data[:end].decode(errors="replace"))


def read_end(path: Path, *, start: int = 0, limit_bytes: int = _CHUNK_BYTES) -> list[LogLine]:
    """The last part of a log, from `start` at the earliest; nothing where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - limit_bytes))
            return parse(file.read(limit_bytes).decode(errors="replace"))
    except OSError:
        return []
