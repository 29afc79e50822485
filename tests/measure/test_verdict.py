"""Intervals cover the truth whatever was measured; verdicts follow from them alone; promises hold at their points."""

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure import verdict as subject
from specserve.measure.verdict import (
    COSTS,
    INCONCLUSIVE,
    LAUNCH_SPREAD,
    NO_DIFFERENCE,
    PAYS,
    Estimate,
    Limit,
    LogEstimate,
    RateSample,
    judge,
    limits,
    needed,
    quantile_ratio,
    rate,
    ratio,
    verdict,
)
from specserve.profile.schema import Profile
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


def trial(rng: random.Random) -> LogEstimate:
    """Latencies of two servers, one twice as fast: 25 prompts four times in 8 blocks, which differ by 5 %."""
    sides: tuple[list[RateSample], list[RateSample]] = ([], [])
    lengths = [(rng.lognormvariate(0.0, 0.6), rng.gauss(0.0, 0.15)) for _ in range(25)]
    order = [prompt for _ in range(4) for prompt in rng.sample(range(25), 25)]
    for block in range(8):
        slow = [rng.gauss(0.0, 0.05) for _ in sides]
        for prompt in order[100 * block // 8 : 100 * (block + 1) // 8]:
            length, effect = lengths[prompt]
            for side, samples in enumerate(sides):
                log = slow[side] + rng.gauss(0.0, 0.1) - (0.0 if side else effect + math.log(2.0))
                samples.append(RateSample(f"p{prompt}", str(block), 1.0, length * math.exp(log)))
    median = quantile_ratio(sides[0], against=sides[1], at=0.5)
    assert median is not None
    return median


def test_the_interval_of_a_ratio_of_medians_holds_the_true_one_in_95_of_100_trials() -> None:
    rng = random.Random(1)
    trials = [trial(rng) for _ in range(100)]
    assert sum(low < 2.0 < high for low, high in (each.bounds() for each in trials)) >= 92
    assert sum(verdict(each).word == PAYS for each in trials) > 95


@given(st.lists(costs, min_size=1, max_size=30), st.lists(costs, min_size=1, max_size=30))
def test_quantiles_exchanged_give_the_inverse_and_few_values_no_bounds(
    a: list[float], b: list[float]
) -> None:
    mine, theirs = ([RateSample("p", str(at), 1, cost) for at, cost in enumerate(s)] for s in (a, b))
    there, back = (
        quantile_ratio(one, against=other, at=0.99) for one, other in ((mine, theirs), (theirs, mine))
    )
    assert there and back and there.log == pytest.approx(-back.log, abs=1e-9)
    assert there.bounds() == (0.0, math.inf) and verdict(there).word == INCONCLUSIVE
    assert quantile_ratio(mine, against=[], at=0.5) is None


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


def estimate(value: float, error: float, *, freedom: float = 20, share: float = 0.0) -> LogEstimate:
    return LogEstimate(math.log(value), error, freedom, blocks=8, launches=1, prompts=25, prompt_share=share)


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (1.5, 0.02, PAYS),
        (0.7, 0.02, COSTS),
        (1.0, 0.005, NO_DIFFERENCE),
        (1.0, 0.05, INCONCLUSIVE),
        (1.5, 0.3, INCONCLUSIVE),
        (1.02, 0.001, NO_DIFFERENCE),
        (1.035, 0.001, PAYS),
        (1.035, 0.005, INCONCLUSIVE),
    ],
)
def test_the_verdict_is_where_the_interval_lies(value: float, error: float, expected: str) -> None:
    assert verdict(estimate(value, error)).word == expected


@given(st.floats(0.2, 5), st.floats(0.0001, 1), st.floats(1, 100))
def test_what_pays_is_beyond_the_margin_and_what_costs_below(
    value: float, error: float, freedom: float
) -> None:
    found = estimate(value, error, freedom=freedom)
    low, high = found.bounds()
    match verdict(found).word:
        case subject.PAYS:
            assert low > 1.03
        case subject.COSTS:
            assert high < 0.97
        case subject.NO_DIFFERENCE:
            assert 0.97 <= low <= high <= 1.03
        case subject.INCONCLUSIVE:
            assert needed(found)


