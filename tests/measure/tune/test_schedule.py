"""Schedules by batch size: what is chosen, what is merged, and where bounds lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.tune import choose as schedule
from specserve.measure.tune.choose import build, ranges, tokens_at
from tests.measure.tune.making import problems

LOADS = st.lists(st.integers(1, 300), min_size=1, max_size=7, unique=True)


@st.composite
def rates(draw: st.DrawFn) -> dict[int, dict[int, float]]:
    loads = draw(LOADS)
    most = draw(st.integers(1, 8))
    return {
        load: {tokens: draw(st.floats(1.0, 100.0)) for tokens in range(most + 1)} for load in sorted(loads)
    }


@given(rates())
def test_a_schedule_is_one_that_vllm_takes_and_gives_each_load_what_was_chosen(
    table: dict[int, dict[int, float]],
) -> None:
    found = build(table)
    assert problems(ranges(found), loads=list(table)) == []
    assert {load: tokens_at(found, load) for load in table} == found


@given(rates())
def test_no_load_loses_more_than_what_was_promised(table: dict[int, dict[int, float]]) -> None:
    found = build(table)
    most = schedule.MOST_LOSS if len(ranges(found)) > 1 else schedule.MOST_LOSS + schedule.LEAST_GAIN
    for load, tokens in found.items():
        best = max(rate for k, rate in table[load].items() if k > 0)
        assert table[load][tokens] >= best * (1 - most) - 1e-9


@given(rates())
def test_k_0_is_in_no_schedule_that_it_was_not_measured_to_win_in(table: dict[int, dict[int, float]]) -> None:
    assert 0 not in build(table).values()


@given(rates(), st.data())
def test_k_0_is_chosen_at_most_where_it_won(table: dict[int, dict[int, float]], data: st.DataObject) -> None:
    wins = data.draw(st.sets(st.sampled_from(sorted(table))))
    for load in wins:
        table[load][0] = 200.0
    found = build(table, zero_wins_at=wins)
    zeros = {load for load, tokens in found.items() if tokens == 0}
    assert zeros <= wins
    assert wins <= zeros or len(ranges(found)) == 1


@given(rates())
def test_where_no_schedule_is_followed_one_k_serves_all(table: dict[int, dict[int, float]]) -> None:
    found = build(table, may_vary=False)
    assert len(ranges(found)) == 1


def test_ranges_that_differ_by_less_than_a_percent_become_one() -> None:
    table = {1: {3: 99.5, 4: 100.0}, 2: {3: 190.0, 4: 189.0}, 8: {3: 300.0, 4: 200.0}}
    found = build(table)
    assert found == {1: 3, 2: 3, 8: 3}
    assert ranges(found) == ((1, 8, 3),)


def test_a_k_that_falls_with_the_load() -> None:
    table = {
        1: {1: 50.0, 5: 100.0},
        4: {1: 150.0, 5: 160.0},
        16: {1: 400.0, 5: 250.0},
        64: {1: 900.0, 5: 300.0},
    }
    found = build(table)
    assert found == {1: 5, 4: 5, 16: 1, 64: 1}
    assert ranges(found) == ((1, 8, 5), (9, 64, 1))


def test_k_need_not_fall_with_the_load() -> None:
    # with a mixture of experts a larger batch can make more draft tokens cheap again
    table = {1: {1: 100.0, 5: 60.0}, 8: {1: 100.0, 5: 200.0}}
    assert build(table) == {1: 1, 8: 5}


def test_a_k_whose_rate_is_not_known_at_a_load_is_not_chosen_there() -> None:
    found = build({1: {1: 10.0, 2: 20.0}, 4: {1: 30.0}, 8: {1: 40.0}})
    assert found[4] == found[8] == 1


def test_neighbouring_loads_without_room_between_them_still_get_their_own_k() -> None:
    assert ranges({1: 5, 2: 3, 3: 1}) == ((1, 1, 5), (2, 2, 3), (3, 3, 1))


def test_a_load_has_room_below_it_before_it_has_room_above() -> None:
    # a closed loop's batch is one smaller for a step, never larger
    assert ranges({2: 5, 4: 1}) == ((1, 2, 5), (3, 4, 1))
    assert ranges({1: 5, 4: 1}) == ((1, 2, 5), (3, 4, 1))
    assert ranges({8: 5, 64: 1}) == ((1, 22, 5), (23, 64, 1))  # half-way between them, by the factor


@pytest.mark.parametrize(
    "found", [[], [(2, 4, 1)], [(1, 4, 1), (6, 8, 2)], [(1, 4, 1), (5, 8, 1)], [(1, 4, -1)]]
)
def test_what_vllm_would_refuse_or_carry_on_is_a_problem(found: list[tuple[int, int, int]]) -> None:
    assert problems(found, loads=[1, 8])


def test_without_rates_there_is_no_schedule() -> None:
    with pytest.raises(ValueError, match="rates"):
        build({})
