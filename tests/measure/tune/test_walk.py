"""How long steps would have been with fewer draft tokens: against walks that know the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.passes import Pass, Request
from specserve.measure.bench.result import Point
from specserve.measure.tune.choose import (
    Row,
    Steps,
    acceptance_length,
    beats,
    best,
    next_schedule,
    rows,
    steps_of,
)
from specserve.measure.tune.plan import Setting
from specserve.measure.verdict import Estimate

texts = st.lists(st.lists(st.booleans(), min_size=1, max_size=60), min_size=1, max_size=8)
"""For each request, which of its tokens the draft predicts."""


def walk(text: Sequence[bool], *, tokens: int) -> Steps:
    """What vLLM would log: a step accepts predicted tokens up to K, then makes one token of its own."""
    accepted: list[int] = []
    place = 0
    while place < len(text):
        took = 0
        while took < tokens and place + took < len(text) and text[place + took]:
            took += 1
        accepted.append(took)
        place += took + 1
    return Steps(tuple(accepted), (tokens,) * len(accepted))


def true_length(requests: Sequence[Sequence[bool]], *, tokens: int) -> float:
    walks = [walk(text, tokens=tokens) for text in requests]
    return sum(each.tokens for each in walks) / sum(len(each.accepted) for each in walks)


@given(texts, st.integers(1, 9))
def test_with_the_k_that_was_measured_the_walk_says_what_was_measured(
    requests: list[list[bool]], most: int
) -> None:
    walks = [walk(text, tokens=most) for text in requests]
    measured = sum(each.tokens for each in walks) / sum(len(each.accepted) for each in walks)
    assert acceptance_length(walks, tokens=most) == pytest.approx(measured)


@given(texts, st.integers(1, 9))
def test_lengths_grow_with_k_and_stay_between_one_and_k_plus_one(
    requests: list[list[bool]], most: int
) -> None:
    walks = [walk(text, tokens=most) for text in requests]
    found = [acceptance_length(walks, tokens=tokens) for tokens in range(most + 1)]
    assert found[0] == pytest.approx(1.0)
    assert all(1.0 <= value <= tokens + 1 for tokens, value in enumerate(found))
    assert all(before <= after + 1e-12 for before, after in pairwise(found))


def mixed_texts(*, seed: int, rise: float, count: int = 200) -> list[list[bool]]:
    """Easy and hard stretches, as in code: the chance to be predicted stays for a while."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        chance, text = draw.random(), []
        for _ in range(300):
            if draw.random() < 0.05:
                chance = min(0.98, draw.random() * rise)
            text.append(draw.random() < chance)
        texts.append(text)
    return texts


@pytest.mark.parametrize("rise", [0.7, 1.0, 1.4])
def test_the_stitched_walk_errs_by_less_than_its_published_error(rise: float) -> None:
    texts = mixed_texts(seed=1, rise=rise)
    for most in (5, 7):
        walks = [walk(text, tokens=most) for text in texts]
        for tokens in range(1, most):
            found = acceptance_length(walks, tokens=tokens)
            assert -0.029 <= found / true_length(texts, tokens=tokens) - 1 <= 0.027


@pytest.mark.parametrize(
    ("request_", "steps"),
    [
        (Steps((4, 2), (4, 4)), {1: 4, 4: 2}),  # a step that accepted all goes on in the next
        (Steps((4, 1), (4, 1)), {4: 2}),  # a draft that was cut short at the end counts as accepted whole
        (Steps((3,), (3,), plain=5), {0: 9, 1: 7, 3: 6}),  # steps without a draft stay whatever K is
    ],
)
def test_the_steps_of_a_smaller_k(request_: Steps, steps: dict[int, int]) -> None:
    assert {tokens: request_.steps_with(tokens) for tokens in steps} == steps


def test_steps_of_a_response_are_read_with_those_that_drafted_nothing() -> None:
    pairs = [(2, 3), (0, 3)]
    assert steps_of(pairs, output_tokens=5) == Steps((2, 0), (3, 3))
    assert steps_of(pairs, output_tokens=8) == Steps((2, 0), (3, 3), plain=3)
    assert steps_of([], output_tokens=3) == Steps((), (), plain=2)


