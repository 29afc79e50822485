"""What happened between two readings of a server's metrics. Pure; knows no server and no window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specserve.metrics import acceptance
from specserve.metrics.acceptance import Acceptance
from specserve.metrics.counters import Counters, EngineName, since, total
from specserve.metrics.snapshot import Engine, Snapshot


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's metrics at a time, in seconds of a clock that never jumps."""

    at_s: float
    snapshot: Snapshot


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
        """All engines together."""
        return total(self.engines.values())

    @property
    def acceptance(self) -> Acceptance:
        """That of all engines together."""
        return acceptance.total(counted.acceptance for counted in self.engines.values())


def between(before: Reading, now: Reading) -> Stretch | None:
    """The stretch between two readings; None where the server was started anew in between.

    An engine that came or went is no restart of the others: what it counted before it was seen is left out.
    """
    engines: dict[EngineName, Counters] = {}
    for name, engine in now.snapshot.engines.items():
        earlier = before.snapshot.engines.get(name)
        if earlier is None:
            continue
        counted = since(earlier.counters, now=engine.counters)
        if counted is None or _is_other(earlier, engine):
            return None
        engines[name] = counted
    if not engines:
        return None
    ends = [list(reading.snapshot.engines.values()) for reading in (before, now)]
    seconds = now.at_s - before.at_s
    running = [sum(engine.running_requests for engine in end) for end in ends]
    waiting = [sum(engine.waiting_requests for engine in end) for end in ends]
    usage = [engine.kv_cache_usage for end in ends for engine in end if engine.kv_cache_usage is not None]
    return Stretch(
        began_s=before.at_s,
        ended_s=now.at_s,
        engines=engines,
        speculates=any(engine.speculates for engine in ends[1]),
        running_request_s=sum(running) / 2 * seconds,
        waiting_request_s=sum(waiting) / 2 * seconds,
        most_running=max(running),
        most_waiting=max(waiting),
        most_kv_cache_usage=max(usage, default=None),
    )


def _is_other(before: Engine, now: Engine) -> bool:
    """Whether it began to count at another time: a new process may have overtaken the old one's counters."""
    return before.created_s is not None and now.created_s is not None and before.created_s != now.created_s


def joined(parts: Sequence[Stretch]) -> Stretch:
    """Stretches that follow one another, as one. There must be one."""
    names = dict.fromkeys(name for part in parts for name in part.engines)
    usage = [part.most_kv_cache_usage for part in parts if part.most_kv_cache_usage is not None]
    return Stretch(
        began_s=parts[0].began_s,
        ended_s=parts[-1].ended_s,
        engines={name: total(part.engines[name] for part in parts if name in part.engines) for name in names},
        speculates=parts[-1].speculates,
        running_request_s=sum(part.running_request_s for part in parts),
        waiting_request_s=sum(part.waiting_request_s for part in parts),
        most_running=max(part.most_running for part in parts),
        most_waiting=max(part.most_waiting for part in parts),
        most_kv_cache_usage=max(usage, default=None),
    )
