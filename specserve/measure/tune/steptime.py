"""Seconds of one engine step by batch and draft tokens, from a few measured points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specserve.measure.statistics import scipy

_LEAST_FOR_KNEES = 7
_LEAST_FOR_KERNELS = 3
_ROUNDS = 3
_MOST_OFF = 2.0
"""Kernels are not further from the form than this factor."""
Curve = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One measured point."""

    batch: int
    tokens: int
    """Drafted each step; 0: the server without speculation."""
    step_s: float

    @property
    def verified(self) -> int:
        """Tokens that the target looks at in one step."""
        return self.batch * (self.tokens + 1)


@dataclass(frozen=True, slots=True)
class StepModel:
    """The fitted form. `at` gives seconds."""

    fixed_s: float
    per_token_s: float
    """For each verified token."""
    knees: Curve
    """(verified tokens, seconds for each token above them, on top)."""
    speculating_s: float
    per_draft_s: float
    per_draft_and_request_s: float
    kernels: Curve = ()
    """(verified tokens, factor) of the target's part: kernels are better at some numbers than at others."""
    corrections: Mapping[int, Curve] = field(default_factory=dict)
    """By batch: (tokens, measured over fitted)."""
    error: float = 0.0
    """The median of how far the form alone is off at the measured points, as a share."""

    def verify_s(self, batch: int, tokens: int) -> float:
        """What the target's part of a step takes, by the form."""
        count = batch * (tokens + 1)
        line_s = self.fixed_s + self.per_token_s * count
        line_s += math.fsum(slope * max(0.0, count - knee) for knee, slope in self.knees)
        return line_s * _between(self.kernels, count)

    def draft_s(self, batch: int, tokens: int) -> float:
        """What drafting adds, by the form."""
        if not tokens:
            return 0.0
        return self.speculating_s + tokens * (self.per_draft_s + self.per_draft_and_request_s * batch)

    def form_s(self, batch: int, tokens: int) -> float:
        """The form without corrections."""
        return self.verify_s(batch, tokens) + self.draft_s(batch, tokens)

    def at(self, batch: int, tokens: int) -> float:
        """Seconds of a step; measured points are met exactly, between them the correction changes evenly."""
        near = [each for each in sorted(self.corrections) if each <= batch][-1:]
        near += [each for each in sorted(self.corrections) if each > batch][:1]
        factors = [(each, _between(self.corrections[each], tokens)) for each in near]
        return self.form_s(batch, tokens) * _between(factors, batch)


def _between(curve: Curve, at: float) -> float:
    """Linear between the two nearest points, flat beyond the outer ones; 1 without points."""
    return (
        float(np.interp(at, [place for place, _ in curve], [value for _, value in curve])) if curve else 1.0
    )


def fit(points: Iterable[Timed]) -> StepModel:
    """The model of these points. Raises ValueError without any, or for a time that is not positive.

    All costs are 0 or above. If there are enough points, the line of the target's part may get steeper at each.
    """
    timed = sorted(points, key=lambda each: (each.batch, each.tokens))
    if not timed or any(each.step_s <= 0 or each.batch < 1 for each in timed):
        raise ValueError("step times need measured points, each above 0")
    form = _form(timed)
    error = statistics.median(abs(each.step_s / form.form_s(each.batch, each.tokens) - 1) for each in timed)
    plain = [each for each in timed if not each.tokens]
    if len({each.batch for each in plain}) >= _LEAST_FOR_KERNELS:
        for _ in range(_ROUNDS):
            form = _form(timed, _kernels(plain, form))
        most = max(each.batch for each in plain)
        form = replace(
            form, kernels=_kernels([*plain, *(each for each in timed if each.verified > most)], form)
        )
    corrections = {
        batch: _means(
            (each.tokens, each.step_s / form.form_s(batch, each.tokens))
            for each in timed
            if each.batch == batch
        )
        for batch in {each.batch for each in timed}
    }
    return replace(form, corrections=corrections, error=error)


def _form(timed: Sequence[Timed], kernels: Curve = ()) -> StepModel:
    """The fit with these kernels: least squares of the relative error, no cost below 0."""
    counts = sorted({each.verified for each in timed})
    knees = counts[1:-1] if len(timed) >= _LEAST_FOR_KNEES else []
    # with one K alone, what speculation costs at all and what it costs by token cannot be told apart
    several = len({each.tokens for each in timed if each.tokens}) > 1
    rows = [_row(each, knees, several=several, kernels=kernels) / each.step_s for each in timed]
    found, _ = scipy("optimize").nnls(np.array(rows), np.ones(len(rows)))
    slopes = tuple(zip(knees, map(float, found[2:-3]), strict=True))
    fixed, per_token, speculating, draft, request = map(float, (*found[:2], *found[-3:]))
    form = StepModel(fixed, per_token, slopes, speculating, draft, request, kernels)
    if min(form.form_s(each.batch, each.tokens) for each in timed) <= 0:  # no step is free
        return StepModel(statistics.fmean(each.step_s for each in timed), 0.0, (), 0.0, 0.0, 0.0)
    return form


def _row(each: Timed, knees: Sequence[int], *, several: bool, kernels: Curve) -> NDArray[np.float64]:
    line = np.array([1, each.verified, *(max(0, each.verified - knee) for knee in knees)], dtype=float)
    draft = [float(several and each.tokens > 0), each.tokens, each.tokens * each.batch]
    return np.concatenate([line * _between(kernels, each.verified), draft])


def _kernels(timed: Sequence[Timed], form: StepModel) -> Curve:
    """By verified tokens, in order: what the target's part took over the line of the form."""
    line = replace(form, kernels=())
    ratios = [
        (
            each.verified,
            (each.step_s - form.draft_s(each.batch, each.tokens)) / line.verify_s(each.batch, each.tokens),
        )
        for each in timed
        if line.verify_s(each.batch, each.tokens) > 0
    ]
    return _means((count, min(_MOST_OFF, max(1 / _MOST_OFF, ratio))) for count, ratio in ratios)


def _means(points: Iterable[tuple[int, float]]) -> Curve:
    """In order, the mean of points at the same place."""
    found: dict[int, list[float]] = {}
    for place, value in points:
        found.setdefault(place, []).append(value)
    return tuple((place, statistics.fmean(held)) for place, held in sorted(found.items()))
