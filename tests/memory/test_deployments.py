"""Verdicts on public deployments: what is known to serve is never refused, what cannot is always refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from specserve.diagnostics import Span
from specserve.hardware.accelerators import assume
from specserve.memory.estimate import MemoryEstimate
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile, Target
from specserve.vllm.versions import known_versions
from tests.memory.recordings import estimate
from tests.memory.test_public import config

FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
}
MXFP4: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
}  # fmt: skip


def gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return config(
        "gpt_oss", (layers, 2880, 2880, 64, 8), 201088, head_dim=64, num_local_experts=experts,
        num_experts_per_tok=4, sliding_window=128, layer_types=kinds, max_position_embeddings=131072,
        tie_word_embeddings=False, attention_bias=True, quantization_config=MXFP4,
    )  # fmt: skip


DEEPSEEK_V3 = config(
    "deepseek_v3", (61, 7168, 18432, 128, 128), 129280, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256, n_shared_experts=1, moe_intermediate_size=2048,
    first_k_dense_replace=3, num_experts_per_tok=8, max_position_embeddings=163840, quantization_config=FP8,
    tie_word_embeddings=False,
)  # fmt: skip
QWEN3_235B = config(
    "qwen3_moe", (94, 4096, 12288, 64, 4), 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
    moe_intermediate_size=1536, max_position_embeddings=40960, tie_word_embeddings=False, quantization_config=FP8,
)  # fmt: skip
GLM_AIR = config(
    "glm4_moe", (46, 4096, 10944, 96, 8), 151552, head_dim=128, n_routed_experts=128, n_shared_experts=1,
    num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1, max_position_embeddings=131072,
    tie_word_embeddings=False, attention_bias=True, quantization_config=FP8,
)  # fmt: skip
GEMMA3_27B = config(
    "gemma3_text", (62, 5376, 21504, 32, 16), 262208, head_dim=128, sliding_window=1024, sliding_window_pattern=6,
    max_position_embeddings=131072,
)  # fmt: skip
LLAMA_8B = config("llama", (32, 4096, 14336, 32, 8), 128256, max_position_embeddings=131072)
LLAMA_70B = config("llama", (80, 8192, 28672, 64, 8), 128256, max_position_embeddings=131072)
LLAMA_405B = config("llama", (126, 16384, 53248, 128, 8), 128256, max_position_embeddings=131072)
QWEN25_72B = config("qwen2", (80, 8192, 29568, 64, 8), 152064, max_position_embeddings=32768)
QWEN15_7B = config("qwen2", (32, 4096, 11008, 32, 32), 151936, max_position_embeddings=32768)
QWEN25_7B = config("qwen2", (28, 3584, 18944, 28, 4), 152064, max_position_embeddings=32768)
QWEN3_32B = config("qwen3", (64, 5120, 25600, 64, 8), 151936, head_dim=128, max_position_embeddings=40960)
MIXTRAL = config(
    "mixtral", (32, 4096, 14336, 32, 8), 32000, num_local_experts=8, num_experts_per_tok=2,
    max_position_embeddings=32768,
)  # fmt: skip
PHI4 = config("phi3", (40, 5120, 17920, 40, 10), 100352, sliding_window=None, max_position_embeddings=16384)
MISTRAL = config(
    "mistral", (32, 4096, 14336, 32, 8), 32768, sliding_window=None, max_position_embeddings=32768
)


def judged(
    facts: dict[str, Any], machine: str, tensor: int, length: int | None, version: str, **engine: object
) -> MemoryEstimate:
    target = Target(
        model="org/m",
        max_model_len=length,
        tensor_parallel_size=tensor,
        dtype=str(engine.pop("dtype", "auto")),
    )
    profile = Profile("p.yaml", "p", target, engine=engine, spans={"target": Span("p.yaml")})
    model = ModelFacts("org/m", "hub", {"architectures": ["x"], **facts})
    return estimate(profile, target=model, machine=assume(machine), version=version)


SERVING: list[tuple[str, dict[str, Any], str, int, int | None, dict[str, object]]] = [
    ("Llama-3.1-70B", LLAMA_70B, "4xH100-80GB", 4, 131072, {}),
    ("Llama-3.1-70B, short", LLAMA_70B, "2xH100-80GB", 2, 8192, {"gpu_memory_utilization": 0.95}),
    ("Llama-3.1-8B on an L4", LLAMA_8B, "1xL4-24GB", 1, 8192, {}),
    ("Llama-3.1-8B on a 4090", LLAMA_8B, "1xRTX-4090-24GB", 1, 16384, {}),
    ("Qwen3-235B-A22B-FP8", QWEN3_235B, "8xH100-80GB", 8, 40960, {"enable_expert_parallel": True}),
    ("Qwen3-235B-A22B-FP8 on four", QWEN3_235B, "4xH100-80GB", 4, 40960, {}),
    ("gpt-oss-120b", gpt_oss(36, 128), "1xH100-80GB", 1, 131072, {"gpu_memory_utilization": 0.95}),
    ("gpt-oss-20b", gpt_oss(24, 32), "1xRTX-4090-24GB", 1, 131072, {}),
    ("gpt-oss-20b on 16 GB", gpt_oss(24, 32), "1xRTX-4080-16GB", 1, 8192, {"gpu_memory_utilization": 0.95}),
    ("DeepSeek-V3", DEEPSEEK_V3, "8xH200-141GB", 8, 163840, {}),
    ("DeepSeek-V3, experts", DEEPSEEK_V3, "8xH200-141GB", 8, 65536, {"enable_expert_parallel": True}),
    ("Mixtral-8x7B", MIXTRAL, "2xA100-80GB", 2, 32768, {}),
    ("Qwen2.5-72B-AWQ", QWEN25_72B | {"quantization_config": AWQ}, "2xA6000-48GB", 2, 16384, {}),
    ("Qwen2.5-72B-AWQ on one", QWEN25_72B | {"quantization_config": AWQ}, "1xA100-80GB", 1, 32768, {}),
    (
        "Qwen2.5-7B-AWQ on a T4",
        QWEN25_7B | {"quantization_config": AWQ},
        "1xT4-16GB",
        1,
        4096,
        {"dtype": "half"},
    ),
    ("GLM-4.5-Air-FP8", GLM_AIR, "2xH100-80GB", 2, 65536, {}),
    ("Gemma-3-27b", GEMMA3_27B, "1xH100-80GB", 1, 32768, {}),
    ("Qwen3-32B", QWEN3_32B, "1xA100-80GB", 1, 16384, {}),
    ("Phi-4", PHI4, "1xA6000-48GB", 1, 16384, {}),
    ("Mistral-7B", MISTRAL, "1xA10-24GB", 1, 8192, {}),
]
"""Publicly served, as vLLM's recipes, model cards and boot logs say."""
FAILING: list[tuple[str, dict[str, Any], str, int, int | None, dict[str, object]]] = [
    ("70B on one card", LLAMA_70B, "1xH100-80GB", 1, 2048, {}),
    ("70B, long, on two (vllm-project/vllm#10517)", LLAMA_70B, "2xH100-80GB", 2, 131072, {}),
    ("405B in bfloat16", LLAMA_405B, "8xH100-80GB", 8, 4096, {}),
    ("DeepSeek-V3 on 640 GB", DEEPSEEK_V3, "8xH100-80GB", 8, 4096, {}),
    ("Mixtral on one card", MIXTRAL, "1xA100-80GB", 1, 4096, {}),
    ("8B in bfloat16 on 16 GB", LLAMA_8B, "1xRTX-4080-16GB", 1, 2048, {}),
    ("7B with full heads at 32k (QwenLM/Qwen3#295)", QWEN15_7B, "1xRTX-4090-24GB", 1, 32768, {}),
    ("72B in bfloat16 on two A6000", QWEN25_72B, "2xA6000-48GB", 2, 4096, {}),
    ("half of an A100 for 70B", LLAMA_70B, "4xA100-80GB", 4, 4096, {"gpu_memory_utilization": 0.4}),
    ("gpt-oss-120b on 48 GB", gpt_oss(36, 128), "1xL40S-48GB", 1, 4096, {}),
]


