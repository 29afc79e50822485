"""How long steps would have been with fewer draft tokens: against walks that know the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.measure.tune.walk import (
    Steps,
    from_counters,
    geometric,
    geometric_rate,
    steps_of,
    stitched,
)
from specserve.metrics.counters import Acceptance

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


def counters(walks: Sequence[Steps], *, tokens: int) -> Acceptance:
    steps = [took for each in walks for took in each.accepted]
    positions = tuple(sum(took >= place for took in steps) for place in range(1, tokens + 1))
    return Acceptance(len(steps), len(steps) * tokens, sum(steps), positions)


@given(texts, st.integers(1, 9))
def test_with_the_k_that_was_measured_every_estimator_says_what_was_measured(
    requests: list[list[bool]], most: int
) -> None:
    walks = [walk(text, tokens=most) for text in requests]
    measured = sum(each.tokens for each in walks) / sum(len(each.accepted) for each in walks)
    assert stitched(walks, tokens=most) == pytest.approx(measured)
    assert from_counters(counters(walks, tokens=most), tokens=most) == pytest.approx(measured)


@given(texts, st.integers(1, 9))
def test_lengths_grow_with_k_and_stay_between_one_and_k_plus_one(
    requests: list[list[bool]], most: int
) -> None:
    walks = [walk(text, tokens=most) for text in requests]
    counted = counters(walks, tokens=most)
    ordered = [stitched(walks, tokens=tokens) for tokens in range(most + 1)]
    unordered = [from_counters(counted, tokens=tokens) for tokens in range(most + 1)]
    for found in (ordered, unordered):
        assert found[0] == pytest.approx(1.0)
        assert all(value is not None and 1.0 <= value <= tokens + 1 for tokens, value in enumerate(found))
        assert all(before <= after + 1e-12 for before, after in pairwise(filter(None, found)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 9))
def test_what_counters_say_is_no_more_than_the_stitched_walk_says(seed: int, most: int) -> None:
    walks = [walk(text, tokens=most) for text in mixed_texts(seed=seed, rise=1.0, count=20)]
    counted = counters(walks, tokens=most)
    for tokens in range(1, most):
        upper, lower = stitched(walks, tokens=tokens), from_counters(counted, tokens=tokens)
        assert upper is not None and lower is not None
        assert lower <= upper * 1.005


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
            found = stitched(walks, tokens=tokens)
            assert found is not None
            assert -0.029 <= found / true_length(texts, tokens=tokens) - 1 <= 0.027


def test_counters_are_a_lower_bound_where_acceptance_varies() -> None:
    texts = mixed_texts(seed=2, rise=1.0)
    counted = counters([walk(text, tokens=7) for text in texts], tokens=7)
    for tokens in range(1, 7):
        found = from_counters(counted, tokens=tokens)
        assert found is not None
        assert found <= 1.01 * true_length(texts, tokens=tokens)


def test_the_walk_of_a_histogram_is_nearly_exact_where_k_plus_one_divides_what_was_measured() -> None:
    texts = mixed_texts(seed=3, rise=1.0)
    counted = counters([walk(text, tokens=7) for text in texts], tokens=7)
    for tokens in (1, 3):
        found = from_counters(counted, tokens=tokens)
        assert found is not None
        assert -0.03 < found / true_length(texts, tokens=tokens) - 1 <= 0.01


def test_without_ordered_steps_the_better_lower_bound_of_the_counters_is_taken() -> None:
    counted = Acceptance(100, 400, 200, (70, 60, 40, 30))
    # cut off behind two: 1 + 0.7 + 0.6; walked again: 300 tokens in 30 + 10 + 20 + 10 x 2 + 30 x 2 steps
    assert from_counters(counted, tokens=2) == pytest.approx(max(2.3, 300 / 140))
    assert from_counters(Acceptance(), tokens=2) is None


def test_per_position_rates_that_were_published_give_the_length_that_was_published() -> None:
    # MiniMax-M3 with EAGLE-3, K = 3: 76/56/43 %, mean acceptance length 2.69 to 2.75
    assert from_counters(Acceptance(100, 300, 175, (76, 56, 43)), tokens=3) == pytest.approx(2.75)


@pytest.mark.parametrize(("three", "seven"), [(2.65, 3.03), (2.24, 2.59), (2.70, 3.27)])
def test_a_geometric_guess_errs_as_published_and_so_is_only_an_estimate(three: float, seven: float) -> None:
    # gpt-oss-20b with EAGLE-3 on one B200, K = 3 and 7
    upward = geometric(geometric_rate(three, tokens=3), tokens=7) / seven - 1
    downward = geometric(geometric_rate(seven, tokens=7), tokens=3) / three - 1
    assert -0.008 <= round(upward, 3) <= 0.166
    assert -0.080 <= round(downward, 3) <= 0.005


@given(st.floats(0.0, 0.999), st.integers(1, 15))
def test_a_geometric_rate_and_its_length_are_inverse(alpha: float, tokens: int) -> None:
    assert geometric_rate(geometric(alpha, tokens=tokens), tokens=tokens) == pytest.approx(alpha, abs=1e-6)


def test_a_step_that_accepted_all_goes_on_in_the_next() -> None:
    request = Steps((4, 2), (4, 4))
    assert request.runs == (8, 7, 6, 5, 4, 3, 2, 1)
    assert request.steps_with(1) == 4
    assert request.steps_with(4) == 2


def test_a_draft_that_was_cut_short_at_the_end_counts_as_accepted_whole() -> None:
    assert Steps((4, 1), (4, 1)).steps_with(4) == 2


def test_steps_without_a_draft_stay_whatever_k_is() -> None:
    request = Steps((3,), (3,), plain=5)
    assert [request.steps_with(tokens) for tokens in (0, 1, 3)] == [9, 7, 6]
    assert request.tokens == 9


def test_steps_of_a_response_are_read_with_those_that_drafted_nothing() -> None:
    pairs = [(2, 3), (0, 3)]
    assert steps_of(pairs) == Steps((2, 0), (3, 3))
    assert steps_of(pairs, output_tokens=8) == Steps((2, 0), (3, 3), plain=3)
    assert steps_of([]) is None


@given(st.lists(st.tuples(st.integers(0, 8), st.just(8)), min_size=1, max_size=40), st.integers(0, 8))
def test_what_was_accepted_behind_the_end_of_an_answer_is_not_in_its_steps(
    pairs: list[tuple[int, int]], behind: int
) -> None:
    made = sum(took + 1 for took, _ in pairs)
    delivered = max(0, made - min(behind, pairs[-1][0]))
    found = steps_of(pairs, output_tokens=delivered + 1)
    assert found is not None
    assert (found.tokens, found.plain) == (delivered, 0)
    assert found.steps_with(8) <= len(pairs)
    assert found.accepted[:-1] == tuple(took for took, _ in pairs[:-1])


@pytest.mark.parametrize(("accepted", "drafted"), [((1,), (1, 2)), ((3,), (2,)), ((-1,), (2,))])
def test_what_vllm_cannot_have_counted_is_refused(
    accepted: tuple[int, ...], drafted: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="step"):
        Steps(accepted, drafted)
