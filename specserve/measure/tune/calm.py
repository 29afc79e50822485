"""What a step takes while nothing else slows the machine. Pure.

Beside others on a shared host the same step takes up to half as long again, for tenths of seconds or for minutes, and
no order of turns makes up for that. But all steps of one server at one load are the same work: the quickest stretches
tell what that takes. On a machine of its own they are hardly quicker than the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specserve.measure.bench.records import Pass
from specserve.measure.tune.gaps import LEAST, steady_gaps_s
from specserve.measure.tune.steady import steady

QUICK = 0.02
"""The share of the stretches that are quicker than the calm step."""
_LEAST_STEPS, _STRETCH_S = 4, 0.25
"""Of a stretch: where one chunk is read late its neighbour is short, which is no quick step."""
_LEAST_STRETCHES = 8
"""Of a pass, where that leaves enough steps to each."""
CALM = 0.05
"""Steps of a calm machine are longer than the calm step by no more than this share."""

Place = tuple[int, float, int]
_LONGEST = 2.0
"""Medians: what is longer is a prefill that steps waited for, or a moment in which the machine stood still."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A pass at its full load, dealt to its steps and to what held them up; seconds of all its requests together."""

    steps: int
    """Chunks after the first ones."""
    step_s: float
    """From one chunk of a stream to its next: the mean, as it was."""
    held_up_s: float
    """Prefills: each request's own, and those of others that it waited for."""

    def whole_s(self, step_s: float) -> float:
        """What all requests would have taken with steps of another length."""
        return self.steps * step_s + self.held_up_s


def parts(done: Pass) -> Parts | None:
    """The parts of a pass; None where it has no step that could be timed."""
    gaps_s = _single(done)
    if not gaps_s:
        return None
    step_s = statistics.fmean(gaps_s)
    steps = sum(len(request.chunk_gaps_ms) for request in done.requests if request.ok)
    whole_s = math.fsum(request.latency_s for request in steady(done).requests if request.ok)
    return Parts(steps, step_s, max(0.0, whole_s - steps * step_s))


def calm_step_s(passes: Iterable[Pass]) -> float | None:
    """Seconds of a step on the calm machine, of passes of one server at one load; None where too few were timed."""
    return quick_s([stretch for done in passes for stretch in stretches_s(done)])


def shared_steps_s(passes: Iterable[Pass]) -> Mapping[Place, float]:
    """The calm step by launch, temperature and load over all workloads; nothing where the machine was calm.

    What is in the KV cache makes steps of one workload a little longer than those of another; but beside neighbours
    a single pass may have had no calm moment at all, which is more.
    """
    held: dict[Place, list[Pass]] = {}
    slowed: list[float] = []
    for done in passes:
        part, step_s = parts(done), calm_step_s([done])
        if part is not None and step_s is not None:
            held.setdefault((done.launch, done.point.temperature, done.point.concurrency or 0), []).append(
                done
            )
            slowed.append(part.step_s / step_s - 1)
    if not slowed or statistics.median(slowed) <= CALM:
        return {}
    return {place: step_s for place, found in held.items() if (step_s := calm_step_s(found)) is not None}


def quick_s(stretches: Sequence[float]) -> float | None:
    """The calm step of such stretches; None where there are too few."""
    if len(stretches) < 2:
        return stretches[0] if stretches else None
    return statistics.quantiles(stretches, n=round(1 / QUICK), method="inclusive")[0]


def stretches_s(done: Pass) -> list[float]:
    """Mean seconds a step of a few steps in a row; none of a pass with too few."""
    gaps_s = _single(done)
    if len(gaps_s) < LEAST:
        return []
    wanted = round(_STRETCH_S / statistics.median(gaps_s))
    size = max(_LEAST_STEPS, min(wanted, len(gaps_s) // _LEAST_STRETCHES))
    return [statistics.fmean(gaps_s[at : at + size]) for at in range(0, len(gaps_s) - size + 1, size)]


def _single(done: Pass) -> list[float]:
    gaps_s = steady_gaps_s(done)
    most = _LONGEST * statistics.median(gaps_s) if gaps_s else 0.0
    return [gap for gap in gaps_s if gap <= most]
