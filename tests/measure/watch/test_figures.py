"""The figures of `watch` are those that a person computes by hand from two raw scrapes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.watch.figures import (
    Reading,
    Stretch,
    WatchFigures,
    between,
    figures,
    groups_of,
    joined,
    quantiles_s,
    ratio_interval,
    request_interval,
)
from specserve.measure.watch.verdict import quantile_interval
from specserve.metrics.counters import Acceptance, Histogram
from specserve.metrics.prometheus import read
from tests.measure.watch.conftest import made

Series = Callable[..., tuple[Stretch, ...]]
DATA = Path(__file__).parents[2] / "data" / "metrics"
APART_S = 30.05  # between the two recorded readings


def raw(when: str) -> dict[str, float]:
    """The samples as they stand in the file, without any of our code."""
    found = {}
    for line in DATA.joinpath(f"demo-{when}.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'engine="0",|,?model_name="demo",?', "", name).replace("{}", "")
            found[name] = float(value)
    return found


BEFORE, AFTER = raw("before"), raw("after")


def gain(name: str) -> float:
    return AFTER[name] - BEFORE[name]


def by_hand(metric: str, share: float) -> float:
    """histogram_quantile of Prometheus' documentation, on what the buckets gained."""
    bounds = sorted(
        (float(found[1].replace("+Inf", "inf")), gain(name))
        for name in AFTER
        if (found := re.fullmatch(rf'vllm:{metric}_bucket\{{le="([^"]+)"\}}', name))
    )
    rank = share * bounds[-1][1]
    low, below = 0.0, 0.0
    for bound, upto in bounds:
        if upto >= rank:
            return low + (bound - low) * (rank - below) / (upto - below)
        low, below = bound, upto
    raise AssertionError(metric)


@pytest.fixture
def stretch() -> Stretch:
    before, now = (read(DATA.joinpath(f"demo-{when}.txt").read_text()) for when in ("before", "after"))
    found = between(Reading(0.0, before), Reading(APART_S, now))
    assert found is not None
    return found


def test_every_figure_of_a_real_server_equals_the_one_computed_by_hand(stretch: Stretch) -> None:
    seen = figures([stretch])
    drafts, accepted, drafted = (
        gain(f"vllm:spec_decode_num_{name}_total") for name in ("drafts", "accepted_tokens", "draft_tokens")
    )
    assert (drafts, accepted, drafted) == (249, 639, 996)
    assert seen.mean_acceptance_length == pytest.approx(1 + 639 / 249)
    assert seen.known.acceptance_rate == pytest.approx(639 / 996)
    positions = [
        gain(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{index}"}}')
        for index in range(4)
    ]
    assert seen.known.per_position == pytest.approx([count / drafts for count in positions])
    assert seen.known.conditional == pytest.approx(
        [count / before for count, before in zip(positions, [drafts, *positions], strict=False)]
    )
    assert seen.per_s(seen.known.drafts) == pytest.approx(249 / APART_S)
    assert seen.per_s(seen.counters.generation_tokens) == pytest.approx(
        gain("vllm:generation_tokens_total") / APART_S
    )
    assert seen.counters.prompt_tokens == gain("vllm:prompt_tokens_total")
    assert (
        seen.counters.finished_requests == gain('vllm:request_success_total{finished_reason="length"}') == 14
    )
    assert seen.counters.preemptions == 0
    assert seen.running_requests == pytest.approx(
        (BEFORE["vllm:num_requests_running"] + AFTER["vllm:num_requests_running"]) / 2
    )
    assert seen.whole.most_kv_cache_usage == max(
        table["vllm:kv_cache_usage_perc"] for table in (BEFORE, AFTER)
    )


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("ttft", "time_to_first_token_seconds"),
        ("tpot", "request_time_per_output_token_seconds"),
        ("e2e", "e2e_request_latency_seconds"),
    ],
)
def test_latencies_of_a_real_server_equal_those_computed_by_hand(
    stretch: Stretch, name: str, metric: str
) -> None:
    found = figures([stretch]).latency(name)
    assert found.count == gain(f'vllm:{metric}_bucket{{le="+Inf"}}')
    assert found.mean == pytest.approx(gain(f"vllm:{metric}_sum") / found.count)
    assert quantiles_s(found)[0] == pytest.approx(by_hand(metric, 0.5))
    assert quantiles_s(found)[1] == pytest.approx(by_hand(metric, 0.9))
    assert quantiles_s(found)[2] is None  # 14 requests say nothing of a 99th percentile


