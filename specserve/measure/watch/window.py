"""What a server counted from reading to reading, and the stretches of time that are kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specserve.errors import FactError, SpecserveError, TrafficError
from specserve.metrics.counters import Acceptance, Counters, EngineName, since, total_acceptance
from specserve.metrics.prometheus import EngineMetrics, Metrics


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's metrics at a time, in seconds of a clock that never jumps."""

    at_s: float
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the engines counted in between, and how full they were."""

    began_s: float
    ended_s: float
    engines: Mapping[EngineName, Counters] = field(default_factory=dict)
    speculates: bool = False
    """Whether the server has speculation counters at all."""
    running_request_s: float = 0.0
    """Running requests times seconds, from the readings at both ends."""
    waiting_request_s: float = 0.0
    most_running: int = 0
    most_waiting: int = 0
    most_kv_cache_usage: float | None = None
    """Share of the fullest engine's KV cache, 0 to 1."""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.ended_s - self.began_s

    @property
    def counters(self) -> Counters:
        """The sum of all engines."""
        return sum(self.engines.values(), Counters())

    @property
    def acceptance(self) -> Acceptance:
        """The sum of all engines."""
        return total_acceptance(counted.acceptance for counted in self.engines.values())

    @property
    def request_s(self) -> float:
        """How long a request takes on average; Little's law also counts requests that still run."""
        counters = self.counters
        return max(counters.e2e_s.mean or 0.0, self.running_request_s / max(counters.finished_requests, 1))


def between(before: Reading, now: Reading) -> Stretch | None:
    """Return the stretch between two readings; None if the server was restarted in between.

    An engine that came or went is no restart of the others: what it counted before it was seen is left out.
    """
    engines: dict[EngineName, Counters] = {}
    for name, engine in now.metrics.engines.items():
        if earlier := before.metrics.engines.get(name):
            counted = since(earlier.counters, now=engine.counters)
            if counted is None or _is_other(earlier, engine):
                return None
            engines[name] = counted
    if not engines:
        return None
    seconds, (first, last) = now.at_s - before.at_s, (before.metrics, now.metrics)
    return Stretch(
        began_s=before.at_s,
        ended_s=now.at_s,
        engines=engines,
        speculates=last.speculates,
        running_request_s=(first.running_requests + last.running_requests) / 2 * seconds,
        waiting_request_s=(first.waiting_requests + last.waiting_requests) / 2 * seconds,
        most_running=max(first.running_requests, last.running_requests),
        most_waiting=max(first.waiting_requests, last.waiting_requests),
        most_kv_cache_usage=_most((first.kv_cache_usage, last.kv_cache_usage)),
    )


def _most(usage: Iterable[float | None]) -> float | None:
    return max((value for value in usage if value is not None), default=None)


def _is_other(before: EngineMetrics, now: EngineMetrics) -> bool:
    """Whether it began to count at another time: a new process may have overtaken the old one's counters."""
    return before.created_s is not None and now.created_s is not None and before.created_s != now.created_s


def joined(parts: Sequence[Stretch]) -> Stretch:
    """Return stretches that follow one another, as one. There must be one."""
    names = dict.fromkeys(name for part in parts for name in part.engines)
    return Stretch(
        began_s=parts[0].began_s,
        ended_s=parts[-1].ended_s,
        engines={
            name: sum((part.engines[name] for part in parts if name in part.engines), Counters())
            for name in names
        },
        speculates=parts[-1].speculates,
        running_request_s=sum(part.running_request_s for part in parts),
        waiting_request_s=sum(part.waiting_request_s for part in parts),
        most_running=max(part.most_running for part in parts),
        most_waiting=max(part.most_waiting for part in parts),
        most_kv_cache_usage=_most(part.most_kv_cache_usage for part in parts),
    )


class Readings:
    """The readings of one server, one after the other."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        """`read` raises TrafficError if nobody answers, FactError if the answer cannot be used."""
        self._read = read
        self.last: Reading | None = None
        self.restarts = 0
        self.restarted = False
        """Whether the newest reading is the first one after a restart."""
        self.trouble: SpecserveError | None = None
        """Why there is no newest reading."""

    def step(self) -> Stretch | None:
        """Read once more; return the stretch since the last reading, None if there is none."""
        self.restarted, self.trouble = False, None
        try:
            now = self._read()
        except (TrafficError, FactError) as error:
            self.trouble = error
            return None
        before, self.last = self.last, now
        found = between(before, now) if before is not None else None
        self.restarted = before is not None and found is None
        self.restarts += self.restarted
        return found


MOST = 120
"""Stretches that are kept. Of more, neighbours are joined: a long time is kept in coarser pieces."""


class Window:
    """Stretches of one server, oldest first. `span_s`: how much of the past is kept; None: all of it."""

    def __init__(self, *, span_s: float | None = None) -> None:
        self.span_s = span_s
        self.stretches: tuple[Stretch, ...] = ()

    def add(self, stretch: Stretch) -> None:
        """Add one and drop what is too old, by more than half of its length."""
        kept = list(self.stretches)
        if self.span_s is not None:
            if kept and kept[-1].seconds < self.span_s / MOST:
                stretch = joined([kept.pop(), stretch])
            oldest_s = stretch.ended_s - self.span_s
            kept = [part for part in kept if part.began_s + part.seconds / 2 >= oldest_s]
        elif len(kept) == MOST:
            kept = [joined(kept[index : index + 2]) for index in range(0, MOST, 2)]
        self.stretches = (*kept, stretch)

    def clear(self) -> None:
        """Forget everything, because the server was restarted."""
        self.stretches = ()

    def acceptance_before(self, at_s: float) -> Acceptance:
        """Return that of the stretches that had ended by then."""
        return total_acceptance(part.acceptance for part in self.stretches if part.ended_s <= at_s)
