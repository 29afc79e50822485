"""A small linear fit with coefficients that may not be negative. Pure; a handful of unknowns at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

_TINY = 1e-12


def fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
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
