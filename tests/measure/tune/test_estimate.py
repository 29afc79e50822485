"""Estimates from bytes and operations: against published runs, and as they must behave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import UsageError
from specserve.hardware.accelerators import Machine, accelerator, assume
from specserve.measure.tune.estimate import (
    StepTimes,
    Work,
    acceptance_length,
    estimate,
    read_acceptance,
    step_times,
)
from specserve.memory.inputs import MemoryInputs, memory_inputs
from specserve.models.facts import published
from specserve.profile.load import load_profile
from tests.memory.models import LLAMA_1B, LLAMA_8B, decoder

LOADS = (1, 4, 16, 64, 128)
MIXTURE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "vocab_size": 151936,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
PAIR = "{method: draft_model, model: m/1b, num_speculative_tokens: 4}"
NGRAM = "{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 4}"


def variant(
    folder: Path, *, name: str = "H100-80GB", speculation: str = PAIR, target: dict[str, Any] = LLAMA_8B
) -> MemoryInputs:
    """A target and how it speculates, by their config.json alone, on one accelerator of that name."""
    file = folder / "p.yaml"
    file.write_text(f"target: {{model: m/target, max_model_len: 8192}}\nspeculation: {speculation}\n")
    profile = load_profile(file)
    return memory_inputs(
        profile,
        target=decoder(target, "m/target"),
        machine=Machine(accelerator(name), 1),
        version="0.33",
        speculation=profile.speculation,
        draft=decoder(LLAMA_1B, "m/1b") if speculation == PAIR else None,
    )


@pytest.mark.parametrize("tokens", [1, 16, 128, 512])
def test_steps_of_llama_8b_on_an_h100_are_those_that_were_published(tmp_path: Path, tokens: int) -> None:
    found = step_times(variant(tmp_path), context_tokens=0)
    published_s = 5.886e-3 + 21.0e-6 * tokens
    assert found.model_s(found.target, tokens=tokens, batch=1) == pytest.approx(published_s, rel=0.02)


QWEN, LLAMA = "Qwen/Qwen3-32B", "meta-llama/Llama-3.3-70B-Instruct"
PUBLISHED = [  # (target, method, draft, machine, tokens of a request), K, mean acceptance length, load, speedup
    ((QWEN, "draft_model", "Qwen/Qwen3-1.7B", "1xH100-SXM-94GB", 346), 4, 2.85, 1, 1.97),
    ((QWEN, "draft_model", "Qwen/Qwen3-1.7B", "1xH100-SXM-94GB", 346), 3, 2.58, 32, 1.65),
    ((QWEN, "eagle3", "RedHatAI/Qwen3-32B-speculator.eagle3", "1xH100-SXM-94GB", 346), 3, 2.18, 8, 1.85),
    ((LLAMA, "draft_model", "meta-llama/Llama-3.2-1B-Instruct", "2xH100-80GB", 317), 5, 4.53, 1, 3.25),
    ((LLAMA, "draft_model", "meta-llama/Llama-3.2-1B-Instruct", "2xH100-80GB", 317), 5, 4.53, 16, 2.59),
]
"""Single figures of tomasruizt/vllm-scripts@d94d714, results/full-bench-data.parquet: InstructCoder, temperature 0."""


@pytest.mark.parametrize(("pair", "k", "length", "load", "speedup"), PUBLISHED)
def test_a_published_speedup_is_met_within_a_tenth_and_lies_in_the_range(
    tmp_path: Path, pair: tuple[str, str, str, str, int], k: int, length: float, load: int, speedup: float
) -> None:
    model, method, draft, machine, tokens = pair
    file, gpus = tmp_path / "p.yaml", assume(machine)
    file.write_text(
        f"target: {{model: {model}, tensor_parallel_size: {gpus.count}, max_model_len: 5000}}\n"
        f"speculation: {{method: {method}, model: {draft}, num_speculative_tokens: {k}}}\n"
    )
    profile, target = load_profile(file), published(model)
    assert target is not None and published(draft) is not None
    inputs = memory_inputs(
        profile,
        target=target,
        machine=gpus,
        version="0.33",
        speculation=profile.speculation,
        draft=published(draft),
    )
    found = step_times(inputs, context_tokens=tokens).speedup(length, load, k)
    assert found.value == pytest.approx(speedup, rel=0.1) and found.low <= speedup <= found.high


works = st.builds(
    Work,
    dense_bytes=st.floats(1e8, 2e11),
    layers=st.integers(1, 120),
    kv_bytes_per_token=st.floats(0, 1e6),
    expert_bytes=st.floats(0, 2e11),
    expert_share=st.sampled_from([1.0, 1 / 16, 1 / 128]),
)
pairs = st.builds(StepTimes, works, st.none() | works, st.floats(0, 1e4), st.just(3.35e12), st.just(9.9e14))


@given(pairs, st.integers(1, 256), st.integers(0, 15), st.floats(0.0, 1.0))
def test_a_step_takes_longer_with_more_requests_and_with_more_draft_tokens(
    found: StepTimes, batch: int, tokens: int, acceptance: float
) -> None:
    here = found.step_s(batch, tokens)
    assert here < found.step_s(batch + 1, tokens)
    assert here < found.step_s(batch, tokens + 1)
    length = acceptance_length(acceptance, tokens=tokens)
    gain = found.speedup(length, batch, tokens)
    assert gain.low <= gain.value <= gain.high <= length + 1e-9


def test_the_best_k_falls_with_the_load_of_a_dense_model_and_no_other_brings_more(tmp_path: Path) -> None:
    s = variant(tmp_path, name="H200-141GB")
    found = estimate(s, acceptance=0.7, loads=LOADS, k_max=8)
    best = [point.num_speculative_tokens for point in found.points]
    assert best == sorted(best, reverse=True) and best[0] >= 2
    for point in found.points:
        assert [each.num_speculative_tokens for each in point.by_k] == list(range(1, 9))
        assert point.speedup.value == max(1.0, *(each.speedup.value for each in point.by_k))


def test_a_mixture_reads_experts_as_tokens_reach_them(tmp_path: Path) -> None:
    work = step_times(variant(tmp_path, target=MIXTURE, speculation=NGRAM), context_tokens=0).target
    assert work.expert_share == 8 / 128
    assert work.expert_bytes > 20 * work.dense_bytes * work.expert_share


def test_a_head_reads_the_targets_output_table_in_each_of_its_steps(tmp_path: Path) -> None:
    target = {**LLAMA_8B, "num_nextn_predict_layers": 1}
    head = "{method: mtp, num_speculative_tokens: 4}"
    draft = step_times(variant(tmp_path, target=target, speculation=head), context_tokens=0).draft
    assert draft is not None
    assert draft.dense_bytes >= 2 * LLAMA_8B["vocab_size"] * LLAMA_8B["hidden_size"]


def test_loads_that_the_kv_cache_cannot_hold_are_left_out(tmp_path: Path) -> None:
    small, large = (
        estimate(variant(tmp_path, name=name), acceptance=0.7, loads=LOADS, k_max=8)
        for name in ("L4-24GB", "H200-141GB")
    )
    assert [point.concurrency for point in large.points] == list(LOADS)
    loads = [point.concurrency for point in small.points]
    assert loads and max(loads) <= small.most_requests < 128
    assert large.waiting == () and (*loads, *small.waiting) == LOADS
    with pytest.raises(UsageError, match="not even 1 requests of 1,024 tokens run at once on 1x T4-16GB"):
        estimate(variant(tmp_path, name="T4-16GB"), acceptance=0.7, loads=LOADS, k_max=8)


@given(st.floats(0.0, 1.0), st.integers(1, 64))
def test_a_length_at_a_k_gives_its_probability(probability: float, tokens: int) -> None:
    length = acceptance_length(probability, tokens=tokens)
    found = read_acceptance(f"{length!r}@{tokens}")
    assert acceptance_length(found, tokens=tokens) == pytest.approx(length)
    assert read_acceptance(repr(probability)) == probability


@pytest.mark.parametrize(
    "text",
    ["", "high", "1.2", "-0.1", "nan", "3.6@", "3.6@x", "3.6@0", "3.6@650", "3.6@4.5", "nan@4", "5.01@4", "0.65@4",
     "inf@4", f"3.6@{'9' * 5000}", "3.6@4@4"],
)  # fmt: skip
def test_what_is_neither_a_probability_nor_a_length_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        read_acceptance(text)
    assert "3.6@4" in (error.value.hint or "")
