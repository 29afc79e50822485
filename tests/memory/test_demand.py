"""Demand: from bytes to blocks, tokens and requests, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.memory.demand import demand
from specserve.memory.pool import Demand
from specserve.memory.situation import Settings, Speculative
from specserve.models.facts import ModelFacts
from tests.memory.recordings import facts_of

GIB = 1 << 30


def needed(model: str, **changes: Any) -> Demand:
    values: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    return demand(facts_of(model), settings=Settings(**{**values, **changes}))


def test_fp8_halves_the_cache() -> None:
    assert needed("llama-8b", kv_cache_dtype="fp8").tokens(10 * GIB) == 2 * needed("llama-8b").tokens(
        10 * GIB
    )


@pytest.mark.parametrize(
    ("draft_layers", "draft_heads", "tokens"),
    [(0, 0, 81_920), (16, 8, 65_536)],
    ids=["8B", "8B with a 1B draft"],
)
def test_tokens_of_ten_gib_are_those_of_vllms_planner(
    draft_layers: int, draft_heads: int, tokens: int
) -> None:
    target = facts_of("llama-8b")
    config = {**target.config, "num_hidden_layers": draft_layers, "num_key_value_heads": draft_heads or 1,
              "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 64}  # fmt: skip
    draft = ModelFacts("org/draft", "hub", config) if draft_layers else None
    settings = Settings(max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=2048)
    method = "draft_model" if draft else None
    speculative = Speculative(method, 4, draft)
    assert demand(target, speculative, settings=settings).tokens(10 * GIB) == tokens


def test_a_window_costs_what_it_keeps_and_not_the_whole_length() -> None:
    long = needed("mistral-window", max_model_len=32_768)
    assert long.blocks_per_request(32_768) == -(-(1023 + 2 * 2048) // 16) + 1


def test_states_are_the_same_for_every_length() -> None:
    state = needed("mamba2")
    assert state.blocks_per_request(10) == state.blocks_per_request(100_000) == 1
    assert state.fullest.target_kv_bytes_per_token == 0
    assert state.fullest.target_kv_bytes_fixed > 0


def test_drafted_tokens_ask_for_more_states() -> None:
    settings = Settings(max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2048)
    plain = demand(facts_of("qwen3-next"), settings=settings)
    drafted = demand(facts_of("qwen3-next"), Speculative("ngram", 3), settings=settings)
    held = [group.fixed_blocks for group in plain.groups if group.fixed_blocks]
    more = [group.fixed_blocks for group in drafted.groups if group.fixed_blocks]
    assert [number + 3 for number in held] == more


def test_a_type_of_cache_that_is_not_known_is_not_guessed() -> None:
    with pytest.raises(FactError, match="a KV cache of type `turboquant_k8v4` is not known"):
        needed("llama", kv_cache_dtype="turboquant_k8v4")


def test_a_dtype_that_vllm_does_not_know_is_an_error() -> None:
    with pytest.raises(FactError, match="`int3` is not a dtype of vLLM"):
        needed("llama", dtype="int3")


_MODELS = st.sampled_from(
    ["llama", "gemma3", "gpt-oss", "deepseek-v3", "qwen3-next", "llama4", "mistral-window"]
)


@given(_MODELS, st.integers(0, 64 * GIB), st.integers(1, 8 * GIB))
def test_more_memory_never_holds_fewer_tokens(model: str, kv_bytes: int, more: int) -> None:
    held = needed(model)
    assert held.tokens(kv_bytes) <= held.tokens(kv_bytes + more)
    assert held.largest_max_model_len(kv_bytes, limit=4096) <= held.largest_max_model_len(
        kv_bytes + more, limit=4096
    )


@given(_MODELS, st.integers(1, 64), st.integers(1, 4096))
def test_the_bytes_of_some_requests_hold_them(model: str, requests: int, tokens: int) -> None:
    held = needed(model)
    blocks = held.blocks(held.bytes_for(requests, tokens))
    assert blocks - 1 >= requests * held.blocks_per_request(tokens)


def test_a_target_named_as_its_own_mtp_draft_is_counted_once() -> None:
    target, settings = facts_of("qwen3-next"), Settings(2048, 8, 2048)
    named, own = (Speculative("mtp", 2, draft) for draft in (target, None))
    assert demand(target, named, settings=settings) == demand(target, own, settings=settings)
