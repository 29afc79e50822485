"""What one engine of vLLM counted, since its start or in a stretch of time. Pure; knows no text and no server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specserve.metrics import histogram
from specserve.metrics.acceptance import Acceptance, gain
from specserve.metrics.histogram import Histogram


class EngineName(NamedTuple):
    """vLLM's labels of one engine; with data parallelism there are several."""

    model_name: str
    engine: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Everything that only grows while an engine lives."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    finished: Mapping[str, int] = field(default_factory=dict)
    """Finished requests by vLLM's reason: stop, length, abort, error, …"""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    ttft_s: Histogram = field(default_factory=Histogram)
    tpot_s: Histogram = field(default_factory=Histogram)
    """Of each finished request: (last - first token) / (output tokens - 1); 0 where it had but one."""
    e2e_s: Histogram = field(default_factory=Histogram)
    queue_s: Histogram = field(default_factory=Histogram)
    request_prompt_tokens: Histogram = field(default_factory=Histogram)
    request_generation_tokens: Histogram = field(default_factory=Histogram)

    @property
    def finished_requests(self) -> int:
        """For whatever reason."""
        return sum(self.finished.values())

    def __add__(self, other: Counters) -> Counters:
        """Two engines, or two stretches of time, together."""
        reasons = {**self.finished, **other.finished}
        return Counters(
            acceptance=self.acceptance + other.acceptance,
            finished={key: self.finished.get(key, 0) + other.finished.get(key, 0) for key in reasons},
            **{name: getattr(self, name) + getattr(other, name) for name in (*NUMBERS, *HISTOGRAMS)},
        )


NUMBERS = ("prompt_tokens", "generation_tokens", "preemptions")
HISTOGRAMS = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "request_prompt_tokens", "request_generation_tokens")


def total(parts: Iterable[Counters]) -> Counters:
    """The sum over engines or stretches of time."""
    return sum(parts, Counters())


def since(before: Counters, *, now: Counters) -> Counters | None:
    """What one engine counted between two readings; None where anything dropped: it was started anew."""
    finished = {key: count - before.finished.get(key, 0) for key, count in now.finished.items()}
    numbers = {name: getattr(now, name) - getattr(before, name) for name in NUMBERS}
    observed = {name: histogram.since(getattr(before, name), now=getattr(now, name)) for name in HISTOGRAMS}
    acceptance = gain(before.acceptance, now=now.acceptance)
    dropped = (
        acceptance is None
        or min(finished.values(), default=0) < 0
        or min(numbers.values()) < 0
        or not before.finished.keys() <= now.finished.keys()
    )
    if dropped or acceptance is None or any(found is None for found in observed.values()):
        return None
    return Counters(acceptance=acceptance, finished=finished, **numbers, **observed)  # type: ignore[arg-type]
