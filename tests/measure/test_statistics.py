"""Ratios of rates and their intervals: what must hold whatever was measured, and that they cover the truth."""

import importlib.util
import math
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.measure.bench.result import Interval, Verdict
from specserve.measure.statistics import (
    LogEstimate,
    PromptAcceptance,
    Share,
    acceptance_gain,
    needed,
    point,
    rate,
    ratio,
    verdict,
)

ROOT = Path(__file__).resolve().parents[2]

amounts = st.floats(1.0, 1000.0)
costs = st.floats(0.01, 100.0)
arms = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("123"), amounts, costs, amounts, costs),
    min_size=2,
    max_size=20,
)


def both(rows: list[tuple[str, str, float, float, float, float]]) -> tuple[list[Share], list[Share]]:
    return (
        [Share(prompt, block, a, b) for prompt, block, a, b, _, _ in rows],
        [Share(prompt, block, c, d) for prompt, block, _, _, c, d in rows],
    )


def found(arm: list[Share], against: list[Share]) -> LogEstimate:
    estimate = ratio(arm, against=against)
    assert estimate is not None
    return estimate


@settings(deadline=None)
@given(arms)
def test_the_ratio_is_all_amounts_over_all_costs_of_each_arm(
    rows: list[tuple[str, str, float, float, float, float]],
) -> None:
    arm, against = both(rows)
    mine, theirs = (sum(s.amount for s in each) / sum(s.cost for s in each) for each in (arm, against))
    assert found(arm, against).value == pytest.approx(mine / theirs)


