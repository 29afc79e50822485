"""Speedup, break-even and the best K: formulas against published tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.tune import choose

positive = st.floats(1e-4, 1e3)


@pytest.mark.parametrize(
    ("alpha", "cost", "tokens", "speedup"),
    [
        (0.5, 0.02, 4, 1.79), (0.5, 0.05, 3, 1.63), (0.5, 0.10, 2, 1.46), (0.5, 0.20, 1, 1.25),
        (0.6, 0.02, 6, 2.17), (0.6, 0.05, 4, 1.92), (0.6, 0.10, 3, 1.67), (0.6, 0.20, 2, 1.40),
        (0.7, 0.02, 8, 2.76), (0.7, 0.05, 6, 2.35), (0.7, 0.10, 4, 1.98), (0.7, 0.20, 3, 1.58),
        (0.8, 0.02, 11, 3.82), (0.8, 0.05, 8, 3.09), (0.8, 0.10, 6, 2.47), (0.8, 0.20, 4, 1.87),
        (0.9, 0.02, 19, 6.37), (0.9, 0.05, 13, 4.67), (0.9, 0.10, 10, 3.43), (0.9, 0.20, 7, 2.37),
    ],
)  # fmt: skip
def test_the_best_k_by_acceptance_and_cost(alpha: float, cost: float, tokens: int, speedup: float) -> None:
    assert choose.ideal_tokens(alpha, cost=cost) == tokens
    assert choose.ideal_speedup(alpha, tokens=tokens, cost=cost) == pytest.approx(speedup, abs=0.006)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_there_is_a_gain_exactly_where_acceptance_is_above_cost(alpha: float, cost: float) -> None:
    if alpha > cost * 1.001:
        best = choose.ideal_tokens(alpha, cost=cost)
        assert best > 0
        assert choose.ideal_speedup(alpha, tokens=best, cost=cost) >= (1 + alpha) / (1 + cost) - 1e-12
    elif alpha < cost:
        assert choose.ideal_tokens(alpha, cost=cost) == 0


def test_an_acceptance_of_97_percent_can_still_be_far_below_break_even() -> None:
    # vllm-project/vllm#39680: Qwen3.5-0.8B with MTP, K = 1: length 1.97, and 342 -> 128 tokens/s
    plain_step_s = 1 / 342
    step_s = 1.97 / 128
    assert choose.break_even(step_s, plain_step_s=plain_step_s) == pytest.approx(5.26, abs=0.01)
    assert choose.speedup(1.97, step_s=step_s, plain_step_s=plain_step_s) == pytest.approx(0.374, abs=0.001)


@given(st.floats(1, 20), positive, positive)
def test_speculation_pays_exactly_above_break_even(length: float, step_s: float, plain_s: float) -> None:
    need = choose.break_even(step_s, plain_step_s=plain_s)
    speedup = choose.speedup(length, step_s=step_s, plain_step_s=plain_s)
    assert speedup == pytest.approx(length / need)


@given(st.integers(1, 256), st.floats(1, 20), positive)
def test_rate_and_time_per_token_say_the_same(batch: int, length: float, step_s: float) -> None:
    rate = choose.tokens_per_s(batch, mean_length=length, step_s=step_s)
    assert rate * choose.time_per_token_s(length, step_s=step_s) == pytest.approx(batch)


@given(st.floats(1.0, 10.0), st.floats(0.0, 1.0))
def test_prefill_keeps_a_whole_request_from_the_speedup_of_decoding(speedup: float, share: float) -> None:
    whole = choose.whole_speedup(speedup, prefill_share=share)
    assert 1.0 - 1e-12 <= whole <= speedup + 1e-12
    assert choose.whole_speedup(speedup, prefill_share=0.0) == pytest.approx(speedup)
    assert choose.whole_speedup(speedup, prefill_share=1.0) == pytest.approx(1.0)


def test_without_prefill_a_closed_loop_makes_what_its_steps_make() -> None:
    rate = choose.closed_loop_tokens_per_s(1001, mean_length=2.5, step_s=0.05, held_up_s=0.0, concurrency=8)
    assert rate == pytest.approx(choose.tokens_per_s(8, mean_length=2.5, step_s=0.05), rel=0.01)


@given(st.floats(0.001, 1.0), st.integers(1, 32))
def test_prefill_lowers_the_rate_of_a_closed_loop(prefill_s: float, concurrency: int) -> None:
    def rate(seconds: float) -> float:
        return choose.closed_loop_tokens_per_s(
            100, mean_length=2, step_s=0.03, held_up_s=concurrency * seconds, concurrency=concurrency
        )

    assert rate(prefill_s) < rate(0.0)
    assert rate(prefill_s) <= 100 / prefill_s