@given(st.lists(st.tuples(st.integers(0, 8), st.just(8)), min_size=1, max_size=40), st.integers(0, 8))
def test_what_was_accepted_behind_the_end_of_an_answer_is_not_in_its_steps(
    pairs: list[tuple[int, int]], behind: int
) -> None:
    made = sum(took + 1 for took, _ in pairs)
    delivered = max(0, made - min(behind, pairs[-1][0]))
    found = steps_of(pairs, output_tokens=delivered + 1)
    assert (found.tokens, found.plain) == (delivered, 0)
    assert found.steps_with(8) <= len(pairs)
    assert found.accepted[:-1] == tuple(took for took, _ in pairs[:-1])


def test_within_one_percent_the_smaller_k_wins() -> None:
    assert best({2: 1.791, 4: 1.8, 8: 1.795}) == 2
    assert best({2: 1.78, 4: 1.8, 8: 1.805}) == 4


EDGE = Point("code", 0.0, 5)
ELSEWHERE = Point("code", 0.0, 1)
SCHEDULE = Setting(5, 4, 2, 16)


def rounds(variant: str, tokens_per_s: Sequence[float], point: Point) -> list[Pass]:
    """One pass for each round, at this speed."""
    text = Request("p#0", ok=True, prompt_tokens=9, output_tokens=1000, ttft_s=0.1, latency_s=1.0)
    return [
        Pass(0, number, point, variant, 1000 / speed, 0.1, (text,))
        for number, speed in enumerate(tokens_per_s)
    ]


def measured(**speeds: tuple[float, float]) -> list[Pass]:
    """Of each variant its speed elsewhere and at the threshold; five rounds that vary by 1 %."""
    return [
        each
        for name, two in speeds.items()
        for point, speed in zip((ELSEWHERE, EDGE), two, strict=True)
        for each in rounds(name, [speed * (1 + 0.01 * (at % 2)) for at in range(5)], point)
    ]


@pytest.mark.parametrize(
    ("schedule", "single", "is_better"),
    [
        ((200, 160), (150, 150), True),
        ((160, 150), (160, 150), False),  # as fast as one K
        ((300, 98), (150, 98), False),  # at its threshold no faster than without speculation
        ((300, 120), (150, 150), False),  # there slower than one K
    ],
)
def test_a_schedule_beats_one_k_everywhere_and_no_speculation_at_its_threshold(
    schedule: tuple[float, float], single: tuple[float, float], is_better: bool
) -> None:
    passes = measured(baseline=(100, 100), k5=single, **{SCHEDULE.name: schedule})
    assert beats(passes, SCHEDULE, 5, [ELSEWHERE, EDGE]) == is_better


def test_the_schedule_to_try_is_the_one_that_gains_most() -> None:
    speeds = {8: (1.98, 1.2, 0.9), 4: (1.8, 1.8, 1.0), 2: (1.5, 1.5, 2.0)}
    known = [
        Row(Point("code", 0.0, load), k, 2.0, 1.0, Estimate(value, value - 0.01, value + 0.01))
        for k, at_loads in speeds.items()
        for load, value in zip((1, 4, 16), at_loads, strict=True)
    ]
    assert next_schedule(known, 4) == Setting(
        4, 15, 2, 16
    )  # 2.0 times as fast at 16; K=8 at 1 only 1.1 times
    assert next_schedule([row for row in known if row.num_speculative_tokens > 2], 4) == Setting(8, 1, 4, 16)
    assert next_schedule([row for row in known if row.num_speculative_tokens == 4], 4) is None


def test_the_cost_of_a_step_is_that_of_the_median_round() -> None:
    """One round of nine that a neighbour held up moves it by nothing."""
    calm = rounds("baseline", [100.0] * 9, EDGE) + rounds("k4", [200.0] * 9, EDGE)
    held_up = rounds("baseline", [100.0] * 9, EDGE) + rounds("k4", [200.0] * 8 + [20.0], EDGE)
    told = [replace(each, requests=(replace(each.requests[0], steps=((3, 4),) * 250),)) for each in calm]
    slow = [replace(each, requests=(replace(each.requests[0], steps=((3, 4),) * 250),)) for each in held_up]
    (one,) = (row for row in rows([EDGE], told) if row.num_speculative_tokens == 4)
    (other,) = (row for row in rows([EDGE], slow) if row.num_speculative_tokens == 4)
    assert one.step_cost == pytest.approx(other.step_cost) == pytest.approx(2.0, rel=0.01)
