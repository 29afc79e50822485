"""What happens while a benchmark runs, as small frozen records. Knows nothing about how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specserve.measure.bench.result import Point


@dataclass(frozen=True, slots=True)
class Starting:
    """A server is being started; `phase` is what vLLM does."""

    arm: str
    phase: str
    log_path: str


@dataclass(frozen=True, slots=True)
class Ready:
    """It answers."""

    arm: str
    took_s: float


@dataclass(frozen=True, slots=True)
class WarmingUp:
    """Prompts that are not measured."""

    arm: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A block was measured on an arm."""

    arm: str
    point: Point
    tokens_per_s: float
    done: int
    total: int
    """Passes of the whole run."""
    left_s: float
    """Estimated from what has passed so far."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that the reader of the result should know, as soon as it is known."""

    text: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The servers of a session are being stopped."""

    arms: tuple[str, ...]


News = Starting | Ready | WarmingUp | Passed | Noted | Stopping
OnNews = Callable[[News], None]
