"""vLLM's log: plain lines, the phases of a start, the figures that it reports."""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from specserve.serve.files import open_regular, state_folder

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
    """One line of the log without its dress; `process` and `level` are empty if the line does not say."""

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
    text = record.get("message", record.get("msg"))
    if not isinstance(text, str):
        return []
    process = record.get("vllm_process_name") or record.get("processName") or ""
    level = record.get("levelname") or record.get("level") or ""
    trace = record.get("exc_info")
    body = f"{text}\n{trace}" if isinstance(trace, str) else text
    return [LogLine(_COLOUR.sub("", line), str(process), str(level).upper()) for line in body.splitlines()]


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


class Phase(StrEnum):
    """What vLLM is doing, in the words that are shown; in the order in which it happens."""

    ENGINE = "starting the engine"
    DOWNLOAD = "downloading weights"
    WEIGHTS = "loading weights"
    COMPILE = "compiling"
    KV_CACHE = "allocating the KV cache"
    GRAPHS = "capturing CUDA graphs"
    API = "starting the API server"
    WARM_UP = "warming up"
    SERVING = "serving"


# Sources: vllm 0.26 to 0.33, v1/worker/{gpu,cpu}_model_runner.py, v1/worker/gpu/model_runner.py,
# compilation/backends.py, v1/core/kv_cache_utils.py, entrypoints/launchers, huggingface_hub's progress bars.
SIGNS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (Phase.DOWNLOAD, re.compile(r"^(Fetching \d+ files|Downloading |\S+\.(safetensors|bin|gguf): +\d+%)")),
    (
        Phase.WEIGHTS,
        re.compile(
            r"^(Starting to load model |Loading drafter model|Time spent downloading weights"
            r"|Loading \w+ checkpoint shards|Loading weights (on|took) )"
        ),
    ),
    (
        Phase.COMPILE,
        re.compile(
            r"Using cache directory: .* torch\.compile|Dynamo bytecode transform time|Compiling a graph"
            r"|Directly load the compiled graph|^Warming up model for the compilation|torch\.compile took"
        ),
    ),
    (
        Phase.KV_CACHE,
        re.compile(
            r"^Available KV cache memory|KV cache size: |^Explicitly set .* GiB for KV cache"
            r"|GiB (memory )?for KV [Cc]ache|^Using \w+ KV cache layout"
        ),
    ),
    (Phase.GRAPHS, re.compile(r"Capturing CUDA graphs?\b|Graph capturing finished")),
    (
        Phase.API,
        re.compile(r"^Starting vLLM (API )?server|^Supported tasks: |Waiting for application startup"),
    ),
)
_RANK = {phase: rank for rank, phase in enumerate(Phase)}
# A draft may be downloaded after the target was loaded: these two may alternate.
_RANK[Phase.DOWNLOAD] = _RANK[Phase.WEIGHTS]


_BACK = re.compile(r"^Warming up model for the compilation")
"""On the CPU vLLM compiles when its KV cache is there already (v1/worker/cpu_model_runner.py)."""


def next_phase(current: Phase, line: LogLine) -> Phase:
    """The phase after this line. Goes back in one place only: of several workers, the first one counts."""
    if current is Phase.KV_CACHE and _BACK.search(line.text):
        return Phase.COMPILE
    for phase, sign in SIGNS:
        if phase is not current and _RANK[phase] >= _RANK[current] and sign.search(line.text):
            return phase
    return current


GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """What vLLM said about memory, of the fullest GPU; None = it did not say. Tokens are per engine."""

    weights_gib: float | None = None
    checkpoint_gib: float | None = None
    """Size of the weight files, target and draft together; the CPU backend reports no other size."""
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    """How many requests of `max_model_len` tokens fit at once."""
    max_model_len: int | None = None
    graphs_gib: float | None = None


def _last(_before: float, now: float) -> float:
    return now


# A line that vLLM writes, the figure that it holds, and what several of them make. (vllm 0.32:
# v1/worker/gpu_model_runner.py, v1/worker/cpu_worker.py, v1/core/kv_cache_utils.py)
_FIGURES: tuple[tuple[re.Pattern[str], str, Callable[[float, float], float]], ...] = (
    (re.compile(r"Model loading took ([\d.]+) GiB"), "weights_gib", max),
    (re.compile(r"Checkpoint size: ([\d.]+) GiB"), "checkpoint_gib", operator.add),
    (re.compile(r"Available KV cache memory: ([\d.]+) GiB"), "kv_cache_gib", min),
    (re.compile(r" \(([\d.]+)/[\d.]+\) GiB for KV cache"), "kv_cache_gib", min),
    (re.compile(r"\w KV cache size: ([\d,]+) tokens"), "kv_cache_tokens", _last),
    (re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), "max_concurrency", _last),
    (re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"), "max_model_len", _last),
    (re.compile(r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB"), "graphs_gib", _last),
)
_WHOLE = frozenset({"kv_cache_tokens", "max_model_len"})


def add_line(figures: MemoryFigures, line: LogLine) -> MemoryFigures:
    """The figures after this log line."""
    for pattern, name, combined in _FIGURES:
        if match := pattern.search(line.text):
            value, before = float(match[1].replace(",", "")), getattr(figures, name)
            value = value if before is None else combined(before, value)
            change: dict[str, Any] = {name: int(value) if name in _WHOLE else value}
            figures = replace(figures, **change)
    return figures


def add_metrics(figures: MemoryFigures, metrics_text: str) -> MemoryFigures:
    """Fill what the log did not say from `vllm:cache_config_info` (vllm 0.32, v1/metrics/loggers.py)."""
    from specserve.metrics.prometheus import cache_config

    labels = cache_config(metrics_text)

    def number(name: str) -> float:
        try:
            return float(labels.get(name, 0))
        except ValueError:
            return 0.0  # vLLM exports "None" for what is not set

    tokens = number("kv_cache_size_tokens") or number("num_gpu_blocks") * number("block_size")
    return replace(
        figures,
        kv_cache_tokens=figures.kv_cache_tokens or int(tokens) or None,
        max_concurrency=figures.max_concurrency or number("kv_cache_max_concurrency") or None,
        kv_cache_gib=figures.kv_cache_gib or number("kv_cache_memory_bytes") / GIB or None,
    )


# uvicorn puts this before the stack of a request that its application did not answer.
_REQUEST = re.compile(r"^ERROR: +Exception in ASGI application")
_OTHER = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL): ")


def without_requests(lines: Sequence[LogLine]) -> list[LogLine]:
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
