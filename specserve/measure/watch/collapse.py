"""A draft that died: steps that accept next to nothing, engine by engine. Pure; does not know why."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.measure.watch.figures import NUMBER_DRAFTS
from specserve.measure.watch.stretch import Stretch
from specserve.metrics.acceptance import Acceptance
from specserve.metrics.counters import EngineName

LENGTH = 1.05
"""Mean acceptance length under which speculation is dead: of 20 steps, one accepts one draft token."""
LEAST_S = 15.0
SURE_DRAFTS = 1000
"""A collapse lasts so long, or shows in so many drafts: one odd request of a quiet server shall not raise an alarm."""


@dataclass(frozen=True, slots=True)
class Collapse:
    """One engine whose draft tokens are refused, in its newest stretch of time."""

    engine: EngineName
    length: float
    for_s: float
    """How long the stretch is that shows it."""
    before: float | None
    """The mean acceptance length earlier in the window, where there is one."""


def collapses(stretches: tuple[Stretch, ...]) -> tuple[Collapse, ...]:
    """The engines that collapsed. Each is judged alone: in the sum of eight, one dead one does not show.

    An engine is judged by the shortest newest time that holds 200 of its drafts and is 15 s long, or holds
    1,000, so that what went well before does not hide it.
    """
    names = dict.fromkeys(name for part in stretches for name in part.engines)
    found = (_collapse(stretches, name) for name in names)
    return tuple(collapse for collapse in found if collapse is not None)


def _collapse(stretches: tuple[Stretch, ...], name: EngineName) -> Collapse | None:
    newest = Acceptance()
    for index in range(len(stretches) - 1, -1, -1):
        counted = stretches[index].engines.get(name)
        newest += counted.acceptance if counted else Acceptance()
        for_s = stretches[-1].ended_s - stretches[index].began_s
        if newest.drafts < NUMBER_DRAFTS or (for_s < LEAST_S and newest.drafts < SURE_DRAFTS):
            continue
        length = newest.mean_acceptance_length
        if length is None or length >= LENGTH:
            return None
        earlier = sum(
            (part.engines[name].acceptance for part in stretches[:index] if name in part.engines),
            Acceptance(),
        )
        told = earlier.drafts >= NUMBER_DRAFTS
        return Collapse(name, length, for_s, earlier.mean_acceptance_length if told else None)
    return None