def test_without_an_interval_a_figure_of_acceptance_needs_two_hundred_drafts(stretches: Series) -> None:
    little = figures(stretches(1, drafts=199, finished=1))
    assert (little.mean_acceptance_length, little.known) == (None, Acceptance())
    assert little.per_s(little.counters.acceptance.drafts) > 0
    for enough in (stretches(1, drafts=200, finished=1), stretches(1, drafts=100, finished=5)):
        assert figures(enough).mean_acceptance_length == pytest.approx(3.3, abs=0.01)


def test_half_a_minute_of_a_real_server_has_an_interval(stretch: Stretch) -> None:
    seen = figures([stretch])  # 249 drafts of 14 requests, and no stretch to compare this one with
    low, high = seen.mean_acceptance_length_interval or (0, 0)
    assert 2.4 < low < (seen.mean_acceptance_length or 0) < high < 4.7
    assert seen.acceptance_rate_interval == pytest.approx(((low - 1) / 4, (high - 1) / 4), abs=1e-6)


def test_requests_that_go_on_and_on_are_not_taken_for_many(stretches: Series) -> None:
    # two requests that fill the window leave no end to learn from: neighbouring groups are the same requests
    assert figures(stretches(12, finished=0)).mean_acceptance_length_interval is None
    assert figures(stretches(12, finished=1)).mean_acceptance_length_interval is not None


Counted = st.tuples(st.integers(0, 60), st.lists(st.floats(0, 1), min_size=4, max_size=4))


@given(st.lists(Counted, min_size=1, max_size=15), st.integers(0, 40))
def test_every_interval_holds_its_figure_and_stays_possible(
    parts: list[tuple[int, list[float]]], finished: int
) -> None:
    seen = figures(
        tuple(
            made(5.0 * index, drafts=drafts, shares=tuple(sorted(shares, reverse=True)), finished=finished)
            for index, (drafts, shares) in enumerate(parts)
        )
    )
    length, interval = seen.mean_acceptance_length, seen.mean_acceptance_length_interval
    if interval is not None:
        assert length is not None
        assert 1 <= interval[0] <= length <= interval[1] <= 5
        assert interval[0] < interval[1]
        low, high = seen.acceptance_rate_interval or (2, 2)
        assert 0 <= low <= (seen.known.acceptance_rate or 0) <= high <= 1


