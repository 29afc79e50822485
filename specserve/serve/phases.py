"""The phases of a start, read from vLLM's log. Does not know how long they may take."""

from __future__ import annotations

import re
from enum import StrEnum

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