@settings(deadline=None)
@given(arms)
def test_the_arms_exchanged_give_the_inverse_and_the_same_error(
    rows: list[tuple[str, str, float, float, float, float]],
) -> None:
    arm, against = both(rows)
    there, back = found(arm, against), found(against, arm)
    assert there.log == pytest.approx(-back.log, abs=1e-9)
    assert there.error == pytest.approx(back.error, rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(arms, st.floats(0.1, 10))
def test_a_machine_that_is_slower_throughout_changes_the_value_and_not_the_error(
    rows: list[tuple[str, str, float, float, float, float]], factor: float
) -> None:
    arm, against = both(rows)
    slow = [Share(item.prompt, item.block, item.amount, item.cost * factor) for item in arm]
    before, after = found(arm, against), found(slow, against)
    assert after.value == pytest.approx(before.value / factor)
    assert after.error == pytest.approx(before.error, rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(arms, st.randoms(use_true_random=False))
def test_the_order_of_the_requests_does_not_matter(
    rows: list[tuple[str, str, float, float, float, float]], rng: random.Random
) -> None:
    arm, against = both(rows)
    before = found(arm, against)
    rng.shuffle(arm)
    after = found(arm, against)
    assert after.log == pytest.approx(before.log, abs=1e-12)
    assert after.error == pytest.approx(before.error, abs=1e-12)


@settings(deadline=None)
@given(arms)
def test_an_arm_compared_with_itself_is_exactly_even(
    rows: list[tuple[str, str, float, float, float, float]],
) -> None:
    arm, _ = both(rows)
    estimate = found(arm, arm)
    assert estimate.value == pytest.approx(1.0)
    assert estimate.error == pytest.approx(0.0, abs=1e-12) or math.isinf(estimate.error)


@settings(deadline=None)
@given(arms)
def test_an_interval_holds_its_value_and_grows_with_the_confidence(
    rows: list[tuple[str, str, float, float, float, float]],
) -> None:
    estimate = found(*both(rows))
    low, high = estimate.bounds()
    wide_low, wide_high = estimate.bounds(0.995)
    assert wide_low <= low <= estimate.value * (1 + 1e-9)
    assert estimate.value * (1 - 1e-9) <= high <= wide_high


def test_one_block_says_nothing_about_the_next() -> None:
    estimate = found([Share("a", "1", 10, 1), Share("b", "1", 10, 1)], [Share("a", "1", 10, 2)])
    assert estimate.value == pytest.approx(2.0)
    assert estimate.bounds() == (0.0, math.inf)
    assert verdict(estimate) is Verdict.INCONCLUSIVE
    assert needed(estimate) == "more than one block"


def test_an_arm_without_tokens_has_no_ratio() -> None:
    assert ratio([], against=[Share("a", "1", 1, 1)]) is None
    assert ratio([Share("a", "1", 0, 1)], against=[Share("a", "1", 1, 1)]) is None
    assert rate([]) is None


def test_blocks_with_a_prompt_each_are_a_t_interval_of_their_deviations() -> None:
    seconds = [1.0, 1.1, 0.9, 1.05, 0.95]
    arm = [Share(str(index), str(index), 10, cost) for index, cost in enumerate(seconds)]
    against = [Share(str(index), str(index), 10, 1.0) for index in range(5)]
    estimate = found(arm, against)
    # equal amounts: the jackknife's deviations are (cost - mean) / 4 each
    expected = math.sqrt(sum(((cost - 1.0) / 4) ** 2 for cost in seconds) * 4 / 5)
    assert estimate.error == pytest.approx(expected, rel=1e-3)
    assert estimate.freedom == pytest.approx(4.0, abs=0.1)


def test_prompts_that_differ_are_not_made_certain_by_repeating_them() -> None:
    effect = {"a": 1.0, "b": 2.0, "c": 3.0}
    errors = []
    for blocks in (2, 50):
        arm = [Share(p, str(block), 10, 10 / e) for block in range(blocks) for p, e in effect.items()]
        against = [Share(p, str(block), 10, 10) for block in range(blocks) for p in effect]
        errors.append(found(arm, against).error)
    assert errors[1] > 0.8 * errors[0] > 0.1
    estimate = found(arm, against)
    assert estimate.prompt_share > 0.9
    assert estimate.freedom < 3


def test_launches_are_the_outer_level() -> None:
    speeds = {"0": 1.0, "1": 1.2, "2": 0.9}
    arm = [
        Share(f"p{index % 5}", str(index), 10, 1 / speed, launch=launch)
        for launch, speed in speeds.items()
        for index in range(40)
    ]
    against = [
        Share(f"p{index % 5}", str(index), 10, 1.0, launch=launch) for launch in speeds for index in range(40)
    ]
    estimate = found(arm, against)
    assert estimate.launches == 3
    assert estimate.freedom == pytest.approx(2.0, abs=0.2)
    assert estimate.error > 0.05  # 120 blocks, and still only three launches


def test_quantiles_lie_between_their_neighbours_as_in_numpy() -> None:
    assert point([3, 1, 2], 0.5) == 2
    assert point([1, 2, 3, 4], 0.5) == 2.5
    assert point(list(range(101)), 0.99) == pytest.approx(99)
    assert point([7], 0.99) == 7


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bench_simulation", ROOT / "scripts" / "bench_simulation.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_simulation"] = module
    spec.loader.exec_module(module)
    return module


def test_intervals_cover_the_truth_and_equal_arms_are_not_told_apart(simulation: ModuleType) -> None:
    """A small part of scripts/bench_simulation.py, which is for 10,000 trials and the narrow limits."""
    trials = covered = apart = equal = 0
    for scenario in simulation.SCENARIOS:
        score = simulation.scored(scenario, 30, 11, False)
        trials, covered = trials + score.trials, covered + score.covered
        if simulation.equal_arms(scenario):
            equal, apart = equal + score.trials, apart + score.told_apart
    # 420 trials: 95 % are 399, with a standard deviation of 4.5; the seed is fixed
    assert abs(covered / trials - 0.95) < 0.03
    assert apart <= 0.02 * equal


def _rows(pairs: list[tuple[int, int]]) -> list[PromptAcceptance]:
    return [PromptAcceptance(f"p{at}", accepted, drafted) for at, (accepted, drafted) in enumerate(pairs)]


def test_the_gain_of_a_draft_is_the_difference_of_its_rates() -> None:
    old, new = _rows([(10, 20), (12, 20), (8, 20)]), _rows([(14, 20), (15, 20), (13, 20)])
    found = acceptance_gain(new, over=old)
    assert found is not None
    assert found.value == pytest.approx(42 / 60 - 30 / 60)
    assert 0 < found.low < found.value < found.high


def test_equal_drafts_gain_nothing_and_one_prompt_says_nothing() -> None:
    rows = _rows([(10, 20), (3, 20), (8, 20)])
    assert acceptance_gain(rows, over=rows) == Interval(0.0, 0.0, 0.0)
    assert acceptance_gain(rows[:1], over=rows[:1]) is None
    assert acceptance_gain(rows, over=_rows([(0, 0), (0, 0), (0, 0)])) is None


def test_the_interval_of_a_gain_holds_the_truth_as_often_as_it_says() -> None:
    """Prompts differ in difficulty, drafts by 0.05 on average: in 95 of 100 samples the interval holds that."""
    rng, held = random.Random(3), 0
    for _ in range(400):
        hard = [rng.uniform(0.3, 0.8) for _ in range(60)]
        gains = [rng.gauss(0.05, 0.05) for _ in hard]
        old = _rows([(sum(rng.random() < p for _ in range(40)), 40) for p in hard])
        new = _rows(
            [(sum(rng.random() < p + g for _ in range(40)), 40) for p, g in zip(hard, gains, strict=True)]
        )
        found = acceptance_gain(new, over=old)
        assert found is not None
        held += found.low <= 0.05 <= found.high
    assert 0.92 <= held / 400 <= 0.98
