"""Verdicts follow from the interval alone, and say what is missing; promises hold at their operating point."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure import verdict as subject
from specserve.measure.intervals import Estimate, LogEstimate
from specserve.measure.verdict import (
    COSTS,
    INCONCLUSIVE,
    NO_DIFFERENCE,
    PAYS,
    Limit,
    judge,
    limits,
    needed,
    verdict,
)
from specserve.profile.schema import Profile


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
