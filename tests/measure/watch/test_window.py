"""The figures of `watch` are those that a person computes by hand from two raw scrapes."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specserve.measure.watch import (
    MAX_READINGS,
    Reading,
    Window,
    acceptance_intervals,
    figures,
    gained,
    p99_ms,
)
from specserve.metrics import Histogram, Metrics, read
from tests.measure.watch.conftest import DEMO, gain, readings

DATA = Path(__file__).parents[2] / "data" / "metrics"


def test_the_figures_of_a_real_server_equal_those_computed_by_hand() -> None:
    def raw(when: str) -> dict[str, float]:
        """The samples as they stand in the file, without any of our code."""
        text = DATA.joinpath(f"demo-{when}.txt").read_text(encoding="utf-8")
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        label = r'engine="0",|,?model_name="demo",?'
        return {re.sub(label, "", name).replace("{}", ""): float(value) for name, value in pairs}

    before, after = raw("before"), raw("after")

    def grown(name: str) -> float:
        return after[f"vllm:{name}"] - before[f"vllm:{name}"]

    texts = [DATA.joinpath(f"demo-{when}.txt").read_text() for when in ("before", "after")]
    seen = figures([Reading(30.05 * at, read(text)) for at, text in enumerate(texts)])
    drafts, accepted, drafted = (
        grown(f"spec_decode_num_{name}_total") for name in ("drafts", "accepted_tokens", "draft_tokens")
    )
    counted = seen.counted
    assert (drafts, accepted, drafted) == (249, 639, 996)
    assert counted.acceptance.mean_acceptance_length == pytest.approx(1 + 639 / 249)
    positions = [
        grown(f'spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}}') for at in range(4)
    ]
    assert list(counted.acceptance.accepted_per_position) == positions
    assert counted.generation_tokens == grown("generation_tokens_total")
    assert counted.finished_requests == 14 == grown('request_success_total{finished_reason="length"}')
    assert seen.seconds == pytest.approx(30.05)
    gauge = "vllm:num_requests_running"
    assert seen.running_requests == pytest.approx((before[gauge] + after[gauge]) / 2)
    bucket = 'time_to_first_token_seconds_bucket{le="+Inf"}'
    assert counted.ttft_s.count == grown(bucket)
    assert counted.ttft_s.mean == pytest.approx(grown("time_to_first_token_seconds_sum") / grown(bucket))
    assert seen.mean_acceptance_length is None  # two readings are one part


def test_output_that_came_without_a_draft_is_told() -> None:
    def undrafted(plain_tokens: int) -> float | None:
        return figures(readings(*[gain(plain_tokens=plain_tokens)] * 4)).undrafted_share

    assert undrafted(0) == pytest.approx(0.0)
    assert undrafted(110) == pytest.approx(0.25)  # 330 tokens of 100 steps with drafts
    assert undrafted(-50) == 0.0  # what a request's end cuts off is counted as accepted
    assert figures(readings(gain(10))).undrafted_share is None


class TestInterval:
    def test_needs_three_parts_each_longer_than_a_request(self) -> None:
        assert figures(readings(*[gain()] * 2)).mean_acceptance_length is None
        assert figures(readings(*[gain()] * 3)).mean_acceptance_length is not None
        # two requests that go on and on: neighbouring parts are the same requests
        assert figures(readings(*[gain(finished=0)] * 12)).mean_acceptance_length is None
        assert figures(readings(*[gain(finished=1)] * 12)).mean_acceptance_length is not None
        assert figures(readings(*[gain(16)] * 12)).mean_acceptance_length is None  # 192 drafts

    def test_holds_the_truth_in_about_95_of_100_windows(self) -> None:
        # requests with an acceptance of their own, as in real traffic: five in each of twelve parts
        chance = random.Random(7)
        hits = 0
        for _ in range(1000):
            parts = []
            for _part in range(12):
                shares = [min(max(chance.gauss(0.6, 0.15), 0.0), 1.0) for _ in range(5)]
                parts.append(gain(1000, (sum(shares) / 5,) * 4).acceptance)
            length, _ = acceptance_intervals(parts)
            hits += length is not None and length.low <= 1 + 4 * 0.6 <= length.high
        assert 930 <= hits <= 970

    @given(
        st.lists(
            st.tuples(st.integers(0, 60), st.lists(st.floats(0, 1), min_size=4, max_size=4)), max_size=15
        )
    )
    @example([(40, [0.0] * 4), (50, [0.0] * 4), (50, [0.0] * 4), (60, [0.0, 0.0, 0.0, 1.0])])
    def test_holds_its_figure_and_stays_possible(self, parts: list[tuple[int, list[float]]]) -> None:
        counted = [gain(n, tuple(sorted(shares, reverse=True))) for n, shares in parts]
        length, rate = acceptance_intervals([one.acceptance for one in counted])
        if length is not None and rate is not None:
            assert 1 <= length.low <= length.value <= length.high <= 5
            assert 0 <= rate.low <= rate.value <= rate.high <= 1

    def test_of_a_p99_is_bounded_by_ranks_and_buckets(self) -> None:
        def bounds(*counts: int) -> tuple[float, float]:
            found = p99_ms(Histogram(dict(zip((0.1, 0.5, 1.0, math.inf), counts, strict=True))))
            return (found.low, found.high) if found is not None else (-1.0, -1.0)

        assert bounds(29, 0, 0, 0) == (-1.0, -1.0)
        assert bounds(367, 0, 0, 0)[1] == math.inf
        assert bounds(368, 0, 0, 0)[1] == 100.0
        low, high = bounds(900, 0, 100, 0)
        assert 500.0 < low < 500.1 and high == 1000.0


class TestWindow:
    @given(
        steps=st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 500)), min_size=1, max_size=300),
        span_s=st.floats(1, 120),
    )
    def test_holds_the_newest_and_stays_small(self, steps: list[tuple[float, int]], span_s: float) -> None:
        window, drafts, at_s = Window(span_s), 0, 0.0
        found = []
        for seconds, more in steps:
            drafts, at_s = drafts + more, at_s + seconds
            reading = readings(gain(drafts))[1]
            found.append(replace(reading, at_s=at_s))
            window.add(found[-1])
            assert len(window.readings) <= MAX_READINGS + 2
        assert window.readings[-1] == found[-1]
        assert all(one.at_s < after.at_s for one, after in pairwise(window.readings))
        longest_s = max(seconds for seconds, _ in steps)
        assert window.readings[-1].at_s - window.readings[0].at_s <= span_s * 1.02 + longest_s


def engine(drafts: int, *, created_s: float | None = None) -> Metrics:
    one = readings(gain(drafts))[1].metrics.engines[DEMO]
    return Metrics({DEMO: replace(one, created_s=created_s)})


def test_a_restart_is_told_by_counters_that_dropped_or_by_another_birth() -> None:
    before = Reading(0, engine(100, created_s=1.0))
    assert gained(before, Reading(5, engine(99, created_s=1.0))) is None
    assert gained(before, Reading(5, engine(500, created_s=2.0))) is None
    found = gained(before, Reading(5, engine(500, created_s=1.0)))
    assert found is not None and found.acceptance.drafts == 400
