"""Right servers pass and wrong ones do not, on tokens that a real server once wrote."""

from __future__ import annotations

from collections import Counter

import pytest

from specserve.measure.verdict import INCONCLUSIVE
from specserve.measure.verify.judge import (
    LOSSLESS,
    LOSSY,
    Compared,
    Position,
    ScoredText,
    Tally,
    judge_greedy,
    judge_sampled,
    suspects,
)
from tests.measure.verify.recorded import pool, run

T = 0.7
BEST = Position(7, -0.1, ((7, -0.1), (8, -2.5)), "a", "a")
TIE = Position(8, -0.8, ((7, -0.7), (8, -0.8)), "b", "a")
WRONG = Position(8, -2.5, ((7, -0.1), (8, -2.5)), "b", "a")


def answer(*positions: Position) -> ScoredText:
    return ScoredText("p", (1, 2), tuple(one.token for one in positions), "", "length", positions)


def test_greedy_tokens_that_are_best_or_tie_are_lossless() -> None:
    one = answer(*[BEST] * 400, TIE)
    assert suspects([one]) == []
    found = judge_greedy([one])
    assert (found.verdict.word, found.tokens, found.wrong) == (LOSSLESS, 401, ())


def test_a_wrong_greedy_token_is_lossy_and_is_named() -> None:
    one = answer(BEST, TIE, WRONG, *[BEST] * 400)
    found = judge_greedy([one], suspects([one]))
    assert found.verdict.word == LOSSY
    (wrong,) = found.wrong
    assert wrong == 'p, token 2: "b" came, the target prefers "a" (by 2.40 nats)'
    assert found.verdict.sentence == "1 of 403 tokens are wrong" and found.excluded_percent is None
    assert found.fault_percent.low < 100 / 403 < found.fault_percent.high


@pytest.mark.parametrize("tokens", [1, 100, 350, 351, 10_000])
def test_greedy_tokens_without_a_wrong_one_exclude_a_share(tokens: int) -> None:
    found = judge_greedy([answer(*[BEST] * tokens)])
    assert found.excluded_percent == found.fault_percent.high
    assert (1 - found.fault_percent.high / 100) ** tokens == pytest.approx(0.005, rel=1e-6)
    assert (found.verdict.word == LOSSLESS) == (tokens >= 351)
    assert judge_greedy([]).verdict.word == INCONCLUSIVE


def results(factor: float, *, runs: int, most_tokens: int) -> list[Compared]:
    drawn = pool(T, factor=factor)
    return [run(drawn, T, most_tokens=most_tokens, seed=seed) for seed in range(runs)]


@pytest.mark.parametrize("most_tokens", [1_000, 15_000])
def test_a_right_server_is_lossy_in_at_most_one_of_200_runs(most_tokens: int) -> None:
    found = Counter(one.verdict.word for one in results(1.0, runs=200, most_tokens=most_tokens))
    assert found[LOSSY] <= 1
    assert most_tokens < 15_000 or found[LOSSLESS] >= 190


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_temperature_that_is_wrong_by_5_percent_is_lossy_in_95_of_100_runs(factor: float) -> None:
    found = Counter(one.verdict.word for one in results(factor, runs=100, most_tokens=15_000))
    assert found[LOSSY] >= 95


@pytest.mark.parametrize(("factor", "most"), [(0.85, 1), (1.15, 1), (1.0, 5)])
def test_a_run_excludes_no_error_that_is_there(factor: float, most: int) -> None:
    """What a minute gives on a slow server: 20 answers of about 60 tokens."""
    drawn, missed = pool(T, factor=factor, tokens=64), 0
    for start in range(0, 1200, 12):
        found = judge_sampled(drawn[start : start + 20], T)
        if factor == 1.0:
            estimate = found.fault_percent
            missed += not estimate.low <= 0 <= estimate.high
            assert found.excluded_percent is None or found.excluded_percent < 25
        else:
            missed += found.excluded_percent is not None and found.excluded_percent < 15
    assert missed <= most


def test_nothing_is_inconclusive() -> None:
    for tallies in ([], [Tally(10, 0, 0.1, 3.0)], [Tally(10, 0, 0.0, 0.0)] * 5):
        found = judge_sampled(tallies, T)
        assert (found.verdict.word, found.excluded_percent) == (INCONCLUSIVE, None)
