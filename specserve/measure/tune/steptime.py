"""Seconds of one engine step by batch and draft tokens, from a few measured points. Pure; times nothing itself.

The form: a verification of n = batch x (K + 1) tokens costs what a decode step of n requests would, flat while memory
bound and rising beyond a knee; each draft step costs something of its own and something for each request; speculation
itself costs a fixed time. None of the coefficients can be negative. What the form misses at a measured point is kept
as a factor, and carried to its neighbours of the same batch, so that measured points are met exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from specserve.measure.tune import leastsquares

_LEAST_FOR_KNEE = 7
_GOOD_ENOUGH = 0.01
"""Where the form is off by less than this share, a knee would only follow the noise."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One measured point."""

    batch: int
    tokens: int
    """Drafted each step; 0: the server without speculation."""
    step_s: float
    drafted: int | None = None
    """What the drafter ran, where that is more than `tokens`: drafts that were cut off behind it."""

    @property
    def verified(self) -> int:
        """Tokens that the target looked at in one step."""
        return self.batch * (self.tokens + 1)

    @property
    def draft_steps(self) -> int:
        """Steps of the draft."""
        return self.tokens if self.drafted is None else self.drafted


@dataclass(frozen=True, slots=True)
class StepModel:
    """The fitted form. `at` gives seconds."""

    fixed_s: float
    per_token_s: float
    """For each verified token."""
    knee: float
    beyond_knee_s: float
    """For each verified token above the knee, on top."""
    speculating_s: float
    per_draft_s: float
    per_draft_and_request_s: float
    corrections: Mapping[int, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """By batch: (tokens, measured over fitted)."""
    error: float = 0.0
    """The median of how far the form alone is off at the measured points, as a share."""

    def verify_s(self, batch: int, tokens: int) -> float:
        """What the target's part of a step takes, by the form."""
        count = batch * (tokens + 1)
        return self.fixed_s + self.per_token_s * count + self.beyond_knee_s * max(0.0, count - self.knee)

    def draft_s(self, batch: int, tokens: int) -> float:
        """What drafting adds, by the form."""
        if not tokens:
            return 0.0
        return self.speculating_s + tokens * (self.per_draft_s + self.per_draft_and_request_s * batch)

    def form_s(self, batch: int, tokens: int, *, drafted: int | None = None) -> float:
        """The form without corrections."""
        return self.verify_s(batch, tokens) + self.draft_s(batch, tokens if drafted is None else drafted)

    def at(self, batch: int, tokens: int, *, drafted: int | None = None) -> float:
        """Seconds of a step, measured points met exactly."""
        return self.form_s(batch, tokens, drafted=drafted) * self._factor(batch, tokens)

    def _factor(self, batch: int, tokens: int) -> float:
        """Between measured K's of this batch, or between the neighbouring batches, evenly."""
        known = sorted(self.corrections)
        if not known:
            return 1.0
        if batch in self.corrections:
            return _between(self.corrections[batch], tokens)
        place = bisect_left(known, batch)
        near = [known[index] for index in (place - 1, place) if 0 <= index < len(known)]
        return _between([(each, _between(self.corrections[each], tokens)) for each in near], batch)


def _between(points: Sequence[tuple[int, float]], at: int) -> float:
    """Linear between the two nearest points, flat beyond the outer ones."""
    if at <= points[0][0]:
        return points[0][1]
    for (low, before), (high, after) in pairwise(points):
        if at <= high:
            return before + (after - before) * (at - low) / (high - low)
    return points[-1][1]


def fit(points: Iterable[Timed]) -> StepModel:
    """The model of these points. Raises ValueError where there are none, or a time is not positive.

    A knee is taken only where points enough are there to tell, and it makes the error smaller by a tenth.
    """
    timed = sorted(points, key=lambda each: (each.batch, each.tokens))
    if not timed or any(each.step_s <= 0 or each.batch < 1 for each in timed):
        raise ValueError("step times need measured points, each above 0")
    best, best_error = _with_knee(timed, math.inf)
    if len(timed) >= _LEAST_FOR_KNEE and best_error > len(timed) * _GOOD_ENOUGH**2:
        for knee in sorted({each.verified for each in timed})[1:-1]:
            found, error = _with_knee(timed, float(knee))
            if error < 0.9 * best_error:
                best, best_error = found, error
    return best


def _with_knee(timed: Sequence[Timed], knee: float) -> tuple[StepModel, float]:
    """The fit with this knee (infinite: none) and its squared error."""
    # with one K alone, what speculation costs at all and what it costs by token cannot be told apart
    several = len({each.tokens for each in timed if each.tokens}) > 1
    rows = [_row(each, knee, several=several) for each in timed]
    fixed, per_token, beyond, speculating, draft, request = leastsquares.fit(
        rows, [each.step_s for each in timed]
    )
    at = knee if math.isfinite(knee) else 0.0
    form = StepModel(fixed, per_token, at, beyond, speculating, draft, request)
    fitted = [form.form_s(each.batch, each.tokens, drafted=each.drafted) for each in timed]
    if min(fitted) <= 0:  # no step is free: this form says nothing
        if math.isfinite(knee):
            return form, math.inf
        mean_s = math.fsum(each.step_s for each in timed) / len(timed)
        form, fitted = StepModel(mean_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), [mean_s] * len(timed)
    ratios = [each.step_s / fit_s for each, fit_s in zip(timed, fitted, strict=True)]
    off = sorted(abs(1 / ratio - 1) for ratio in ratios)
    error = math.fsum((1 / ratio - 1) ** 2 for ratio in ratios)
    return replace(form, corrections=_corrections(timed, ratios), error=off[len(off) // 2]), error


def _corrections(
    timed: Sequence[Timed], ratios: Sequence[float]
) -> Mapping[int, Sequence[tuple[int, float]]]:
    """By batch and K, in order; of points measured twice the mean."""
    found: dict[int, dict[int, list[float]]] = {}
    for each, ratio in zip(timed, ratios, strict=True):
        found.setdefault(each.batch, {}).setdefault(each.tokens, []).append(ratio)
    return {
        batch: tuple((tokens, math.fsum(held) / len(held)) for tokens, held in sorted(rows.items()))
        for batch, rows in found.items()
    }


def _row(each: Timed, knee: float, *, several: bool) -> tuple[float, ...]:
    drafts = each.draft_steps
    above = max(0.0, each.verified - knee) if math.isfinite(knee) else 0.0
    return (1.0, each.verified, above, float(several and drafts > 0), drafts, drafts * each.batch)
