"""What a profile promises (`expect`) of an operating point, and whether a figure keeps it.

One meaning for all commands: every promise that matches an operating point holds there. It matches
if the workload and the temperature that it names are the point's, and if no more requests run than
its `concurrency`; what a promise does not name matches everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from specserve.measure.intervals import Estimate
from specserve.profile.schema import Expectation, Profile

KEYS = tuple(name for name in Expectation.__annotations__ if name.startswith(("min_", "max_")))


class Kept(StrEnum):
    """What became of a limit: kept or missed by its whole interval."""

    KEPT = "kept"
    MISSED = "missed"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    """It is for another operating point, or nothing measures it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One number of a promise; times in milliseconds."""

    key: str
    promised: float
    place: str
    """`profile.yaml:5:3`."""
    why_not: str | None = None
    """Why it does not hold at the operating point; None if it does."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A limit, what was measured of it, and what that says."""

    limit: Limit
    kept: Kept
    measured: Estimate | None = None
    why: str | None = None
    """Why it is not decided, in one clause."""


def limits(
    profile: Profile, workload: str | None, temperature: float | None, load: float | None
) -> Iterator[Limit]:
    """Yield every limit of a profile, also those that do not hold at this point.

    A workload, temperature or load of None is not known, and matches no promise that names it.
    """
    for index, promise in enumerate(profile.expect):
        reason, most = None, promise.concurrency
        if promise.workload not in (None, workload):
            reason = f"the promise is for the workload `{promise.workload}`"
        elif promise.temperature not in (None, temperature):
            reason = f"the promise is for temperature {promise.temperature:g}"
        elif most is not None and (load is None or load > most + 0.5):
            running = "an unknown number of" if load is None else f"{load:.0f}"
            reason = f"{running} requests run in parallel, and the promise is for {most}"
        for key in KEYS:
            if (promised := getattr(promise, key)) is not None:
                place = str(profile.span(f"expect[{index}].{key}"))
                yield Limit(key, float(promised), place, reason)


def judge(limit: Limit, measured: Estimate | None) -> Judged:
    """Hold a limit against the interval of its figure, if it holds at its point."""
    if limit.why_not is not None:
        return Judged(limit, Kept.NOT_JUDGED, measured, limit.why_not)
    if measured is None:
        return Judged(limit, Kept.UNDECIDED, None, "there are too few requests for an interval")
    is_most = limit.key.startswith("max_")
    if measured.high <= limit.promised if is_most else measured.low >= limit.promised:
        return Judged(limit, Kept.KEPT, measured)
    if measured.low > limit.promised if is_most else measured.high < limit.promised:
        return Judged(limit, Kept.MISSED, measured)
    why = "the promise is inside the interval"
    if math.isinf(measured.high):
        why = "there are too few requests for a P99"
    return Judged(limit, Kept.UNDECIDED, measured, why)
