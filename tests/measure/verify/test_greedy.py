"""Greedy tokens: the best one, a near-tie, or wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.verify import greedy
from specserve.measure.verify.greedy import Suspect, suspects, tokens_for
from specserve.measure.verify.result import VerifyVerdict
from specserve.measure.verify.session import Position, ScoredText

BEST = Position(7, -0.1, ((7, -0.1), (8, -2.5)), "a", "a")
TIE = Position(8, -0.8, ((7, -0.7), (8, -0.8)), "b", "a")
WRONG = Position(8, -2.5, ((7, -0.1), (8, -2.5)), "b", "a")


def answer(*positions: Position) -> ScoredText:
    ids = tuple(position.token for position in positions)
    return ScoredText("p", (1, 2), ids, "", "length", positions)


def test_every_best_token_is_lossless() -> None:
    found = greedy.judge([answer(*[BEST] * 400)], [], unstable=0)
    assert (found.verdict, found.tokens, found.best, found.tokens_needed) == (
        VerifyVerdict.LOSSLESS,
        400,
        400,
        0,
    )


def test_a_near_tie_is_counted_and_passes() -> None:
    one = answer(*[BEST] * 400, TIE)
    assert suspects(one) == []
    found = greedy.judge([one], [], unstable=0)
    assert (found.verdict, found.near_ties) == (VerifyVerdict.LOSSLESS, 1)
    assert found.largest_gap == pytest.approx(0.1)


def test_a_confirmed_difference_is_lossy_and_stands_in_its_context() -> None:
    one = answer(BEST, TIE, WRONG, *[BEST] * 400)
    (suspect,) = suspects(one)
    found = greedy.judge([one], [suspect], unstable=0)
    assert found.verdict is VerifyVerdict.LOSSY
    (difference,) = found.differences
    assert (difference.index, difference.before, difference.emitted, difference.best) == (2, "ab", "b", "a")
    assert difference.gap == pytest.approx(2.4)


def test_few_tokens_bound_the_wrong_share_loosely() -> None:
    few = answer(*[BEST] * 100)
    found = greedy.judge([few], [], unstable=0)
    assert (found.verdict, found.tokens_needed) == (VerifyVerdict.NO_FAULT_FOUND, tokens_for(0.015) - 100)
    assert found.excluded_share == pytest.approx(0.0516, abs=1e-4)
    wrong = greedy.judge([few], [Suspect(few, 3)], unstable=0)
    assert (wrong.verdict, wrong.tokens_needed, wrong.excluded_share) == (VerifyVerdict.LOSSY, 0, None)


def test_without_a_token_nothing_is_decided() -> None:
    found = greedy.judge([], [], unstable=0)
    assert (found.verdict, found.excluded_share) == (VerifyVerdict.INCONCLUSIVE, None)


@given(st.integers(1, 10**6))
def test_the_excluded_share_is_what_so_many_tokens_exclude(tokens: int) -> None:
    share = greedy.excluded_share(tokens)
    assert 0 < share < 1
    assert (1 - share) ** tokens == pytest.approx(0.005, rel=1e-6)


def test_suspects_without_a_second_score_leave_it_open_unless_one_is_confirmed() -> None:
    one = answer(WRONG, WRONG, *[BEST] * 400)
    found = greedy.judge([one], [], unstable=1, unchecked=1)
    assert (found.verdict, found.unchecked, found.tokens_needed) == (VerifyVerdict.INCONCLUSIVE, 1, 0)
    wrong = greedy.judge([one], [Suspect(one, 0)], unstable=0, unchecked=1)
    assert wrong.verdict is VerifyVerdict.LOSSY


def test_so_many_tokens_without_a_wrong_one_rule_a_share_out() -> None:
    for share in (0.001, 0.015, 0.1):
        tokens = tokens_for(share)
        assert (1 - share) ** tokens <= 0.005 < (1 - share) ** (tokens - 1)
