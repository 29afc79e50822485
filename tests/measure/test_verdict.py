"""Verdicts follow from the interval alone, and say what is missing."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.measure import verdict as subject
from specserve.measure.intervals import LogEstimate
from specserve.measure.verdict import COSTS, INCONCLUSIVE, NO_DIFFERENCE, PAYS, needed, verdict


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


@settings(deadline=None)
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


@settings(deadline=None)
@given(st.floats(0.5, 2), st.floats(0.01, 0.5))
def test_as_much_more_as_is_said_would_decide_it(value: float, error: float) -> None:
    found = estimate(value, error)
    what, more = needed(found)
    if verdict(found).word != INCONCLUSIVE or what != "blocks":
        return
    enough = dataclasses.replace(found, error=error * math.sqrt(8 / (8 + more)) * 0.999)
    assert verdict(enough).word != INCONCLUSIVE


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
