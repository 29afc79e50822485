"""How vLLM divides a model, and how long a sequence it takes: what does not divide is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specserve.vllm.limits import Ranks, context_length
from specserve.vllm.limits import problems as problems_of
from specserve.vllm.versions import installed

SOURCE = Path(__file__).parents[2] / "specserve" / "vllm" / "limits.py"
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MOE = {"num_experts": 64, "moe_intermediate_size": 512, "hidden_size": 2048}
QWEN = {**MOE, "shared_expert_intermediate_size": 512, "num_attention_heads": 16, "head_dim": 256}


def problems(text: Mapping[str, Any], *ranks: Any, **more: Any) -> list[str]:
    more.setdefault("quantization", {})
    return [item.text for item in problems_of(text, Ranks(*ranks), **more)]


@pytest.mark.parametrize(
    ("text", "ranks", "quantization", "named"),
    [
        ({"num_attention_heads": 14}, (4,), {}, "14 attention heads do not divide over 4 ranks"),
        ({"num_attention_heads": 28, "num_key_value_heads": 4}, (4,), {}, None),
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, (12,), {}, "8 KV heads neither divide over 12"),
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, (16,), {}, None),  # repeated
        ({"vocab_size": 151936}, (3,), {}, "rows of the vocabulary"),
        ({"vocab_size": 129}, (3,), {}, None),  # padded to 192
        ({"intermediate_size": 18432}, (32,), BLOCKS, "is 576 on each of 32 ranks, which cuts"),
        ({"intermediate_size": 18432}, (16,), BLOCKS, None),
        ({"intermediate_size": 18432}, (32,), {}, None),
        (QWEN, (8,), BLOCKS, "the shared expert's width of 512 is 64 on each of 8 ranks"),
        (QWEN, (4,), BLOCKS, None),
        (MOE, (8,), BLOCKS, None),  # blocks of 64: `refine_fp8_moe_block_shape`
        ({**MOE, "moe_intermediate_size": 1408}, (8,), BLOCKS, "the width of each expert of 1,408 is 176"),
        ({**MOE, "moe_intermediate_size": 1408}, (8, 1, 1, True), BLOCKS, None),  # whole experts
        ({**MOE, "moe_intermediate_size": 500}, (2, 4), {}, "500 does not divide over 8 ranks"),
        ({**MOE, "moe_intermediate_size": 500}, (4,), {}, None),
        ({**QWEN, "moe_intermediate_size": 1024}, (8, 2, 1, True), BLOCKS, None),  # the shared expert is copied
        ({**MOE, "intermediate_size": 6000}, (8,), BLOCKS, None),  # no layer is dense
        ({**MOE, "intermediate_size": 6000, "first_k_dense_replace": 1}, (8,), BLOCKS, "the MLP's width"),
        ({"intermediate_size": 2880}, (8,), {"quant_method": "mxfp4"}, None),  # padded
        ({"intermediate_size": 18432}, (32,), {**BLOCKS, "modules_to_not_convert": ["model.layers.3.mlp"]}, None),
        (QWEN, (8,), {**BLOCKS, "modules_to_not_convert": ["model.layers.0.mlp.shared_expert_gate"]}, "shared"),
        (QWEN, (8,), {**BLOCKS, "ignored_layers": ["re:.*shared_expert\\..*"]}, None),
    ],
)  # fmt: skip
def test_what_vllm_cannot_divide_is_named(
    text: Any, ranks: Any, quantization: Any, named: str | None
) -> None:
    found = problems(text, *ranks, quantization=quantization)
    assert len(found) == (named is not None) and (named or "") in " ".join(found)


@pytest.mark.vllm
def test_the_functions_that_are_named_are_in_vllm() -> None:
    vllm = installed()
    assert vllm is not None
    folders = (vllm.package / name for name in ("config", "distributed", "engine", "model_executor"))
    text = "".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py"))
    source = SOURCE.read_text(encoding="utf-8").partition("_PADDED_ROWS")[2]
    names = re.findall(r"`(\w+)[.`(]", source)
    assert len(names) >= 12 and [name for name in names if name not in text] == []


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, 4096),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 4096),
        ({"original_max_position_embeddings": 2048, "rope_scaling": {"type": "longrope"}}, 2048),
        ({"original_max_position_embeddings": 2048, "rope_scaling": {"type": "su"}}, 2048),
        ({"rope_scaling": {"type": "su", "original_max_position_embeddings": 2048}}, 4096),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
        ({"n_positions": 1024, "max_seq_len": 512}, 512),
    ],
)
def test_the_context_is_what_vllm_derives(config: dict[str, Any], length: int) -> None:
    assert context_length({"max_position_embeddings": 4096, **config}) == length


def test_a_context_that_is_not_told_is_not_known() -> None:
    assert context_length({}) is context_length({"max_position_embeddings": "4096"}) is None
