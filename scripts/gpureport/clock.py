"""How much time is left, and what a step will take: estimates that learn from the steps before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpureport.step import Step

CLOSING_S = 15.0
"""Kept for stopping servers and writing the page."""
GPU_START_S = {"demo": 55.0, "shape": 75.0, "tiny": 35.0, "refused": 15.0}
CPU_START_S = {"demo": 30.0, "shape": 25.0, "tiny": 25.0, "refused": 12.0}
"""Seconds until a server is ready (or has refused), before anything is known of this machine: assumed."""


@dataclass
class Clock:
    """The minutes given, counted from its making."""

    minutes: float
    defaults: Mapping[str, float]
    now: Callable[[], float] = time.monotonic
    measured: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self.now()

    def learn(self, kind: str, seconds: float) -> None:
        """Note how long a start of this kind took."""
        self.measured.setdefault(kind, []).append(seconds)

    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.now() - self._began

    def remaining_s(self) -> float:
        """Seconds that steps may still use; negative when time is up."""
        return 60 * self.minutes - CLOSING_S - self.elapsed_s()

    def start_s(self, kind: str) -> float:
        """What a start takes: as measured, else the default scaled by what the other kinds took."""
        if own := self.measured.get(kind):
            return statistics.median(own)
        factors = [statistics.median(times) / self.defaults[name] for name, times in self.measured.items()]
        return self.defaults[kind] * (statistics.median(factors) if factors else 1.0)

    def estimate_s(self, step: Step) -> float:
        """What the step will take."""
        return step.work_s + sum(count * self.start_s(kind) for kind, count in step.starts.items())

    def fits(self, step: Step) -> bool:
        """Whether the step can be done in the time left."""
        return self.estimate_s(step) <= self.remaining_s()


def ordered(steps: Iterable[Step]) -> list[Step]:
    """By value: the first tier of every part, then the second; within a tier as they stand."""
    return sorted(steps, key=lambda step: step.tier)
