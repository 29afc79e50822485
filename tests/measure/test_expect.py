"""One meaning of `expect`: which promises hold at an operating point, and what keeps them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from specserve.measure.intervals import Estimate
from specserve.measure.verdict import Limit, judge, limits
from specserve.profile.schema import Profile

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
