"""Quantiles of Prometheus histograms, as PromQL computes them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.metrics.counters import Histogram, since

BOUNDS = (0.1, 0.5, 1.0, math.inf)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    values = draw(st.lists(st.floats(0, 2), max_size=50))
    return of(values)


def of(values: list[float]) -> Histogram:
    """The histogram of these values."""
    counts = [0] * len(BOUNDS)
    for value in values:
        counts[next(index for index, bound in enumerate(BOUNDS) if value <= bound)] += 1
    return Histogram(BOUNDS, tuple(counts), sum(values))


def test_inside_a_bucket_values_are_taken_as_evenly_spread() -> None:
    ten = Histogram(BOUNDS, (0, 10, 0, 0), 3.0)
    assert ten.quantile(0.5) == pytest.approx(0.3)
    assert ten.quantile(1.0) == pytest.approx(0.5)
    assert ten.mean == pytest.approx(0.3)


def test_the_first_bucket_begins_at_zero() -> None:
    assert Histogram(BOUNDS, (4, 0, 0, 0), 0.2).quantile(0.5) == pytest.approx(0.05)


def test_of_the_last_bucket_only_the_lower_bound_is_known() -> None:
    assert Histogram(BOUNDS, (0, 0, 1, 9), 100.0).quantile(0.9) == 1.0


def test_without_an_observation_there_is_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram(BOUNDS, (0, 0, 0, 0)).quantile(0.99) is None
    assert Histogram().mean is None


@given(st.lists(st.floats(0, 2), min_size=1, max_size=80), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_value_of_that_rank(values: list[float], share: float) -> None:
    observed = of(values)
    rank = math.ceil(share * len(values) - 1e-9)
    exact = sorted(values)[max(rank, 1) - 1]
    low, high = observed.around(rank)
    assert low <= exact <= high
    found = observed.quantile(share)
    assert found is not None
    assert low - 1e-9 <= found <= (high if math.isfinite(high) else low) + 1e-9


@given(st.lists(st.floats(0, 2), min_size=1, max_size=80))
def test_quantiles_never_fall(values: list[float]) -> None:
    found = [of(values).quantile(share / 20) or 0.0 for share in range(1, 21)]
    assert all(after >= before - 1e-9 for before, after in pairwise(found))


@given(histograms(), histograms())
def test_what_was_observed_between_two_readings(before: Histogram, gain: Histogram) -> None:
    found = since(before, now=before + gain)
    assert found is not None
    assert found.counts == gain.counts
    assert found.sum == pytest.approx(gain.sum)


def test_a_bucket_that_dropped_is_a_restart() -> None:
    assert since(Histogram(BOUNDS, (1, 0, 0, 0)), now=Histogram(BOUNDS, (0, 5, 0, 0))) is None


def test_other_buckets_are_another_server() -> None:
    assert since(Histogram(BOUNDS, (1, 0, 0, 0)), now=Histogram((1.0, math.inf), (1, 5))) is None


def test_no_observation_in_unlike_buckets_is_lost() -> None:
    assert (Histogram(BOUNDS, (1, 0, 0, 0)) + Histogram((1.0, math.inf), (1, 5))).count == 7
    assert (Histogram() + Histogram(BOUNDS, (1, 0, 0, 0))).count == 1
