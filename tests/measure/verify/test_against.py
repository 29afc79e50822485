"""Two servers: near-ties told from faults, rounding from other weights."""

from __future__ import annotations

import random

import pytest

from specserve.measure.verify.greedy import TextPair, compare, parting
from specserve.measure.verify.result import Against, Likeness
from specserve.measure.verify.session import Position, ScoredText

TOKENS = 400


def text(ids: list[int], *, one: float = -0.2, other: float = -2.0, name: str = "p") -> ScoredText:
    """Token 1 has the log-probability `one`, token 2 `other`, everywhere."""
    top = tuple(sorted([(1, one), (2, other)], key=lambda item: -item[1]))
    positions = tuple(Position(token, dict(top)[token], top, str(token), str(top[0][0])) for token in ids)
    return ScoredText(name, (9,), tuple(ids), "", "length", positions)


def shifted(answer: ScoredText, by: float) -> tuple[Position, ...]:
    return tuple(
        Position(item.token, item.logprob + by, tuple((token, value + by) for token, value in item.top))
        for item in answer.positions
    )


def judged(*pairs: TextPair) -> Against:
    return compare(pairs, url="http://b", model="m")


def test_equal_texts_and_numbers_are_the_same() -> None:
    mine = text([1] * TOKENS)
    found = judged(TextPair(mine, mine.positions, mine, mine.positions))
    assert (found.verdict, found.equal, found.texts, found.partings) == (Likeness.SAME, 1, 1, ())
    assert (found.mean_difference, found.tokens) == (0, TOKENS)


def test_few_tokens_are_inconclusive() -> None:
    mine = text([1] * 50)
    assert judged(TextPair(mine, mine.positions, mine)).verdict is Likeness.INCONCLUSIVE


def test_a_near_tie_is_no_difference() -> None:
    mine, theirs = (text([1] * 20 + [token] + [1] * TOKENS, one=-0.8, other=-0.9) for token in (1, 2))
    found = judged(TextPair(mine, mine.positions, theirs))
    assert found.verdict is Likeness.SAME
    (at,) = found.partings
    assert (at.index, at.here, at.there, at.is_near_tie) == (20, "1", "2", True)
    assert at.gap_here == pytest.approx(0.1)
    assert at.before == "1" * 6


def test_a_text_that_parts_elsewhere_is_different_and_says_who_is_wrong() -> None:
    mine, theirs = (text([1] * 20 + [token] + [1] * TOKENS) for token in (2, 1))
    found = judged(TextPair(mine, mine.positions, theirs))
    assert found.verdict is Likeness.DIFFERENT
    assert "part where neither server sees a near-tie" in found.reasons[0]
    # this server's own prefill prefers what the other one wrote
    assert found.partings[0].gap_here == pytest.approx(-1.8)
    assert found.partings[0].gap_there == pytest.approx(1.8)


def test_other_numbers_are_close_where_they_exceed_the_servers_own_rounding() -> None:
    rng = random.Random(1)
    mine = text([1] * TOKENS)
    noisy = tuple(
        Position(item.token, item.logprob + rng.uniform(-0.01, 0.01), item.top) for item in mine.positions
    )
    assert judged(TextPair(mine, shifted(mine, 0.01), mine, mine.positions)).verdict is Likeness.CLOSE
    assert judged(TextPair(mine, shifted(mine, 0.01), mine, noisy)).verdict is Likeness.SAME
    assert judged(TextPair(mine, shifted(mine, 0.001), mine, mine.positions)).verdict is Likeness.SAME
    assert judged(TextPair(mine, shifted(mine, 0.2), mine, mine.positions)).verdict is Likeness.DIFFERENT


def test_another_best_token_is_different_though_the_texts_are_equal() -> None:
    mine = text([1] * TOKENS)
    seen_there = list(mine.positions)
    seen_there[5] = text([1], one=-1.0, other=-0.3).positions[0]
    found = judged(TextPair(mine, tuple(seen_there), mine))
    assert (found.verdict, found.other_best) == (Likeness.DIFFERENT, 1)


def test_one_text_that_is_the_others_beginning_parts_nowhere() -> None:
    assert parting(TextPair(text([1, 1]), (), text([1, 1, 2]))) is None
