"""What fits, what surely does not, what helps, what a draft costs, and what vLLM's own planner answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.hardware.accelerators import assume
from specserve.memory.estimate import MemoryEstimate, by_vllm, estimate
from specserve.memory.gpu import KvCache, kv_cache
from specserve.memory.inputs import MemoryInputs
from specserve.models.facts import ModelFacts, published
from specserve.models.sizes import Layer
from tests.memory.models import LLAMA_1B, LLAMA_8B, decoder, recorded

GIB = 2**30
VERDICTS = ["fit", "tight", "does_not_fit"]
"""From best to worst."""
TARGET, DRAFT = decoder(LLAMA_8B, "org/8b"), decoder(LLAMA_1B, "org/1b")
DRAFTING: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": 5, "draft": DRAFT}
QWEN_27B: dict[str, Any] = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17408,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
    "linear_num_value_heads": 48, "linear_num_key_heads": 16, "linear_value_head_dim": 128,
    "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "tie_word_embeddings": False,
}  # fmt: skip


def launch(machine: str = "1xH100-80GB", *, target: ModelFacts = TARGET, **more: Any) -> MemoryInputs:
    values = {"max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192, **more}
    return MemoryInputs(target, assume(machine), **values)


def judged(machine: str = "1xH100-80GB", **more: Any) -> MemoryEstimate:
    return estimate(launch(machine, **more))


def test_an_8b_model_serves_on_an_h100_as_its_boot_log_says() -> None:
    # llm-d-incubation/llm-d-planner#205: 0.19, 0.95 of 79.19 GiB: 58.11 GiB, 476,016 tokens
    found = judged(max_num_seqs=1024, gpu_memory_utilization=0.95)
    assert (found.verdict, found.basis, found.fixes) == ("fit", "headers", {})
    assert found.per_gpu_bytes.kv_cache.low < 58.11 * GIB < found.per_gpu_bytes.kv_cache.high
    assert found.kv_cache_tokens.low < 476_016 < found.kv_cache_tokens.high
    assert found.per_gpu_bytes.target_weights == pytest.approx(14.96 * GIB, rel=0.005)


def test_the_parts_of_a_gpu_add_up_to_the_budget() -> None:
    parts = judged(**DRAFTING).per_gpu_bytes
    weights = parts.target_weights + parts.draft_weights
    assert parts.kv_cache.low + parts.reserve.high + weights == pytest.approx(parts.budget, abs=4)
    assert parts.kv_cache.high + parts.reserve.low + weights == pytest.approx(parts.budget, abs=4)
    assert parts.budget == pytest.approx(0.92 * parts.total, abs=1)


def test_a_length_inside_of_the_band_is_tight() -> None:
    between = judged("1xRTX-4090-24GB", max_num_batched_tokens=2048).kv_cache_tokens
    length = int(between.low + between.high) // 2
    found = judged("1xRTX-4090-24GB", max_num_batched_tokens=2048, max_model_len=length)
    assert found.verdict == "tight"
    assert f"one request may need {length:,} tokens" in found.reason


def test_every_fix_holds() -> None:
    found = judged("2xL4-24GB", max_model_len=65536, max_num_batched_tokens=2048)
    assert found.verdict != "fit"
    assert list(found.fixes) == ["target.max_model_len", "target.tensor_parallel_size"]
    for path, value in found.fixes.items():
        more = {"max_model_len": 65536, "max_num_batched_tokens": 2048, path.partition(".")[2]: value}
        assert judged("2xL4-24GB", **more).verdict in VERDICTS[: VERDICTS.index(found.verdict)]


def test_a_draft_costs_its_weights_and_its_part_of_every_token_and_of_the_requests() -> None:
    found, alone = judged(**DRAFTING), judged()
    cost = found.draft_cost
    assert cost is not None and alone.draft_cost is None
    assert (cost.tokens, cost.tokens_without) == (found.kv_cache_tokens.high, alone.kv_cache_tokens.high)
    assert (cost.requests, cost.requests_without) == (
        found.max_concurrency.high,
        alone.max_concurrency.high,
    )
    assert 0.2 < cost.share < 0.3
    assert str(cost).startswith("23 % of the KV cache: ") and ", concurrency " in str(cost)


QWEN_32B = LLAMA_8B | {
    "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
    "num_attention_heads": 64, "vocab_size": 151936,
}  # fmt: skip
QWEN_2B = QWEN_32B | {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_a_draft_costs_what_two_public_starts_logged() -> None:
    # tomasruizt/vllm-scripts d94d714, profiling/results2: serve-32B.log, serve-sd-32b-1.7b-k3.log (January
    # 2026, H100): 61.03 and 64.24 GiB of weights, 8.54 and 5.43 GiB of KV cache, 34,992 and 15,456 tokens
    small: dict[str, Any] = {"max_model_len": 5000, "max_num_seqs": 1, "max_num_batched_tokens": 5000}
    alone: dict[str, Any] = {**small, "target": decoder(QWEN_32B), "gpu_memory_utilization": 0.9}
    draft: dict[str, Any] = {**DRAFTING, "num_speculative_tokens": 3, "draft": decoder(QWEN_2B)}
    logged: Any = (({}, 61.03, 8.54, 34_992), (draft, 64.24, 5.43, 15_456))
    for more, weights_gib, kv_gib, tokens in logged:
        found = judged(**alone, **more)
        weights = found.per_gpu_bytes.target_weights + found.per_gpu_bytes.draft_weights
        assert weights == pytest.approx(weights_gib * GIB, rel=0.001)
        assert found.kv_cache_tokens.low < tokens < found.kv_cache_tokens.high
        exact = judged(**alone, **more, kv_cache_memory_bytes=int(kv_gib * GIB))
        assert exact.kv_cache_tokens.high == pytest.approx(tokens, rel=0.005)
    cost = judged(**alone, **draft).draft_cost
    assert cost is not None and cost.share == pytest.approx(1 - 15_456 / 34_992, abs=0.02)


def test_the_layers_of_a_draft_shift_how_vllm_pads_the_groups_of_a_hybrid_model() -> None:
    # vllm-project/vllm-ascend#14314: 24 layers of attention, 69 with a state, and a draft of 5
    state, full = Layer("state", 1000), Layer("full", 1)
    page = 1008  # tokens of a block of attention, which must be as large as a state
    alone = KvCache(Counter({full: 24, state: 69})).request_bytes(16)
    drafted = KvCache(Counter({full: 24, state: 69, full._replace(is_draft=True): 5})).request_bytes(16)
    assert (alone, drafted) == (24 * page + 72 * 1000, 29 * page + 87 * 1000)  # 3 and 18 layers of padding
    other = KvCache(Counter({full: 24, Layer("full", 2, 0, True): 5})).request_bytes(16)
    assert other == (24 + 2 * 5) * 16  # one table for all


def test_a_kv_cache_with_a_size_of_its_own_is_exact_and_must_fit_beside_the_weights() -> None:
    found = judged(kv_cache_memory_bytes=4 * GIB)
    assert found.kv_cache_tokens.low == found.kv_cache_tokens.high == 32768
    assert judged(kv_cache_memory_bytes=66 * GIB).verdict == "does_not_fit"


def test_a_launch_that_leaves_nothing_for_sampling_is_tight_where_vllm_does_not_see_it() -> None:
    tight: dict[str, Any] = {"gpu_memory_utilization": 0.97, "max_num_seqs": 1024}
    assert judged(**tight).verdict == "tight"
    found = judged(**tight, **{**DRAFTING, "num_speculative_tokens": 7})
    assert found.verdict == "tight" and "drafts being verified" in found.reason


def test_blocks_for_recurrent_states_are_as_many_as_a_public_log_says() -> None:
    # vllm-project/vllm#49064: TP 2, 3.86 GiB for the KV cache, "exceeds available Mamba cache blocks (161)"
    facts = replace(decoder({**LLAMA_8B, **QWEN_27B}), config=QWEN_27B)
    more: dict[str, Any] = {"target": facts, "max_model_len": 122633, "max_num_batched_tokens": 2048}
    inputs = launch("2xRTX-5090-32GB", tensor_parallel_size=2, **more)
    assert kv_cache(inputs).state_blocks(3.86 * GIB) == 161
    few = replace(inputs, max_model_len=8192, kv_cache_memory_bytes=int(3.86 * GIB))
    found = estimate(few)
    assert found.verdict == "does_not_fit" and "need a block each" in found.reason
    assert "a block each" not in estimate(replace(few, max_num_seqs=160)).reason
    assert found.fixes["engine.max_num_seqs"] == 161


def test_an_architecture_of_another_kind_is_weighed_and_never_fits() -> None:
    config = {**LLAMA_8B, "model_type": "minimax_m3"}
    found = judged(target=replace(TARGET, config=config))
    assert (found.verdict, found.kv_cache_tokens.high) == ("unknown", 0)
    assert found.per_gpu_bytes.target_weights == judged().per_gpu_bytes.target_weights
    assert any("not known without vLLM" in note for note in found.notes)
    rough = judged(target=replace(TARGET, config={**LLAMA_8B, "model_type": "brand_new"}))
    assert rough.verdict == "fit" and any(note.startswith("rough: ") for note in rough.notes)


def test_a_model_without_headers_is_known_by_what_is_published_or_not_at_all() -> None:
    bare = ModelFacts("meta-llama/Llama-3.1-8B-Instruct", "published", LLAMA_8B)
    found = judged(target=bare)
    assert found.basis == "published"
    weights = judged().per_gpu_bytes.target_weights
    assert found.per_gpu_bytes.target_weights == pytest.approx(weights, rel=0.001)
    with pytest.raises(FactError, match=r"weights of `org/other` is not known without vLLM"):
        judged(target=replace(bare, model="org/other"))
    with pytest.raises(FactError, match=r"quantized by `awq` is not known without vLLM"):
        judged(quantization="awq")


def test_fp8_while_loading_halves_what_is_no_table() -> None:
    full, halved = judged().per_gpu_bytes, judged(quantization="fp8").per_gpu_bytes
    tables = 2 * 2 * 128256 * 4096
    assert halved.target_weights - tables == pytest.approx((full.target_weights - tables) / 2, rel=0.001)


def test_mxfp4_experts_are_padded_as_public_logs_of_gpt_oss_show() -> None:
    # vllm-project/vllm#33155: 64.38 GiB on an H100; llm-d-planner's report: 13.47 GiB
    for name, logged in (("openai/gpt-oss-120b", 64.38), ("openai/gpt-oss-20b", 13.47)):
        facts = published(name)
        assert facts is not None
        weights = estimate(launch(target=facts)).per_gpu_bytes.target_weights
        assert weights == pytest.approx(logged * GIB, rel=0.01)


@pytest.mark.parametrize("name", ["qwen3-next", "gemma3", "deepseek-v3", "gpt-oss", "nemotron-h"])
def test_more_is_never_better(name: str) -> None:
    inputs = launch(target=recorded(name), max_model_len=2048)
    kv = kv_cache(inputs)
    sizes = [kv.request_bytes(tokens) for tokens in range(16, 8192, 160)]
    assert sizes == sorted(sizes)


@given(st.integers(256, 200_000), st.integers(1, 1024), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_a_longer_context_or_less_memory_never_makes_it_fit(length: int, seqs: int, share: float) -> None:
    inputs = launch(max_model_len=length, max_num_seqs=seqs, gpu_memory_utilization=share)
    here = VERDICTS.index(estimate(inputs).verdict)
    assert VERDICTS.index(estimate(replace(inputs, max_model_len=2 * length)).verdict) >= here
    less = replace(inputs, machine=assume("1xL4-24GB"))
    assert VERDICTS.index(estimate(less).verdict) >= here


def plan(kv_gib: float, **figures: Any) -> dict[str, Any]:
    return {"kv_bytes": int(kv_gib * GIB), **figures}


def built(*plans: dict[str, Any], kind: str = "FullAttentionSpec") -> dict[str, Any]:
    return {"plans": list(plans), "target": 15 * GIB, "draft": 2 * GIB, "kv": [kind]}


def test_what_vllm_planned_stands_as_it_answers() -> None:
    low = plan(50, blocks=100, tokens=400_000, concurrency=48.8)
    high = plan(55, blocks=110, tokens=450_000, concurrency=54.9)
    before = plan(60, blocks=120, tokens=500_000, concurrency=61.0)
    inputs = launch(**DRAFTING)
    found = by_vllm(inputs, built(low, high), built(before, before))
    assert (found.verdict, found.basis) == ("fit", "vllm")
    assert (found.kv_cache_tokens.low, found.kv_cache_tokens.high) == (400_000, 450_000)
    assert (found.max_concurrency.low, found.max_concurrency.high) == (48.8, 54.9)
    assert found.per_gpu_bytes.draft_weights == 2 * GIB
    assert found.draft_cost is not None and found.draft_cost.share == pytest.approx(0.1)
    refused = plan(1, error="To serve at least one request …")
    assert by_vllm(inputs, built(refused, high)).verdict == "tight"
    assert by_vllm(inputs, built(refused, refused)).verdict == "does_not_fit"
    large = launch("2xL4-24GB", max_model_len=65536, max_num_batched_tokens=2048)
    assert by_vllm(large, built(refused, refused)).fixes == estimate(large).fixes != {}
    assert by_vllm(inputs, built(refused, high)).fixes == {}  # the estimate says that it fits
    states = by_vllm(inputs, built(low, high, kind="MambaSpec"))
    assert (states.verdict, "need a block each" in states.reason) == ("does_not_fit", True)
    with pytest.raises(ValueError, match="unpack"):
        by_vllm(inputs, built())
