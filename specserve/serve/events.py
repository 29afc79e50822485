"""What happens to a server: phases and figures of a start, from its log, and events as records."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from specserve.serve.logs import LogLine


class Phase(StrEnum):
    """What vLLM is doing, in the words that are shown; in the order in which it happens."""

    ENGINE = "starting the engine"
    DOWNLOAD = "downloading weights"
    WEIGHTS = "loading weights"
    COMPILE = "compiling"
    KV_CACHE = "allocating the KV cache"
    GRAPHS = "capturing CUDA graphs"
    API = "starting the API server"
    SERVING = "serving"


# Sources: vllm 0.31 to 0.33, v1/worker/{gpu,cpu}_model_runner.py, v1/worker/gpu/model_runner.py,
# compilation/backends.py, v1/core/kv_cache_utils.py, huggingface_hub's progress bars.
SIGNS = {
    Phase.DOWNLOAD: r"^Fetching \d+ files|^Downloading |^\S+\.(safetensors|bin|gguf): +\d+%",
    Phase.WEIGHTS: r"^Starting to load model |^Loading drafter model|^Time spent downloading "
    r"weights|^Loading \w+ checkpoint shards|^Loading weights (on|took) ",
    Phase.COMPILE: r"Using cache directory: .{0,400} torch\.compile|Dynamo bytecode transform time"
    r"|Compiling a graph|Directly load the compiled graph|^Warming up model for the compilation"
    r"|torch\.compile took",
    Phase.KV_CACHE: r"^Available KV cache memory|KV cache size: |GiB (memory )?for KV [Cc]ache"
    r"|^Using \w+ KV cache layout",
    Phase.GRAPHS: r"Capturing CUDA graphs?\b|Graph capturing finished",
    Phase.API: r"^Starting vLLM (API )?server|^Supported tasks: |Waiting for application startup",
}
_RANK = {phase: rank for rank, phase in enumerate(Phase)}
# a draft may be downloaded after the target was loaded: these two may alternate
_RANK[Phase.DOWNLOAD] = _RANK[Phase.WEIGHTS]
# on the CPU vLLM compiles when its KV cache is there already (v1/worker/cpu_model_runner.py)
_BACK = "Warming up model for the compilation"


def next_phase(current: Phase, line: LogLine) -> Phase:
    """The phase after this line. Of several workers, the first one counts."""
    if current is Phase.KV_CACHE and line.text.startswith(_BACK):
        return Phase.COMPILE
    for phase, sign in SIGNS.items():
        if phase is not current and _RANK[phase] >= _RANK[current] and re.search(sign, line.text):
            return phase
    return current


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """What vLLM said about memory, of the fullest GPU; None: it did not. Tokens are per engine."""

    weights_gib: float | None = None
    checkpoint_gib: float | None = None
    """Size of the weight files, target and draft together; the CPU backend reports no other."""
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    """How many requests of `max_model_len` tokens fit at once."""
    max_model_len: int | None = None
    graphs_gib: float | None = None


# A line that vLLM writes, the figure that it holds, and what several of them make. (vllm 0.32:
# v1/worker/gpu_model_runner.py, v1/worker/cpu_worker.py, v1/core/kv_cache_utils.py)
_FIGURES: tuple[tuple[str, str, Callable[[float, float], float] | None], ...] = (
    (r"Model loading took ([\d.]+) GiB", "weights_gib", max),
    (r"Checkpoint size: ([\d.]+) GiB", "checkpoint_gib", operator.add),
    (r"Available KV cache memory: ([\d.]+) GiB", "kv_cache_gib", min),
    (r" \(([\d.]+)/[\d.]+\) GiB for KV cache", "kv_cache_gib", min),
    (r"\w KV cache size: ([\d,]+) tokens", "kv_cache_tokens", None),
    (r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", "max_concurrency", None),
    (r"Maximum concurrency for ([\d,]+) tokens per request", "max_model_len", None),
    (r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB", "graphs_gib", None),
)


def add_line(figures: MemoryFigures, line: LogLine) -> MemoryFigures:
    """The figures after this log line."""
    for pattern, name, combined in _FIGURES:
        if match := re.search(pattern, line.text):
            value, before = float(match[1].replace(",", "")), getattr(figures, name)
            if combined and before is not None:
                value = combined(before, value)
            is_whole = name in ("kv_cache_tokens", "max_model_len")
            change: dict[str, Any] = {name: int(value) if is_whole else value}
            figures = replace(figures, **change)
    return figures


@dataclass(frozen=True, slots=True)
class Started:
    """The process exists."""

    pid: int
    log_path: str


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """vLLM began something; `elapsed_s` counts from the launch."""

    phase: Phase
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class PhaseGoesOn:
    """Still in the same phase; comes about twice a second."""

    phase: Phase
    took_s: float


@dataclass(frozen=True, slots=True)
class PhaseEnded:
    """What was begun is done."""

    phase: Phase
    took_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """It answers. `resident_bytes`: memory of all its processes, shared pages counted once."""

    url: str | None
    """None: a node that only computes; it has loaded its share."""
    model: str
    elapsed_s: float
    figures: MemoryFigures
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal was sent to it; `grace_s` is how long it may take."""

    signal: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """No process of it is left. `killed`: it took SIGKILL; `removed`: files that it had left."""

    took_s: float
    killed: bool
    removed: tuple[str, ...] = ()


Event = Started | PhaseStarted | PhaseGoesOn | PhaseEnded | Ready | Stopping | Stopped
OnEvent = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """For those who want no news."""
