"""Ranks that vLLM cannot lay out, and those that it can."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import places

Load = Callable[[str], Profile]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "target: {model: ./m, tensor_parallel_size: 4}\nengine: {decode_context_parallel_size: 3}",
            "engine.decode_context_parallel_size",
        ),
        ("engine: {data_parallel_size: 4, data_parallel_size_local: 8}", "engine.data_parallel_size_local"),
        ("engine: {data_parallel_size: 4, data_parallel_hybrid_lb: true}", "engine.data_parallel_hybrid_lb"),
        ("engine: {enable_eplb: true, data_parallel_size: 2}", "engine.enable_eplb"),
        ("engine: {enable_eplb: true, enable_expert_parallel: true}", "engine.enable_eplb"),
        (
            "engine: {enable_expert_parallel: true, eplb_config: {num_redundant_experts: 32}}",
            "engine.eplb_config.num_redundant_experts",
        ),
    ],
)
def test_a_layout_that_vllm_refuses_is_named_at_its_place(profile: Load, text: str, path: str) -> None:
    assert places("SD161", profile(text)) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "target: {model: ./m, tensor_parallel_size: 8}\nengine: {decode_context_parallel_size: 8}",
        "target: {model: ./m, tensor_parallel_size: 4}"
        "\nengine: {prefill_context_parallel_size: 2, decode_context_parallel_size: 8}",
        "engine: {data_parallel_size: 4, data_parallel_size_local: 0}",
        "engine: {data_parallel_size: 32, data_parallel_size_local: 8, data_parallel_hybrid_lb: true}",
        "engine: {data_parallel_size: 4, enable_expert_parallel: true, enable_eplb: true}",
        "target: {model: ./m, tensor_parallel_size: 2}\nengine: {enable_expert_parallel: true,"
        " enable_eplb: true, eplb_config: {num_redundant_experts: 2}}",
        "engine: {enable_expert_parallel: true, eplb_config: {num_redundant_experts: 0}}",
    ],
)
def test_a_layout_that_vllm_takes_is_left_alone(profile: Load, text: str) -> None:
    assert places("SD161", profile(text)) == []
