"""The statistics of sampled tokens: right servers pass, wrong ones do not, on tokens that a real server once wrote."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.measure.verify import sampled
from specserve.measure.verify.result import Sampling, VerifyVerdict
from specserve.measure.verify.sampled import Collector, Tally, judge, tally
from specserve.measure.verify.session import Position
from tests.measure.verify.recorded import answers, draws, pool, request, run

T = Sampling(0.7)
MOST_TOKENS = 15_000
"""What sixty seconds give on the small demo pair."""


def verdicts(factor: float, *, runs: int) -> Counter[VerifyVerdict]:
    drawn = pool(T, factor=factor)
    return Counter(run(drawn, T, most_tokens=MOST_TOKENS, seed=seed).verdict for seed in range(runs))


def test_the_recorded_server_is_right() -> None:
    found = judge([tally(one, T) for one in answers()], T)
    assert found.tokens + found.outside == 3840
    assert abs(found.z) < 2.6
    assert not found.reasons
    assert found.outside <= found.outside_expected


def test_a_right_server_is_lossy_in_at_most_one_of_200_runs() -> None:
    found = verdicts(1.0, runs=200)
    assert found[VerifyVerdict.LOSSY] <= 1
    assert found[VerifyVerdict.LOSSLESS] >= 190


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_temperature_that_is_wrong_by_5_percent_is_lossy_in_at_least_95_of_100_runs(factor: float) -> None:
    assert verdicts(factor, runs=100)[VerifyVerdict.LOSSY] >= 95


def test_the_interval_holds_the_truth_in_99_of_100_runs() -> None:
    drawn, missed = pool(T, factor=1.0), Counter[str]()
    for start in range(0, 1200, 12):
        found = judge(drawn[start : start + 12], T)
        for name in ("deviation_points", "temperature_error_percent"):
            estimate = getattr(found, name)
            missed[name] += not estimate.low <= 0 <= estimate.high
    # 1 % of 100 is 1; more than 5 comes once in 2,000 times
    assert max(missed.values(), default=0) <= 5


def test_a_sure_corruption_is_told_with_its_reason() -> None:
    rng = random.Random(1)
    places = [draws(one, T, drawn_at=5.0) for one in answers()[::2]]
    found = judge([request(place, rng) for place in places], T, is_last=False)
    assert found.verdict is VerifyVerdict.LOSSY
    assert any("too rarely" in reason for reason in found.reasons)
    assert any("higher temperature" in reason for reason in found.reasons)
    assert (found.excluded_points, found.excluded_temperature_percent) == (None, None)


def test_a_few_tokens_that_the_target_rules_out_are_enough() -> None:
    """One token in 300 from anywhere: neither the deviation nor the temperature shows it."""
    rng = random.Random(2)
    tallies = []
    for one in answers():
        positions = [Position(99, -20.0, item.top) if rng.random() < 1 / 300 else item for item in one]
        tallies.append(tally(positions, T))
    found = judge(tallies, T)
    assert found.verdict is VerifyVerdict.LOSSY
    assert [reason for reason in found.reasons if "less likely than" in reason] == list(found.reasons)


@pytest.mark.parametrize(("factor", "within"), [(0.85, 0), (1.15, 0), (1.0, 93)])
def test_twelve_hundred_tokens_exclude_a_temperature_that_is_wrong_by_15_percent(
    factor: float, within: int
) -> None:
    """What a minute gives on the demo: 20 answers of about 60 tokens. A run that is wrong by so much never says so."""
    rng = random.Random(15)
    places = [draws(one[:64], T, drawn_at=0.7 * factor) for one in answers()]
    counts: Counter[str] = Counter()
    for _ in range(100):
        found = judge([request(rng.choice(places), rng) for _ in range(20)], T)
        bound = found.excluded_temperature_percent
        counts["within"] += bound is not None and bound < 15 and found.verdict is not VerifyVerdict.LOSSY
    assert counts["within"] >= within
    assert factor == 1.0 or counts["within"] <= 1


def test_few_tokens_find_no_fault_and_say_how_many_are_missing() -> None:
    tallies = [tally(one, T) for one in answers()[:10]]
    found = judge(tallies, T)
    assert found.verdict is VerifyVerdict.NO_FAULT_FOUND
    estimate = found.temperature_error_percent
    assert found.excluded_temperature_percent == max(-estimate.low, estimate.high)
    # 7,750 tokens were enough on average in simulations
    assert 3_000 < found.tokens + found.tokens_needed < 20_000


def test_nothing_is_inconclusive() -> None:
    found = judge([], T)
    assert (found.verdict, found.tokens, found.z) == (VerifyVerdict.INCONCLUSIVE, 0, 0.0)
    assert found.tokens_needed and math.isinf(found.deviation_points.high)


def test_what_comes_after_the_verdict_does_not_count() -> None:
    collector = Collector(T, most_tokens=500)
    for one in answers():
        collector.add(tally(one, T))
    assert collector.is_decided
    assert sum(item.tokens for item in collector.tallies) < 500 + 2 * 128


@pytest.mark.parametrize(("degrees", "expected"), [(8, 3.355), (10, 3.169), (30, 2.750), (120, 2.617)])
def test_quantiles_are_those_of_students_distribution(degrees: int, expected: float) -> None:
    assert sampled._quantile(0.99, degrees) == pytest.approx(expected, rel=0.003)


@given(st.integers(0, 300), st.floats(0, 100))
def test_the_chance_of_strays_is_a_probability_and_falls_with_their_number(
    count: int, expected: float
) -> None:
    chance = sampled._chance(count, expected)
    assert 0 <= chance <= 1
    assert sampled._chance(count + 1, expected) <= chance


@given(
    st.lists(
        st.tuples(
            st.integers(1, 200), st.floats(-5, 5), st.floats(0.1, 30), st.floats(-5, 5), st.floats(0.1, 200)
        ),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=60)
def test_any_requests_have_a_verdict(rows: list[tuple[int, float, float, float, float]]) -> None:
    tallies = [
        Tally(tokens, 0, excess, variance, heat, information)
        for tokens, excess, variance, heat, information in rows
    ]
    found = judge(tallies, T)
    assert found.tokens == sum(row[0] for row in rows)
    assert found.deviation_points.low <= found.deviation_points.value <= found.deviation_points.high
    assert (found.verdict is VerifyVerdict.LOSSY) == bool(found.reasons)
    if found.verdict is VerifyVerdict.LOSSLESS:
        assert found.deviation_points.low > -sampled.MARGIN_POINTS
        assert found.deviation_points.high < sampled.MARGIN_POINTS
        assert found.tokens_needed == 0
    if found.verdict in (VerifyVerdict.NO_FAULT_FOUND, VerifyVerdict.INCONCLUSIVE):
        assert found.tokens_needed >= 100
    assert (found.verdict is VerifyVerdict.INCONCLUSIVE) == (len(rows) == 1 and not found.reasons)
    for bound, estimate, most in (
        (found.excluded_points, found.deviation_points, 100),
        (found.excluded_temperature_percent, found.temperature_error_percent, sampled.WIDEST_PERCENT),
    ):
        if bound is not None:
            assert estimate.high <= bound <= most and estimate.low >= -bound
