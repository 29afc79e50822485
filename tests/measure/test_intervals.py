"""Ratios of rates and their intervals: what must hold whatever was measured, and that they cover the truth."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.intervals import LAUNCH_SPREAD, LogEstimate, RateSample, rate, ratio
from specserve.measure.verdict import INCONCLUSIVE, needed, verdict
from tests.measure.simulated import SCENARIOS, simulated

SPREAD = LAUNCH_SPREAD["cuda"]
amounts = st.floats(1.0, 1000.0)
costs = st.floats(0.01, 100.0)
variants = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("123"), amounts, costs, amounts, costs),
    min_size=2,
    max_size=20,
)


def both(
    rows: list[tuple[str, str, float, float, float, float]],
) -> tuple[list[RateSample], list[RateSample]]:
    return (
        [RateSample(prompt, block, a, b) for prompt, block, a, b, _, _ in rows],
        [RateSample(prompt, block, c, d) for prompt, block, _, _, c, d in rows],
    )


def found(variant: list[RateSample], against: list[RateSample], *, launched: int = 0) -> LogEstimate:
    estimate = ratio(variant, against=against, between=launched * SPREAD**2)
    assert estimate is not None
    return estimate


@given(variants)
def test_the_ratio_is_all_amounts_over_all_costs_of_each_variant(
    rows: list[tuple[str, str, float, float, float, float]],
) -> None:
    variant, against = both(rows)
    mine, theirs = (sum(s.amount for s in each) / sum(s.cost for s in each) for each in (variant, against))
    assert found(variant, against).value == pytest.approx(mine / theirs)


@given(variants)
def test_the_variants_exchanged_give_the_inverse_and_the_same_error(
    rows: list[tuple[str, str, float, float, float, float]],
) -> None:
    variant, against = both(rows)
    there, back = found(variant, against), found(against, variant)
    assert there.log == pytest.approx(-back.log, abs=1e-9)
    assert there.error == pytest.approx(back.error, rel=1e-6, abs=1e-9)


def test_one_block_says_nothing_about_the_next() -> None:
    estimate = found(
        [RateSample("a", "1", 10, 1), RateSample("b", "1", 10, 1)], [RateSample("a", "1", 10, 2)]
    )
    assert estimate.value == pytest.approx(2.0)
    assert estimate.bounds() == (0.0, math.inf)
    assert verdict(estimate).word == INCONCLUSIVE
    assert needed(estimate)[0] == "blocks"


def test_a_variant_without_tokens_has_no_ratio() -> None:
    assert ratio([], against=[RateSample("a", "1", 1, 1)]) is None
    assert ratio([RateSample("a", "1", 0, 1)], against=[RateSample("a", "1", 1, 1)]) is None
    assert rate([]) is None


def test_blocks_with_a_prompt_each_are_a_t_interval_of_their_deviations() -> None:
    seconds = [1.0, 1.1, 0.9, 1.05, 0.95]
    variant = [RateSample(str(index), str(index), 10, cost) for index, cost in enumerate(seconds)]
    against = [RateSample(str(index), str(index), 10, 1.0) for index in range(5)]
    estimate = found(variant, against)
    # equal amounts: the jackknife's deviations are (cost - mean) / 4 each
    expected = math.sqrt(sum(((cost - 1.0) / 4) ** 2 for cost in seconds) * 4 / 5)
    assert estimate.error == pytest.approx(expected, rel=1e-3)
    assert estimate.freedom == pytest.approx(4.0, abs=0.1)


def test_prompts_that_differ_are_not_made_certain_by_repeating_them() -> None:
    effect = {"a": 1.0, "b": 2.0, "c": 3.0}
    errors = []
    for blocks in (2, 50):
        variant = [
            RateSample(p, str(block), 10, 10 / e) for block in range(blocks) for p, e in effect.items()
        ]
        against = [RateSample(p, str(block), 10, 10) for block in range(blocks) for p in effect]
        errors.append(found(variant, against).error)
    assert errors[1] > 0.8 * errors[0] > 0.1
    estimate = found(variant, against)
    assert estimate.prompt_share > 0.9
    assert estimate.freedom < 3


def two_launches(noise: float) -> LogEstimate:
    """Blocks of prompts that are alike, on two launches of each variant."""
    rng = random.Random(4)
    sides = [
        [
            RateSample(
                f"{launch}{block}", str(block), 10, speed * math.exp(rng.gauss(0, noise)), launch=launch
            )
            for launch in "01"
            for block in range(8)
        ]
        for speed in (1.0, 2.0)
    ]
    return found(*sides, launched=2)


def test_an_interval_is_never_narrower_than_launches_differ() -> None:
    estimate = two_launches(0.0)
    # two variants, each started twice
    assert estimate.error == pytest.approx(SPREAD)
    assert estimate.launch_share == pytest.approx(1.0)
    assert estimate.half() == pytest.approx(1.96 * SPREAD, rel=1e-3)


def test_intervals_cover_the_truth_and_equal_variants_are_not_told_apart() -> None:
    """Few trials; tests/soak/test_series.py has the many, and the narrow limits."""
    scores = [(each, simulated(each, 30, seed=11)) for each in SCENARIOS]
    covered = sum(score.covered for _, score in scores) / len(scores)
    apart = [score.told_apart for each, score in scores if each.is_equal]
    # 900 trials: the standard deviation of their coverage is 0.7 %; the seed is fixed
    assert abs(covered - 0.95) < 0.02
    assert sum(apart) <= 0.02 * len(apart)
