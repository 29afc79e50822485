"""The formula against public figures: parameter counts of published models, and what boot logs say of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specserve.memory.demand import demand
from specserve.memory.pool import Demand
from specserve.memory.situation import Settings
from specserve.models.facts import ModelFacts
from tests.memory.recordings import FOLDER

GIB = 1 << 30


def config(model_type: str, shape: tuple[int, int, int, int, int], vocab: int, **more: Any) -> dict[str, Any]:
    """config.json of a decoder: layers, hidden, inner, heads, KV heads."""
    names = (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
    )
    return {"model_type": model_type, **dict(zip(names, shape, strict=True)), "vocab_size": vocab,
            "torch_dtype": "bfloat16", **more}  # fmt: skip


PUBLISHED: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B-Instruct": config("llama", (32, 4096, 14336, 32, 8), 128256),
    "Qwen/Qwen2.5-7B-Instruct": config("qwen2", (28, 3584, 18944, 28, 4), 152064),
    "Qwen/Qwen3-8B": config("qwen3", (36, 4096, 12288, 32, 8), 151936, head_dim=128),
    "Qwen/Qwen3-14B": config("qwen3", (40, 5120, 17408, 40, 8), 151936, head_dim=128),
    "Qwen/Qwen3-30B-A3B": config("qwen3_moe", (48, 2048, 6144, 32, 4), 151936, head_dim=128, num_experts=128,
                                 num_experts_per_tok=8, moe_intermediate_size=768),
    "codellama/CodeLlama-7b-hf": config("llama", (32, 4096, 11008, 32, 32), 32016),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": config(
        "deepseek_v2", (27, 2048, 10944, 16, 16), 102400, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1408,
        first_k_dense_replace=1),
    "google/gemma-2-27b-it": config("gemma2", (46, 4608, 36864, 32, 16), 256000, head_dim=128),
    "google/gemma-2-9b-it": config("gemma2", (42, 3584, 14336, 16, 8), 256000, head_dim=256),
    "google/gemma-2-2b-it": config("gemma2", (26, 2304, 9216, 8, 4), 256000, head_dim=256),
    "google/gemma-7b": config("gemma", (28, 3072, 24576, 16, 16), 256000, head_dim=256),
    "ibm-granite/granite-3.1-8b-instruct": config("granite", (40, 4096, 12800, 32, 8), 49155,
                                                  tie_word_embeddings=True),
    "microsoft/phi-4": config("phi3", (40, 5120, 17920, 40, 10), 100352, sliding_window=None),
    "Qwen/Qwen1.5-MoE-A2.7B": config("qwen2_moe", (24, 2048, 5632, 16, 16), 151936, num_experts=60,
                                     num_experts_per_tok=4, moe_intermediate_size=1408,
                                     shared_expert_intermediate_size=5632),
}  # fmt: skip
"""From the models' cards on the Hub."""
ROWS: list[dict[str, Any]] = [
    row
    for row in map(json.loads, (FOLDER / "boot_logs.jsonl").read_text().splitlines())
    if row["model"] in PUBLISHED
]


def needed(row: dict[str, Any]) -> Demand:
    """What one boot of a log needs."""
    model = row["model"]
    facts = ModelFacts(model, "hub", {"architectures": ["x"], **PUBLISHED[model]})
    settings = Settings(
        max_model_len=row["max_model_len"],
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        tensor_parallel_size=row["tp"],
        pipeline_parallel_size=row["pp"],
        dtype="float32" if row["dtype"] == "float32" else "auto",
        kv_cache_dtype=row["kv_cache_dtype"],
        quantization="fp8" if row["quant"] else None,
    )
    return demand(facts, settings=settings)


_WHOLE = {
    row["model"]: row
    for row in ROWS
    if row["tp"] == row["pp"] == 1 and row["dtype"] != "float32" and not row["quant"]
}


@pytest.mark.parametrize("model", sorted(_WHOLE))
def test_weights_are_the_parameters_that_a_model_is_published_with(model: str) -> None:
    row = _WHOLE[model]
    assert needed(row).fullest.target_weights_bytes == pytest.approx(2 * row["params"], rel=0.0002)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["id"]) for row in ROWS if row["reported_weights_gib"] is not None]
)
def test_weights_are_what_a_boot_log_says_of_model_loading(row: dict[str, Any]) -> None:
    """Within 1 %: the log counts tables of rotary embeddings too, and rounds."""
    stages = [stage.target_weights_bytes / GIB for stage in needed(row).stages]
    assert min(abs(stage / row["reported_weights_gib"] - 1) for stage in stages) < 0.01


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["id"]) for row in ROWS if row["reported_kv_tokens"] is not None]
)
def test_tokens_are_what_a_boot_log_says_of_its_kv_cache(row: dict[str, Any]) -> None:
    tokens = needed(row).tokens(int(row["reported_kv_gib"] * GIB))
    assert tokens == pytest.approx(row["reported_kv_tokens"], rel=0.002)
