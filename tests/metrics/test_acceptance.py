"""What acceptance figures and histograms mean, and how two readings of them are compared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.metrics import Acceptance, Histogram, since, since_by_engine, total_acceptance


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    """Counters as vLLM can write them: position i + 1 is accepted only where position i was."""
    drafts = draw(st.integers(0, 10**6))
    positions = sorted(draw(st.lists(st.integers(0, drafts), max_size=8)), reverse=True)
    return Acceptance(drafts, drafts * len(positions), sum(positions), tuple(positions))


def test_the_figures_of_a_known_run() -> None:
    run = Acceptance(100, 400, 264, (90, 74, 58, 42))
    assert run.acceptance_rate == pytest.approx(0.66)
    assert run.mean_acceptance_length == pytest.approx(3.64)
    assert run.per_position == pytest.approx((0.90, 0.74, 0.58, 0.42))


def test_without_a_draft_there_is_no_figure_rather_than_zero() -> None:
    nothing = Acceptance()
    assert (nothing.acceptance_rate, nothing.mean_acceptance_length) == (None, None)
    assert nothing.per_position == ()


@given(acceptances(), acceptances())
def test_the_gain_between_two_readings_is_what_happened_between_them(
    before: Acceptance, gain: Acceptance
) -> None:
    found = since_by_engine({"0": before}, now={"0": before + gain})
    assert (found.drafts, found.accepted_tokens) == (gain.drafts, gain.accepted_tokens)
    places = len(gain.accepted_per_position)
    assert found.accepted_per_position[:places] == gain.accepted_per_position
    assert not any(found.accepted_per_position[places:])


@pytest.mark.parametrize("now", [Acceptance(10, 40, 30, (10, 8)), Acceptance(501, 20, 900, (501, 1))])
def test_an_engine_that_was_restarted_counts_from_zero_and_each_alone(now: Acceptance) -> None:
    """One counter that dropped is a restart, even if the others grew."""
    before = {"0": Acceptance(10, 40, 20, (10, 10)), "1": Acceptance(500, 2000, 900, (500, 400))}
    other = Acceptance(15, 60, 30, (15, 15))
    found = since_by_engine(before, now={"0": other, "1": now, "2": Acceptance(1, 4, 1, (1,))})
    parts = (Acceptance(5, 20, 10, (5, 5)), now, Acceptance(1, 4, 1, (1,)))
    assert found == total_acceptance(parts) == total_acceptance(reversed(parts))


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
