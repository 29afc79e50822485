"""Which launches and how many requests fit a time. Pure arithmetic on what each would take; starts nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SHARE = 0.25
"""Fewer of the requests than this share tell too little: a launch is left out before that."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One launch that would be of use."""

    name: str
    start_s: float
    """Until it serves."""
    measure_s: float
    """For all requests."""
    is_needed: bool = False
    """Nothing can be said without it."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is done in the time."""

    kept: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """Names with the reason."""
    share: float
    """Of the requests, 0 to 1."""
    seconds: float
    fits: bool = True
    """False: even what is needed takes longer."""
    exceeded: str | None = None
    """The limit that it does not fit, as it was asked for, and the least there is."""


def fit(wanted: Sequence[Wanted], *, budget_s: float | None, most_launches: int | None) -> Fitted:
    """The first of the wanted launches (they come in order of use) with as many requests as the time allows.

    Needed ones stay in any case; of the others the last goes first.
    """
    kept = list(wanted)
    left_out: list[tuple[str, str]] = []
    while most_launches is not None and len(kept) > most_launches:
        last = _last_optional(kept)
        if last is None:
            exceeded = f"`--max-launches {most_launches}`: {len(kept)} are needed"
            return _told(kept, left_out, LEAST_SHARE, exceeded=exceeded)
        left_out.append((kept.pop(last).name, f"--max-launches {most_launches}"))
    while budget_s is not None and _seconds(kept, LEAST_SHARE) > budget_s:
        last = _last_optional(kept)
        if last is None:
            least = duration(math.ceil(_seconds(kept, LEAST_SHARE)))
            exceeded = f"`--budget {duration(budget_s)}`: {least} is the least (a guess)"
            return _told(kept, left_out, LEAST_SHARE, exceeded=exceeded)
        left_out.append((kept.pop(last).name, f"--budget {duration(budget_s)}"))
    share = 1.0
    if budget_s is not None:
        measuring = math.fsum(each.measure_s for each in kept)
        starting = math.fsum(each.start_s for each in kept)
        share = min(1.0, max(LEAST_SHARE, (budget_s - starting) / measuring)) if measuring else 1.0
    return _told(kept, left_out, share)


def _last_optional(kept: Sequence[Wanted]) -> int | None:
    places = [index for index, each in enumerate(kept) if not each.is_needed]
    return places[-1] if places else None


def _seconds(kept: Sequence[Wanted], share: float) -> float:
    return math.fsum(each.start_s + each.measure_s * share for each in kept)


def _told(
    kept: Sequence[Wanted], left_out: Sequence[tuple[str, str]], share: float, *, exceeded: str | None = None
) -> Fitted:
    names = tuple(each.name for each in kept)
    return Fitted(names, tuple(left_out), share, _seconds(kept, share), exceeded is None, exceeded)


def duration(seconds: float) -> str:
    """`45s`, `20m`, `1h30m`: as `--budget` takes it."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return "".join(parts) or "0s"
