"""Seconds of one engine step by batch and draft tokens, from a few measured points."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

_TINY = 1e-12


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """The coefficients, each 0 or above, with the least squared error relative to the values.

    Every subset of unknowns is solved and the best feasible one kept: exact, and few unknowns are few subsets.
    Raises ValueError without rows, or with more than ten unknowns.
    """
    unknowns = len(rows[0]) if rows else 0
    if not 0 < unknowns <= 10 or len(rows) != len(values) or min(values) <= 0:
        raise ValueError("a fit needs rows, as many positive values, and at most ten unknowns")
    scaled = [[entry / value for entry in row] for row, value in zip(rows, values, strict=True)]
    best, best_error = (0.0,) * unknowns, float(len(rows))
    for count in range(1, unknowns + 1):
        for kept in combinations(range(unknowns), count):
            found = _solve([[row[index] for index in kept] for row in scaled])
            if found is None or min(found) < 0:
                continue
            whole = [0.0] * unknowns
            for index, value in zip(kept, found, strict=True):
                whole[index] = value
            error = math.fsum(
                (math.fsum(a * b for a, b in zip(row, whole, strict=True)) - 1) ** 2 for row in scaled
            )
            if error < best_error - _TINY:
                best, best_error = tuple(whole), error
    return best


def _solve(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Least squares to 1 in each row, by the normal equations, columns scaled; None where they do not tell."""
    size = len(rows[0])
    scale = [math.sqrt(math.fsum(row[index] ** 2 for row in rows)) for index in range(size)]
    if min(scale) <= 0 or len(rows) < size:
        return None
    table = [
        [
            *(math.fsum(row[i] * row[j] for row in rows) / (scale[i] * scale[j]) for j in range(size)),
            math.fsum(row[i] for row in rows) / scale[i],
        ]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(table[index][column]))
        if abs(table[pivot][column]) < 1e-9:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        for index in range(size):
            if index != column:
                factor = table[index][column] / table[column][column]
                table[index] = [a - factor * b for a, b in zip(table[index], table[column], strict=True)]
    return [table[index][size] / table[index][index] / scale[index] for index in range(size)]


_LEAST_FOR_KNEE = 7
_LEAST_FOR_KERNELS = 3
_ROUNDS = 3
_MOST_OFF = 2.0
"""Kernels are not further from the form than this factor."""
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
    kernels: Sequence[tuple[int, float]] = ()
    """(verified tokens, factor) of the target's part: kernels are better at some numbers than at others."""
    corrections: Mapping[int, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """By batch: (tokens, measured over fitted)."""
    error: float = 0.0
    """The median of how far the form alone is off at the measured points, as a share."""

    def verify_s(self, batch: int, tokens: int) -> float:
        """What the target's part of a step takes, by the form."""
        count = batch * (tokens + 1)
        line_s = self.fixed_s + self.per_token_s * count + self.beyond_knee_s * max(0.0, count - self.knee)
        return line_s * (_between(self.kernels, count) if self.kernels else 1.0)

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
    best, best_error = _form(timed, math.inf)
    if len(timed) >= _LEAST_FOR_KNEE and best_error > len(timed) * _GOOD_ENOUGH**2:
        for knee in sorted({each.verified for each in timed})[1:-1]:
            found, error = _form(timed, float(knee))
            if error < 0.9 * best_error:
                best, best_error = found, error
    off = sorted(abs(1 / ratio - 1) for ratio in _ratios(timed, best))
    best = _with_kernels(timed, best)
    return replace(best, corrections=_corrections(timed, _ratios(timed, best)), error=off[len(off) // 2])


def _form(
    timed: Sequence[Timed], knee: float, kernels: Sequence[tuple[int, float]] = ()
) -> tuple[StepModel, float]:
    """The fit with this knee (infinite: none) and these kernels, and its squared error."""
    # with one K alone, what speculation costs at all and what it costs by token cannot be told apart
    several = len({each.tokens for each in timed if each.tokens}) > 1
    rows = [_row(each, knee, several=several, kernels=kernels) for each in timed]
    fixed, per_token, beyond, speculating, draft, request = least_squares(
        rows, [each.step_s for each in timed]
    )
    at = knee if math.isfinite(knee) else 0.0
    form = StepModel(fixed, per_token, at, beyond, speculating, draft, request, kernels)
    if min(form.form_s(each.batch, each.tokens, drafted=each.drafted) for each in timed) <= 0:
        if math.isfinite(knee):  # no step is free: this form says nothing
            return form, math.inf
        form = StepModel(math.fsum(each.step_s for each in timed) / len(timed), *(0.0,) * 6)
    return form, math.fsum((1 / ratio - 1) ** 2 for ratio in _ratios(timed, form))


def _with_kernels(timed: Sequence[Timed], form: StepModel) -> StepModel:
    """What plain steps tell of the verification at their n taken in, and what drafts cost by that fitted anew."""
    plain = [each for each in timed if not each.tokens]
    if len({each.batch for each in plain}) < _LEAST_FOR_KERNELS:
        return form
    most = max(each.batch for each in plain)
    knee = form.knee or math.inf
    for _ in range(_ROUNDS):
        found, error = _form(timed, knee, _kernels(plain, form))
        if not math.isfinite(error):
            return form
        form = found
    return replace(form, kernels=_kernels([*plain, *(each for each in timed if each.verified > most)], form))


def _kernels(timed: Sequence[Timed], form: StepModel) -> Sequence[tuple[int, float]]:
    """By verified tokens, in order: measured over the line of the form; of points with as many the mean."""
    line = replace(form, kernels=())
    found: dict[int, list[float]] = {}
    for each in timed:
        verify_s = line.verify_s(each.batch, each.tokens)
        if verify_s > 0:
            ratio = (each.step_s - line.draft_s(each.batch, each.draft_steps)) / verify_s
            found.setdefault(each.verified, []).append(min(_MOST_OFF, max(1 / _MOST_OFF, ratio)))
    return tuple((count, math.fsum(held) / len(held)) for count, held in sorted(found.items()))


def _ratios(timed: Sequence[Timed], form: StepModel) -> list[float]:
    """Measured over fitted."""
    return [each.step_s / form.form_s(each.batch, each.tokens, drafted=each.drafted) for each in timed]


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


def _row(
    each: Timed, knee: float, *, several: bool, kernels: Sequence[tuple[int, float]]
) -> tuple[float, ...]:
    drafts = each.draft_steps
    above = max(0.0, each.verified - knee) if math.isfinite(knee) else 0.0
    factor = _between(kernels, each.verified) if kernels else 1.0
    line = (factor, factor * each.verified, factor * above)
    return (*line, float(several and drafts > 0), drafts, drafts * each.batch)
