"""Estimates from bytes and operations, against the one published fit of a running engine and the roofline's ridges."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.hardware.accelerators import accelerator, catalogue
from specserve.measure.tune.estimate import estimate_load
from specserve.measure.tune.roofline import USUAL, Roofline, Work, roofline_of

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_pair import LLAMA_8B, arm


def rates(name: str) -> tuple[float, float]:
    known = accelerator(name)
    assert known.bandwidth_bytes_per_s is not None and known.flops is not None
    return known.bandwidth_bytes_per_s, known.flops


def free_tokens(name: str) -> float:
    return Roofline(Work(1.0), None, "ngram", 0.0, *rates(name)).free_tokens


@pytest.mark.parametrize("tokens", [1, 16, 128, 512])
def test_steps_of_llama_8b_on_an_h100_are_those_that_were_published(tmp_path: Path, tokens: int) -> None:
    found = roofline_of(arm(tmp_path), context_tokens=0)
    published_s = 5.886e-3 + 21.0e-6 * tokens
    assert found.model_s(found.target, tokens=tokens, batch=1) == pytest.approx(published_s, rel=0.02)


def test_each_layer_on_several_gpus_waits_for_two_reductions(tmp_path: Path) -> None:
    found = roofline_of(arm(tmp_path), context_tokens=0)
    work = found.target
    alone, shared = (found.model_s(replace(work, gpus=gpus), tokens=1, batch=1) for gpus in (1, 4))
    assert shared - alone == pytest.approx(2 * work.layers * USUAL.all_reduce_s)


def test_a_token_of_context_costs_what_was_published(tmp_path: Path) -> None:
    none, much = (roofline_of(arm(tmp_path), context_tokens=tokens) for tokens in (0, 1_000_000))
    more = much.model_s(much.target, tokens=1, batch=1) - none.model_s(none.target, tokens=1, batch=1)
    assert more / 1e6 == pytest.approx(0.0393e-6, rel=0.35)


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        ("A100-80GB", 153), ("H100-80GB", 295), ("H200-141GB", 206), ("B200-180GB", 281), ("L40S-48GB", 419),
        ("RTX-4090-24GB", 164),
    ],
)  # fmt: skip
def test_ridges_of_the_roofline_are_those_that_were_published(name: str, ridge: float) -> None:
    assert free_tokens(name) == pytest.approx(ridge, abs=1)


@pytest.mark.parametrize(("batch", "tokens"), [(32, 5), (64, 2), (128, 0.6)])
def test_tokens_that_are_free_fall_with_the_batch(batch: int, tokens: float) -> None:
    # H200 in 16 bits: 5 at 32 requests, 2 at 64, 0 to 1 at 128
    assert free_tokens("H200-141GB") / batch - 1 == pytest.approx(tokens, abs=0.5)


def test_every_accelerator_with_rates_names_where_they_were_read() -> None:
    for known in catalogue():
        has_rates = known.bandwidth_bytes_per_s is not None and known.flops is not None
        assert has_rates == (known.rates is not None)
    assert sum(known.flops is not None for known in catalogue()) >= 25


works = st.builds(
    Work,
    dense_bytes=st.floats(1e8, 2e11),
    expert_bytes=st.floats(0, 2e11),
    experts=st.sampled_from([0, 8, 128]),
    experts_per_token=st.sampled_from([1, 8]),
    operations_per_token=st.floats(1e8, 4e11),
    kv_bytes_per_token=st.floats(0, 1e6),
    layers=st.integers(1, 120),
    gpus=st.sampled_from([1, 8]),
)


def roofline(target: Work, draft: Work | None, method: str, context: float) -> Roofline:
    return Roofline(target, draft, method, context, *rates("H100-80GB"))


pairs = st.builds(
    roofline,
    works,
    st.none() | works,
    st.sampled_from(["draft_model", "eagle3", "dflash", "ngram"]),
    st.floats(0, 1e4),
)


@given(pairs, st.integers(1, 256), st.integers(0, 15))
def test_a_step_takes_longer_with_more_requests_and_with_more_draft_tokens(
    found: Roofline, batch: int, tokens: int
) -> None:
    here = found.step_s(batch, tokens)
    assert here < found.step_s(batch + 1, tokens)
    assert here < found.step_s(batch, tokens + 1)
    assert 0 <= found.draft_s(batch, tokens) < here


@given(pairs, st.integers(1, 256), st.floats(0.0, 0.99))
def test_the_k_of_an_estimate_beats_no_speculation_or_is_0(found: Roofline, batch: int, alpha: float) -> None:
    got = estimate_load(found, alpha, batch, 8)
    assert got.speedup.low <= got.speedup.value <= got.speedup.high
    if got.num_speculative_tokens:
        assert got.speedup.value >= 1.0
        assert got.assumed_mean_acceptance_length >= got.break_even_mean_acceptance_length * 0.999
    else:
        assert got.speedup.value <= 1.0 + 1e-9
        assert got.tpot_ms == pytest.approx(got.plain_step_ms)


@given(pairs, st.integers(1, 256), st.floats(0.0, 0.99), st.integers(0, 8))
def test_no_other_k_gives_more_than_that_of_an_estimate(
    found: Roofline, batch: int, alpha: float, tokens: int
) -> None:
    got = estimate_load(found, alpha, batch, 8)
    other = found.speedup(alpha, batch, tokens)
    assert other.low <= other.value <= other.high
    assert other.value <= max(1.0, got.speedup.value) * (1 + 1e-9)


def test_the_best_k_falls_with_the_load_of_a_dense_model(tmp_path: Path) -> None:
    found = roofline_of(arm(tmp_path), context_tokens=1000)
    best = [estimate_load(found, 0.7, batch, 8).num_speculative_tokens for batch in (1, 8, 64, 256)]
    assert best == sorted(best, reverse=True)
    assert best[0] >= 2


def test_experts_are_read_as_tokens_reach_them() -> None:
    mixture = Work(1e9, 1e11, 128, 8)
    assert mixture.bytes_read(1) == pytest.approx(1e9 + 1e11 * 8 / 128)
    assert mixture.bytes_read(10_000) == pytest.approx(1.01e11)


def test_dividing_a_model_over_accelerators_divides_what_each_reads(tmp_path: Path) -> None:
    one, four = (
        roofline_of(arm(tmp_path, tensor_parallel_size=count), context_tokens=0).target.dense_bytes
        for count in (1, 4)
    )
    assert four == pytest.approx(one / 4, rel=0.01)


def test_a_head_reads_the_targets_output_table_in_each_of_its_steps(tmp_path: Path) -> None:
    target = {**LLAMA_8B, "num_nextn_predict_layers": 1}
    head = "{method: mtp, num_speculative_tokens: 4}"
    draft = roofline_of(arm(tmp_path, target=target, speculation=head), context_tokens=0).draft
    assert draft is not None
    assert draft.dense_bytes > 2 * LLAMA_8B["vocab_size"] * LLAMA_8B["hidden_size"]
