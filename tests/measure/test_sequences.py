"""Confidence sequences: they hold at every look, they shrink, and they say nothing of too little."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.statistics import PairedDifference, share_bounds, share_difference, standard_errors

ERROR = 0.05


def looked_at(
    rng: random.Random, *, gap: float = 0.0, blocks: int = 120, sizes: tuple[float, float] = (100, 100)
) -> PairedDifference | None:
    """Two ratios that vary from block to block; None if the sequence left out their difference at any look."""
    found = PairedDifference()
    for _ in range(blocks):
        common = rng.uniform(-0.2, 0.2)  # both sides alike, such as the traffic of the day
        weights = [size * rng.uniform(0.5, 2) for size in sizes]
        ratios = [0.5 + common + rng.gauss(0, 0.1), 0.5 + gap + common + rng.gauss(0, 0.1)]
        found.add((weights[0] * ratios[0], weights[0]), (weights[1] * ratios[1], weights[1]))
        seen = found.interval(error=ERROR)
        assert seen is not None
        if not seen.low <= gap <= seen.high:
            return None
    return found


@pytest.mark.parametrize(("gap", "sizes"), [(0.0, (100, 100)), (0.2, (100, 100)), (0.0, (900, 100))])
def test_the_sequence_contains_the_difference_at_all_looks(gap: float, sizes: tuple[float, float]) -> None:
    rng = random.Random(7)
    missed = sum(looked_at(rng, gap=gap, sizes=sizes) is None for _ in range(400))
    assert missed <= ERROR * 400


def test_the_sequence_shrinks_and_what_both_sides_share_does_not_widen_it() -> None:
    rng = random.Random(1)
    widths = []
    for blocks in (20, 80, 320):
        found = looked_at(rng, blocks=blocks)
        assert found is not None
        seen = found.interval(error=ERROR)
        assert seen is not None
        widths.append(seen.high - seen.low)
    assert widths[0] > 1.5 * widths[1] > 2 * widths[2]
    assert widths[2] < 0.08  # the common part alone has a standard deviation of 0.115


def test_neighbours_that_are_alike_widen_it() -> None:
    apart, alike = PairedDifference(), PairedDifference()
    rng = random.Random(3)
    values = [rng.gauss(0, 1) for _ in range(200)]
    for one, two in itertools.pairwise(values):
        apart.add((0, 1), (one, 1))
        alike.add((0, 1), ((one + two) / math.sqrt(2), 1))
    widths = [seen.high - seen.low for each in (apart, alike) if (seen := each.interval(error=ERROR))]
    assert widths[1] > 1.25 * widths[0]


def test_too_little_is_not_bounded() -> None:
    found = PairedDifference()
    assert found.interval(error=ERROR) is None
    assert found.ratios == (0.0, 0.0)
    found.add((1, 0), (1, 5))
    assert found.interval(error=ERROR) is None
    found.add((1, 2), (1, 4))
    first = found.interval(error=ERROR)
    assert first is not None
    assert (first.value, first.low, first.high) == (-0.25, -math.inf, math.inf)
    found.add((1, 2), (1, 4))
    second = found.interval(error=ERROR, least_variance=1.0)
    assert second is not None
    assert math.isinf(second.high)


def test_blocks_that_are_equal_by_chance_do_not_prove_a_difference() -> None:
    found = PairedDifference()
    for _ in range(30):
        found.add((10, 10), (9, 10))
    bare, floored = found.interval(error=ERROR), found.interval(error=ERROR, least_variance=0.05**2)
    assert bare is not None and floored is not None
    assert bare.high == pytest.approx(-0.1)
    assert floored.high > 0


@given(st.floats(2.0, 1e6), st.floats(1e-6, 0.2))
def test_the_bound_is_wider_for_less_error_and_never_below_that_of_one_look(
    count: float, error: float
) -> None:
    bound = standard_errors(count, error=error)
    assert standard_errors(count, error=error / 2) >= bound
    assert bound > math.sqrt(max(-2 * math.log(error) - 3, 0.0))


def test_the_bound_of_few_values_is_infinite() -> None:
    bounds = [standard_errors(count, error=0.01 / 3) for count in (1, 3, 7, 10, 30, 240)]
    assert bounds[:2] == [math.inf, math.inf]
    assert all(math.isfinite(bound) for bound in bounds[2:])
    assert all(fewer > more for fewer, more in itertools.pairwise(bounds[2:]))


@given(st.integers(0, 500), st.integers(0, 500), st.floats(1e-5, 0.2))
def test_the_bounds_of_a_share_contain_it(count: int, others: int, error: float) -> None:
    of = count + others
    low, high = share_bounds(count, of=of, error=error)
    assert 0 <= low <= high <= 1
    if of:
        assert low <= count / of <= high
        assert share_bounds(count, of=of, error=error / 10)[1] >= high


@pytest.mark.parametrize("share", [0.002, 0.3])
def test_the_bounds_of_a_share_hold_at_all_looks(share: float) -> None:
    rng = random.Random(5)
    missed = 0
    for _ in range(200):
        count = 0
        for of in range(1, 601):
            count += rng.random() < share
            if of % 15 == 0:
                low, high = share_bounds(count, of=of, error=ERROR)
                if not low <= share <= high:
                    missed += 1
                    break
    assert missed <= ERROR * 200


def test_no_failure_in_a_thousand_requests_is_under_one_percent() -> None:
    assert share_bounds(0, of=1000, error=0.01 / 6)[1] < 0.01
    assert share_difference((0, 0), (0, 5), error=0.01) is None
    found = share_difference((0, 2000), (100, 2000), error=0.01)
    assert found is not None
    assert found.value == pytest.approx(0.05)
    assert 0.02 < found.low < 0.05 < found.high < 0.09
