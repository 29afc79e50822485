"""Whether a server that answers still gets on: tokens come while requests wait for them. Does not ask it."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.metrics.prometheus import Metrics

STILL_S = 60.0
"""So long without a token, beside waiting requests, is a hang: no step of a healthy server takes that long."""


@dataclass(frozen=True, slots=True)
class Still:
    """Requests wait, and nothing moves."""

    for_s: float
    running_requests: int
    waiting_requests: int


class ProgressWatch:
    """Remembers the counters from look to look."""

    def __init__(self, *, limit_s: float = STILL_S) -> None:
        self._limit_s = limit_s
        self._tokens: int | None = None
        self._since_s = 0.0

    def look(self, metrics: Metrics | None, *, at_s: float) -> Still | None:
        """What is wrong at this time, in seconds of any clock; None where tokens come, or nobody waits for one.

        `metrics` is None where the server did not give any: then nothing is known, and nothing is said.
        """
        if metrics is None:
            return None
        waits = metrics.running_requests + metrics.waiting_requests > 0
        if not waits or metrics.tokens != self._tokens:
            self._tokens, self._since_s = metrics.tokens, at_s
            return None
        still_s = at_s - self._since_s
        if still_s < self._limit_s:
            return None
        return Still(still_s, metrics.running_requests, metrics.waiting_requests)
