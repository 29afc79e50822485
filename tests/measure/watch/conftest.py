"""Readings made by hand."""

from __future__ import annotations

from dataclasses import replace

from specserve.measure.watch import Reading
from specserve.metrics import Acceptance, Counters, EngineMetrics, EngineName, Histogram, Metrics

DEMO = EngineName("demo", "0")
GOOD = (0.8, 0.6, 0.5, 0.4)
DEAD = (0.02, 0.01, 0.0, 0.0)


def gain(
    drafts: int = 100,
    shares: tuple[float, ...] = GOOD,
    *,
    finished: int = 5,
    plain_tokens: int = 0,
    draft_tokens: int | None = None,
    preemptions: int = 0,
    ttft_s: Histogram | None = None,
) -> Counters:
    """What one engine counts while so many drafts are accepted by these shares per position."""
    accepted = tuple(round(drafts * share) for share in shares)
    drafted = len(shares) * drafts if draft_tokens is None else draft_tokens
    return Counters(
        acceptance=Acceptance(drafts, drafted, sum(accepted), accepted),
        finished_requests=finished,
        generation_tokens=drafts + sum(accepted) + plain_tokens,
        preemptions=preemptions,
        ttft_s=ttft_s or Histogram(),
    )


def readings(
    *gains: Counters | dict[EngineName, Counters],
    every_s: float = 5.0,
    running: int = 2,
    speculates: bool = True,
) -> list[Reading]:
    """The readings between which the engines count that."""
    each = [one if isinstance(one, dict) else {DEMO: one} for one in gains]
    engine = EngineMetrics(Counters(), running, 0, speculates)
    state = dict.fromkeys(each[0], engine)
    found = [Reading(0.0, Metrics(dict(state)))]
    for number, one in enumerate(each, start=1):
        state = {
            name: replace(engine, counters=engine.counters + one[name]) for name, engine in state.items()
        }
        found.append(Reading(every_s * number, Metrics(state)))
    return found
