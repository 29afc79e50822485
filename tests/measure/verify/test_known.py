"""What twenty log-probabilities tell of a distribution is what the whole vocabulary tells, for every setting."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.verify.result import Sampling
from specserve.measure.verify.sampled import LEVELS, known
from specserve.measure.verify.session import Position

Whole = dict[int, float]
logits = st.lists(st.floats(-20, 12), min_size=30, max_size=80)
temperatures = st.floats(0.3, 2.0)


def logprobs(values: list[float]) -> Whole:
    total = math.log(math.fsum(math.exp(value - 12) for value in values)) + 12
    return {token: value - total for token, value in enumerate(values)}


def told(whole: Whole) -> Position:
    """What a server shows of it."""
    top = sorted(whole.items(), key=lambda item: -item[1])[:20]
    return Position(top[0][0], top[0][1], tuple(top))


def drawn(whole: Whole, sampling: Sampling) -> Whole:
    """The probabilities with which vLLM draws, of all tokens, in vLLM's order: temperature, top-k, top-p."""
    scores = {token: value / sampling.temperature for token, value in whole.items()}
    order = sorted(scores, key=lambda token: -scores[token])
    order = order[: sampling.top_k or len(order)]
    best = scores[order[0]]
    weights = {token: math.exp(scores[token] - best) for token in order}
    total, above = math.fsum(weights.values()), 0.0
    kept: Whole = {}
    for token in order:
        if kept and above / total >= sampling.top_p:
            break
        kept[token] = weights[token]
        above += weights[token]
    total = math.fsum(kept.values())
    return {token: weight / total for token, weight in kept.items()}


def holds(whole: Whole, sampling: Sampling) -> bool:
    """Compare the two; False where nothing is known."""
    here = known(told(whole), sampling)
    if here is None:
        return False
    full = drawn(whole, sampling)
    inside = math.fsum(full.get(token, 0.0) for token in here.tokens)
    for token, share in zip(here.tokens, here.probabilities, strict=True):
        assert full.get(token, 0.0) / inside == pytest.approx(share, rel=1e-6, abs=1e-9)
    assert here.beyond is not None
    for level, most in zip(LEVELS, here.beyond, strict=True):
        others = [token for token in full if token not in here.tokens and whole[token] < level]
        assert math.fsum(full[token] for token in others) <= most + 1e-9
    return True


@given(logits, temperatures)
def test_at_a_temperature_alone_it_always_is(values: list[float], temperature: float) -> None:
    assert holds(logprobs(values), Sampling(temperature))


def some(seed: int) -> tuple[random.Random, Whole]:
    """A distribution as language models have them."""
    rng = random.Random(seed)
    return rng, logprobs([rng.gauss(0, 3) for _ in range(rng.randint(30, 80))])


def test_with_top_k_it_is_or_it_says_that_it_is_not_known() -> None:
    known_ones = 0
    for seed in range(400):
        rng, whole = some(seed)
        known_ones += holds(whole, Sampling(rng.uniform(0.3, 2.0), top_k=rng.randint(1, 20)))
    assert known_ones > 200


def test_with_top_p_it_is_or_it_says_that_it_is_not_known() -> None:
    known_ones = 0
    for seed in range(400):
        rng, whole = some(seed)
        known_ones += holds(whole, Sampling(rng.uniform(0.3, 1.2), top_p=rng.uniform(0.05, 0.99)))
    assert known_ones > 200


def test_an_edge_that_rounding_may_move_is_not_known() -> None:
    whole = {token: math.log(share) for token, share in enumerate([0.5, 0.3, 0.1999, *[0.0001 / 27] * 27])}
    assert known(told(whole), Sampling(1.0, top_p=0.8)) is None
    here = known(told(whole), Sampling(1.0, top_p=0.7))
    assert here is not None and here.tokens == (0, 1) and here.beyond == (0.0,) * len(LEVELS)
    ties = {token: math.log(share) for token, share in enumerate([0.5, 0.21, 0.2, *[0.09 / 27] * 27])}
    assert known(told(ties), Sampling(1.0, top_k=2)) is None


def test_more_than_is_shown_is_not_known() -> None:
    whole = logprobs([float(value) for value in range(30)])
    position = told(whole)
    few = Position(position.token, position.logprob, position.top[:5])
    assert known(few, Sampling(1.0, top_k=6)) is None
    assert known(few, Sampling(1.0, top_k=3)) is not None


def test_logits_instead_of_logprobs_say_nothing_of_what_is_beyond() -> None:
    top = tuple((token, 5.0 - token) for token in range(20))
    here = known(Position(0, 5.0, top), Sampling(0.7))
    assert here is not None and here.beyond is None
    assert math.fsum(here.probabilities) == pytest.approx(1)
