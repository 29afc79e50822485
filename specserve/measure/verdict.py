"""Verdicts: whether one variant is faster, in a word; whether a promise of the profile is kept.

Every promise (`expect`) that matches an operating point holds there, for all commands: if the
workload and the temperature that it names are the point's, and no more requests run than its
`concurrency`. What a promise does not name matches everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from specserve.measure.intervals import CONFIDENCE, Estimate, LogEstimate
from specserve.profile.schema import Expectation, Profile


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a command, in a word and in a sentence: the only one of the package."""

    word: str
    """Such as PAYS, LOSSY or STEADY."""
    level: Literal["good", "bad", "open"]
    """Whether the answer is yes, no, or not known yet."""
    sentence: str = ""
    """What it rests on, or what would decide it."""


PAYS, COSTS = "PAYS", "COSTS"
NO_DIFFERENCE, INCONCLUSIVE = "NO DIFFERENCE", "INCONCLUSIVE"
PAYS_ABOVE = 1.03
COSTS_BELOW = 0.97
CERTAINTY = 0.995
"""PAYS and COSTS also need this interval to leave out 1: equal variants get one in 1 of 100 cells
at most."""
MAX_LAUNCHES = 20
_MAX_TIMES = 100
"""More than so many times the work is not advised."""


def verdict(estimate: LogEstimate) -> Verdict:
    """Return whether one variant is faster than another, by the ratio of their rates."""
    low, high = estimate.bounds()
    if low >= COSTS_BELOW and high <= PAYS_ABOVE:
        inside = f"the interval lies between {COSTS_BELOW} and {PAYS_ABOVE}"
        return Verdict(NO_DIFFERENCE, "bad", inside)
    surely_low, surely_high = estimate.bounds(CERTAINTY)
    if low > PAYS_ABOVE and surely_low > 1:
        return Verdict(PAYS, "good", f"the interval lies above {PAYS_ABOVE}")
    if high < COSTS_BELOW and surely_high < 1:
        return Verdict(COSTS, "bad", f"the interval lies below {COSTS_BELOW}")
    if low > PAYS_ABOVE or high < COSTS_BELOW:
        sentence = f"the 99.5 % interval is {surely_low:.2f}-{surely_high:.2f}"
    else:
        limits = [str(limit) for limit in (COSTS_BELOW, PAYS_ABOVE) if low <= limit <= high]
        sentence = f"the interval reaches across {' and '.join(limits)}"
    return Verdict(INCONCLUSIVE, "open", sentence)


def needed(estimate: LogEstimate) -> tuple[str, int]:
    """Return what would decide an INCONCLUSIVE comparison if its value stayed, and how much more.

    By what its variance comes from: more `blocks`, `launches` or `prompts`; `nothing` if it is too
    close to a limit, or varies too much.
    """
    if not math.isfinite(estimate.error):
        return "blocks", 1
    # shares of the variance: the rest may be 1 / factor; blocks lower the last, launches two
    factor = _factor(estimate)
    prompts, launches, rest = estimate.prompt_share, estimate.launch_share, 1.0 / factor
    blocks = max(0.0, 1.0 - prompts - launches)
    if prompts > 0.5 or prompts >= rest:
        what, count, times = "prompts", estimate.prompts, factor
    elif launches > blocks or prompts + launches >= rest:
        what, count, times = "launches", estimate.launches, (launches + blocks) / (rest - prompts)
    else:
        what, count, times = "blocks", estimate.blocks, blocks / (rest - prompts - launches)
    if max(factor, times) > _MAX_TIMES:
        return "nothing", 0
    more = max(1, math.ceil(count * times) - count)
    if what == "launches" and count + more > MAX_LAUNCHES:
        return "nothing", 0
    return what, more


def _factor(estimate: LogEstimate) -> float:
    """Return how many times as much would decide it: the width goes with the root."""
    pays, costs = math.log(PAYS_ABOVE), math.log(COSTS_BELOW)
    beyond = max(estimate.log - pays, costs - estimate.log)
    if not beyond:
        return math.inf
    wanted = [(abs(beyond), CONFIDENCE)]
    if beyond > 0:
        wanted.append((abs(estimate.log), CERTAINTY))
    return max((estimate.half(confidence) / room) ** 2 for room, confidence in wanted)


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
