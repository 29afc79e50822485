"""What happens to a server: the phases and figures of a start, as its log shows them, and events as small records."""

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
            r"Using cache directory: .{0,400} torch\.compile|Dynamo bytecode transform time|Compiling a graph"
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


_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{([^\n]{1,8192})$", re.M)


def add_metrics(figures: MemoryFigures, metrics_text: str) -> MemoryFigures:
    """Fill what the log did not say from `vllm:cache_config_info` (vllm 0.32, v1/metrics/loggers.py)."""
    found = _CACHE_CONFIG.search(metrics_text)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1])) if found else {}

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
class StaysCold:
    """The warm-up request was not answered; the server is ready all the same."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """It answers. `resident_bytes`: memory of all its processes, shared pages counted once."""

    url: str
    model: str
    elapsed_s: float
    figures: MemoryFigures
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Joined:
    """A node that only computes has loaded its share and is linked with node 0, which answers requests."""

    node_rank: int
    nodes: int
    elapsed_s: float
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Hangs:
    """It answers, requests wait, and no token has come for `for_s`."""

    for_s: float
    running_requests: int
    waiting_requests: int


@dataclass(frozen=True, slots=True)
class GoesOn:
    """After a hang, tokens come again."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal was sent to it; `grace_s` is how long it may take."""

    signal: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """No process of it is left. `killed`: it took SIGKILL; `removed`: files that it had left behind."""

    took_s: float
    killed: bool
    removed: tuple[str, ...] = ()


Event = (
    Started
    | PhaseStarted
    | PhaseGoesOn
    | PhaseEnded
    | StaysCold
    | Ready
    | Joined
    | Hangs
    | GoesOn
    | Stopping
    | Stopped
)
OnEvent = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """For those who want no news."""