@given(st.integers(20, 400), st.integers(2, 40), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_more_of_the_same_traffic_narrows_the_interval(
    drafts: int, finished: int, shares: list[float]
) -> None:
    ordered = tuple(sorted(shares, reverse=True))
    narrow, wide = (
        figures((made(drafts=times * drafts, shares=ordered, finished=times * finished),)) for times in (4, 1)
    )

    def width(seen: WatchFigures) -> float:
        low, high = seen.acceptance_rate_interval or (0, 0)
        return high - low

    assert 0 < width(narrow) <= width(wide)


def test_the_interval_of_few_requests_holds_the_truth_in_at_least_95_of_100_windows() -> None:
    # six requests with an acceptance of their own, 40 drafts each: what a minute gives on a slow server
    chance = random.Random(9)
    hits = 0
    for _ in range(500):
        drafts = accepted = 0
        positions = [0] * 4
        for _request in range(6):
            share = min(max(chance.gauss(0.6, 0.15), 0.0), 1.0)
            for _draft in range(40):
                got = next((index for index in range(4) if chance.random() >= share), 4)
                drafts, accepted = drafts + 1, accepted + got
                positions = [count + (index < got) for index, count in enumerate(positions)]
        whole = Acceptance(drafts, 4 * drafts, accepted, tuple(positions))
        low, high = request_interval(whole, lambda one: (one.accepted_tokens, one.drafts), requests=6) or (
            0.0,
            0.0,
        )
        hits += low <= 1.418 <= high  # the mean of s + s^2 + s^3 + s^4, by 200,000 draws of s
    assert hits >= 475


def test_output_that_came_without_a_draft_is_told(stretches: Series) -> None:
    assert figures(stretches(4)).undrafted_share == pytest.approx(0.0)
    # 330 tokens of 100 steps with drafts, and 110 of steps without
    assert figures(stretches(4, plain_tokens=110)).undrafted_share == pytest.approx(0.25)


def test_short_outputs_never_give_a_share_below_zero(stretches: Series) -> None:
    assert figures(stretches(4, plain_tokens=-50)).undrafted_share == 0.0


def test_a_quantile_needs_as_many_requests_as_its_share_is_rare() -> None:
    bounds = (0.1, float("inf"))
    assert quantiles_s(Histogram(bounds, (9, 0)))[1] is None
    assert quantiles_s(Histogram(bounds, (10, 0)))[1] is not None
    assert quantiles_s(Histogram(bounds, (99, 0)))[2] is None
    assert quantiles_s(Histogram(bounds, (100, 0)))[2] is not None


def interval(parts: Sequence[Stretch], request_s: float | None = None) -> tuple[float, float] | None:
    groups = groups_of(parts, request_s=request_s)
    return ratio_interval(groups, lambda group: (group.accepted_tokens, group.drafts))


def test_an_interval_needs_some_time(stretches: Series) -> None:
    assert interval(stretches(2)) is None
    assert interval(stretches(3)) is not None
    assert interval(()) is None


def test_requests_that_fill_the_window_leave_no_interval(stretches: Series) -> None:
    assert interval(stretches(12), 13.0) is not None
    assert interval(stretches(12), 14.0) is None


def test_groups_lose_nothing(stretches: Series) -> None:
    for request_s in (None, 1.0, 7.0, 30.0, 43.0):
        groups = groups_of(stretches(13), request_s=request_s)
        assert sum(group.drafts for group in groups) == 1300


def test_time_in_which_nothing_was_drafted_is_no_sample(stretches: Series) -> None:
    quiet = stretches(12, drafts=0)
    assert interval(quiet) is None


def test_the_interval_holds_the_truth_in_about_95_of_100_windows(stretches: Series) -> None:
    # Requests come with acceptance of their own, as in real traffic: twelve groups of five of them each.
    chance = random.Random(7)
    truth = 4 * 0.6
    hits = 0
    for _ in range(1000):
        parts: list[Stretch] = []
        for index in range(12):
            shares = [min(max(chance.gauss(0.6, 0.15), 0.0), 1.0) for _ in range(5)]
            mean = sum(shares) / len(shares)
            parts += stretches(1, began_s=5.0 * index, drafts=1000, shares=(mean,) * 4)
        low, high = interval(parts) or (0.0, 0.0)
        hits += low <= truth <= high
    assert 930 <= hits <= 970


def test_a_quantiles_interval_is_open_above_where_requests_are_few() -> None:
    bounds = (0.1, 0.5, 1.0, float("inf"))
    low, high = quantile_interval(Histogram(bounds, (30, 0, 0, 0)), 0.99) or (0, 0)
    assert (low, high) == (0.0, float("inf"))
    assert quantile_interval(Histogram(bounds, (1000, 0, 0, 0)), 0.99) == (0.0, 0.1)
    assert quantile_interval(Histogram(bounds, (900, 0, 100, 0)), 0.99) == (0.5, 1.0)
    assert quantile_interval(Histogram(bounds, (0, 0, 0, 0)), 0.99) is None


def test_joining_keeps_the_fullest_moment(stretches: Series) -> None:
    quiet, busy = stretches(1, kv_cache_usage=0.1)[0], stretches(1, began_s=5.0, kv_cache_usage=0.9)[0]
    assert joined([quiet, busy]).most_kv_cache_usage == 0.9