KNOWN = tuple(known_versions())


def with_versions(cases: list[Any]) -> list[Any]:
    return [
        pytest.param(number, version, id=f"{case[0]}-{version}")
        for number, case in enumerate(cases)
        for version in (KNOWN[0], KNOWN[-1])
    ]


@functools.cache
def verdict_on_serving(number: int, version: str) -> str:
    _, facts, machine, tensor, length, engine = SERVING[number]
    return judged(facts, machine, tensor, length, version, **engine).verdict


@pytest.mark.parametrize(("number", "version"), with_versions(SERVING))
def test_what_is_known_to_serve_is_not_refused(number: int, version: str) -> None:
    assert verdict_on_serving(number, version) in ("fit", "tight")


@pytest.mark.parametrize(("number", "version"), with_versions(FAILING))
def test_what_cannot_serve_is_refused_for_certain(number: int, version: str) -> None:
    _, facts, machine, tensor, length, engine = FAILING[number]
    found = judged(facts, machine, tensor, length, version, **engine)
    assert (found.verdict, found.certain) == ("does_not_fit", True)


def test_most_of_what_serves_is_said_to_fit() -> None:
    fits = [verdict_on_serving(number, "0.33") == "fit" for number in range(len(SERVING))]
    assert sum(fits) >= 0.7 * len(fits)
