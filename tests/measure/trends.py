"""Watches of servers whose acceptance stays, drifts or sinks: `python -m tests.measure.trends 1000`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from specserve.measure.watch import Reading, Window, gained, trend
from specserve.metrics import Acceptance, Counters, EngineMetrics, EngineName, Metrics

_K = 4
_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """An hour, or more, of requests of about 60 drafts."""

    name: str
    minutes: int = 60
    requests_per_minute: int = 60
    drift: float = 0.0
    """Standard deviation of all requests' acceptance; it is remembered for 10 minutes."""
    falls_by: float = 0.0
    """Of the chance of each draft token, in all: 0.13 is a fifth of the mean acceptance length."""


SERIES = (
    Traffic("independent requests"),
    Traffic("independent requests, 6 a minute", requests_per_minute=6),
    Traffic("traffic that drifts by 6 %", drift=0.03),
    Traffic("traffic that drifts by 6 %, 4 hours", minutes=240, drift=0.03),
    Traffic("a fall of 20 %", falls_by=0.13),
    Traffic("a fall of 20 %, 20 a minute", requests_per_minute=20, falls_by=0.13),
    Traffic("a fall of 20 %, 6 a minute", requests_per_minute=6, falls_by=0.13),
    Traffic("a fall of 20 %, and a drift of 6 %", drift=0.03, falls_by=0.13),
)


def readings(traffic: Traffic, chance: random.Random) -> list[Reading]:
    """One a minute."""
    total, found, mood = Counters(), list[Reading](), chance.gauss(0, traffic.drift)
    for minute in range(traffic.minutes + 1):
        engine = EngineMetrics(total, 2, 0, True)
        found.append(Reading(minute * _EVERY_S, Metrics({EngineName("demo", "0"): engine})))
        mood = 0.905 * mood + chance.gauss(0, 0.426 * traffic.drift)
        requests = round(max(1.0, chance.gauss(1, 0.2) * traffic.requests_per_minute))
        drafts, accepted = 0, [0.0] * _K
        for _ in range(requests):
            reached = size = chance.randint(20, 100)
            drafts += size
            each = 0.85 + mood + chance.gauss(0, 0.12) - traffic.falls_by * minute / traffic.minutes
            for position in range(_K):
                reached *= min(max(each, 0.02), 0.98)  # type: ignore[assignment]
                accepted[position] += reached
        counts = tuple(map(round, accepted))
        counted = Acceptance(drafts, _K * drafts, sum(counts), counts)
        total += Counters(counted, requests, 300 * requests, drafts + sum(counts))
    return found


def alarm_s(traffic: Traffic, chance: random.Random) -> float | None:
    """When a watch that looks every other minute first says that acceptance sinks."""
    window = Window(_EVERY_S)
    for at, reading in enumerate(readings(traffic, chance)):
        window.add(reading)
        if at >= 30 and at % 2 == 0 and (found := trend(window.history)) and found.sinks:
            return reading.at_s
    return None


def alert_s(traffic: Traffic, chance: random.Random) -> float | None:
    """When SpecserveAcceptanceSinks is raised, as deploy/alerts.yaml says it."""
    seen, held = readings(traffic, chance), 0
    for at in range(360, len(seen)):
        counted = [gained(seen[at - ago - 90], seen[at - ago]) or Counters() for ago in (270, 180, 90, 0)]
        lengths = [each.acceptance.mean_acceptance_length or 1.0 for each in counted]
        sinks = lengths[-1] < 0.93 * lengths[0] and all(now < before for before, now in pairwise(lengths))
        held = held + 1 if sinks else 0
        if held > 60:
            return seen[at].at_s
    return None


Alarm = Callable[[Traffic, random.Random], float | None]


def alarms(traffic: Traffic, count: int, *, alarm: Alarm = alarm_s, seed: int = 1) -> list[float]:
    """The times of all alarms in so many series."""
    chance = random.Random(seed)
    return [at_s for _ in range(count) if (at_s := alarm(traffic, chance)) is not None]


ALERTS = (
    Traffic("the alert, traffic that drifts by 6 %, 12 hours", minutes=720, drift=0.03),
    Traffic("the alert, a fall of 20 % in 8 hours", minutes=480, falls_by=0.13),
)
if __name__ == "__main__":
    whole = int(sys.argv[1])
    for each in (*SERIES, *ALERTS):
        number, alarm = whole // (5 if each.falls_by else 1), alert_s if each in ALERTS else alarm_s
        times = sorted(alarms(each, number, alarm=alarm))
        median = f", in the median after {times[len(times) // 2] / 60:.0f} min" if times else ""
        print(f"{each.name}: {len(times)} of {number}{median}", flush=True)
