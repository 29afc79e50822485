"""Quantiles of Prometheus histograms, as PromQL computes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.metrics.counters import Histogram, since

BOUNDS = (0.1, 0.5, 1.0, math.inf)
values_of = st.lists(st.floats(0, 2), min_size=1, max_size=80)


def of(*counts: int, total: float = 0.0) -> Histogram:
    return Histogram(dict(zip(BOUNDS, counts, strict=True)), total)


def observed(values: list[float]) -> Histogram:
    counts = [0] * len(BOUNDS)
    for value in values:
        counts[next(index for index, bound in enumerate(BOUNDS) if value <= bound)] += 1
    return of(*counts, total=sum(values))


def test_inside_a_bucket_values_are_taken_as_evenly_spread() -> None:
    ten = of(0, 10, 0, 0, total=3.0)
    assert [ten.quantile(0.5), ten.quantile(1.0)] == pytest.approx([0.3, 0.5])
    assert ten.mean == pytest.approx(0.3)
    assert of(4, 0, 0, 0).quantile(0.5) == pytest.approx(0.05)  # the first bucket begins at zero
    assert of(0, 0, 1, 9).quantile(0.9) == 1.0  # of the last one, only the lower bound is known


def test_without_an_observation_there_is_no_quantile() -> None:
    assert Histogram().quantile(0.5) is of(0, 0, 0, 0).quantile(0.99) is Histogram().mean is None


@given(values_of, st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_value_of_that_rank(values: list[float], share: float) -> None:
    rank = max(math.ceil(share * len(values) - 1e-9), 1)
    low, high = observed(values).bucket(rank)[:2]
    assert low <= sorted(values)[rank - 1] <= high
    found = observed(values).quantile(share)
    assert found is not None and low - 1e-9 <= found <= (high if math.isfinite(high) else low) + 1e-9


@given(values_of, values_of)
def test_what_was_observed_between_two_readings(before: list[float], gain: list[float]) -> None:
    first, more = observed(before), observed(gain)
    found = since(first, now=first + more)
    assert found is not None
    assert found.counts == more.counts and found.sum == pytest.approx(more.sum)


def test_a_bucket_that_dropped_or_that_is_gone_is_another_server() -> None:
    assert since(of(1, 0, 0, 0), now=of(0, 5, 0, 0)) is None
    assert since(of(1, 0, 0, 0), now=Histogram({1.0: 1, math.inf: 5})) is None
    assert (of(1, 0, 0, 0) + Histogram({1.0: 1, math.inf: 5})).count == 7
