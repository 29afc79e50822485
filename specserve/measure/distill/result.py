"""What came of a distillation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specserve.errors import FactError
from specserve.measure.bench.result import Comparison, Interval
from specserve.measure.statistics import PromptAcceptance, acceptance_gain

Outcome = Literal["better", "no_gain_simulated", "no_gain_measured", "faulty"]
"""`no_gain_simulated`: nothing was served; `faulty`: `verify` found a fault."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The acceptance of two drafts on the same held-out prompts."""

    old: float
    """Accepted over drafted tokens of the present draft."""
    new: float
    difference: Interval
    """New minus old, with its 95 % interval over prompts."""
    prompts: int


def gain_of(old: Sequence[PromptAcceptance], new: Sequence[PromptAcceptance]) -> Gain:
    """Both rates and their difference. Raises FactError if nothing was drafted."""
    difference = acceptance_gain(new, over=old)
    if difference is None:
        raise FactError("the held-out answers are too short to tell anything", hint="raise `--max-tokens`")
    rates = [sum(row.accepted for row in each) / sum(row.drafted for row in each) for each in (old, new)]
    return Gain(rates[0], rates[1], difference, len({row.prompt for row in new}))


@dataclass(frozen=True, slots=True)
class Distilled:
    """A whole distillation."""

    name: str
    created: str
    """ISO 8601, UTC."""
    outcome: Outcome
    draft: str
    """The present draft, as the profile names it."""
    folder: str
    """The new one."""
    k: int
    platform: str
    versions: Mapping[str, str]
    prompts: Mapping[str, int]
    """By part: train, validation, test; read, repeated, groups."""
    overlap: float
    most_overlap: float
    answers: int
    answer_tokens: int
    steps: int
    trained_s: float
    simulated: Gain
    simulated_old: Gain | None = None
    """On the held-out part of `--mix`."""
    measured: Gain | None = None
    measured_old: Gain | None = None
    speedups: tuple[Comparison, ...] = ()
    """Each draft against no speculation, at each workload."""
    verified: str | None = None
    """The verdict of `verify` on the new draft."""
    alternative: str | None = None
    """Its name in the profile, if it was written there."""
    notes: tuple[str, ...] = field(default=())
