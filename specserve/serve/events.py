"""What happens to a server, as small frozen records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specserve.serve.logs import MemoryFigures, Phase


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
