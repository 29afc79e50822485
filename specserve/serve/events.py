"""What happens to a server: the phases of its start, from its log, and events as records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
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
    SERVING = "serving"


# Sources: vllm 0.31 to 0.33, v1/worker/{gpu,cpu}_model_runner.py, v1/worker/gpu/model_runner.py,
# compilation/backends.py, v1/core/kv_cache_utils.py, huggingface_hub's progress bars.
SIGNS = {
    Phase.DOWNLOAD: r"^Fetching \d+ files|^Downloading ",
    Phase.WEIGHTS: r"^Starting to load model |^Loading (drafter model|\w+ checkpoint|weights)",
    Phase.COMPILE: r"torch\.compile(?: took|$)|^Warming up model for the compilation",
    Phase.KV_CACHE: r"^Available KV cache memory|KV cache size: |GiB (memory )?for KV [Cc]ache",
    Phase.GRAPHS: r"Capturing CUDA graphs?\b",
    Phase.API: r"^Starting vLLM (API )?server|Waiting for application startup",
}
# a draft may be downloaded after the target was loaded, and the CPU compiles after its KV cache
_ORDER = dict(zip(Phase, (0, 1, 1, 2, 2, 3, 4, 5), strict=True))


def next_phase(current: Phase, line: LogLine) -> Phase:
    """The phase after this line. Of several workers, the first one counts."""
    for phase, sign in SIGNS.items():
        if phase is not current and _ORDER[phase] >= _ORDER[current] and re.search(sign, line.text):
            return phase
    return current


@dataclass(frozen=True, slots=True)
class Started:
    """The process exists."""

    pid: int
    log_path: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase that begins (`took_s` is 0), goes on (about twice a second) or is over."""

    phase: Phase
    took_s: float = 0.0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """It answers."""

    url: str | None
    """None: a node that only computes; it has loaded its share."""
    model: str
    elapsed_s: float
    memory: str = ""
    """The size of its KV cache, and whether that was predicted."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal was sent to it; `grace_s` is how long it may take."""

    signal: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """No process of it is left. `killed`: it took SIGKILL."""

    took_s: float
    killed: bool


Event = Started | Progress | Ready | Stopping | Stopped
OnEvent = Callable[[Event], None]