def test_what_is_missing_is_what_the_variance_comes_from() -> None:
    assert needed(estimate(1.2, 0.1)) == ("blocks", 16)
    assert needed(estimate(1.2, 0.1, share=0.8))[0] == "prompts"
    launches = dataclasses.replace(estimate(1.0, 0.02), launches=2, launch_share=0.7)
    assert needed(launches) == ("launches", 2)


def test_launches_are_advised_where_more_blocks_would_never_do() -> None:
    close = dataclasses.replace(estimate(1.0, 0.022), launches=2, launch_share=0.45)
    assert needed(close) == ("launches", 3)
    hopeless = dataclasses.replace(estimate(1.031, 0.02), launches=1, launch_share=0.9)
    assert needed(hopeless)[0] == "nothing"
    assert needed(estimate(1.0301, 0.02))[0] == "nothing"


def test_the_wider_interval_is_told_only_if_it_alone_decides() -> None:
    close = verdict(estimate(2.84, 0.25, freedom=5))
    assert close.word == INCONCLUSIVE
    assert close.sentence == "the 99.5 % interval is 0.86-9.37"
    assert verdict(estimate(1.5, 0.3)).sentence == "the interval reaches across 0.97 and 1.03"


MakeProfile = Callable[[str], Profile]
THREE = """
expect:
  - {max_tpot_p99_ms: 30}
  - {workload: chat, concurrency: 4, max_ttft_p99_ms: 800}
  - {max_tpot_p99_ms: 50}
"""


def holding(profile: Profile, **at: Any) -> list[float]:
    found = limits(profile, *(at.get(name) for name in ("workload", "temperature", "concurrency")))
    return [limit.promised for limit in found if limit.why_not is None]


@pytest.mark.parametrize(
    ("workload", "concurrency", "expected"),
    [
        ("chat", 4, [30, 800, 50]),
        ("chat", 4.4, [30, 800, 50]),
        ("chat", 5, [30, 50]),
        (None, 4, [30, 50]),
        ("chat", None, [30, 50]),
    ],
)
def test_all_promises_that_match_hold(
    profile: MakeProfile, workload: str | None, concurrency: float | None, expected: list[float]
) -> None:
    found = profile(THREE)
    assert holding(found, workload=workload, temperature=0.0, concurrency=concurrency) == expected


def test_a_promise_for_a_temperature_holds_at_it(profile: MakeProfile) -> None:
    found = profile("expect: [{temperature: 0.7, min_speedup: 1.2, min_acceptance_rate: 0.5}]")
    assert holding(found, temperature=0.7) == [1.2, 0.5]
    assert holding(found, temperature=0.0) == holding(found) == []


def test_what_does_not_hold_says_why_and_where(profile: MakeProfile) -> None:
    found = list(limits(profile(THREE), "chat", 0.0, 9))
    places = [limit.place.rpartition("/")[2] for limit in found]
    assert places == ["p.yaml:4:23", "p.yaml:5:55", "p.yaml:6:23"]
    assert found[1].why_not == "9 requests run in parallel, and the promise is for 4"


@pytest.mark.parametrize(
    ("key", "low", "high", "kept"),
    [
        ("min_speedup", 1.5, 2.0, "kept"),
        ("min_speedup", 1.0, 1.49, "missed"),
        ("min_speedup", 1.0, 1.5, "undecided"),
        ("max_ttft_p99_ms", 1.0, 1.5, "kept"),
        ("max_ttft_p99_ms", 1.51, 2.0, "missed"),
        ("max_ttft_p99_ms", 1.5, 2.0, "undecided"),
        ("max_ttft_p99_ms", 1.0, math.inf, "undecided"),
        ("max_ttft_p99_ms", 1.6, math.inf, "missed"),
    ],
)
def test_the_whole_interval_decides(key: str, low: float, high: float, kept: str) -> None:
    assert judge(Limit(key, 1.5, "p.yaml"), Estimate(low, low, high)).kept == kept


def test_without_an_interval_or_at_another_point_nothing_is_decided() -> None:
    assert judge(Limit("min_speedup", 1.5, "p.yaml"), None).kept == "undecided"
    other = Limit("min_speedup", 1.5, "p.yaml", "it is for another load")
    assert judge(other, Estimate(9, 9, 9)).kept == "not judged"
