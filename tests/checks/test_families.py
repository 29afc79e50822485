"""Families of tokenizers by the names of models."""

from __future__ import annotations

import pytest

from specserve.checks.rules.pairing import tokenizer_family


@pytest.mark.parametrize(
    ("family", "models"),
    [
        ("Llama 3", "meta-llama/Llama-3.1-70B-Instruct meta-llama/Meta-Llama-3-8B amd/PARD-Llama-3.2-1B"),
        ("Llama 2", "meta-llama/Llama-2-7b-chat-hf TinyLlama/TinyLlama-1.1B JackFram/llama-68m lmsys/vicuna-7b-v1.5"),
        ("Qwen 1.5 to 3", "Qwen/Qwen1.5-7B Qwen/Qwen2-0.5B Qwen/Qwen3-8B Qwen/QwQ-32B org/DeepSeek-R1-0528-Qwen3-8B"),
        ("Qwen 3.5 and later", "Qwen/Qwen3.5-27B Qwen/Qwen3.8-27B"),
        ("Gemma 1 and 2", "google/gemma-2b google/gemma-7b-it google/gemma-2-9b"),
        ("Gemma 3 and 4", "google/gemma-3-1b-it google/gemma-4-31B-it"),
        ("Mistral", "mistralai/Mistral-7B-v0.3 mistralai/Mixtral-8x7B-v0.1 mistralai/Devstral-Small-2507"),
        ("DeepSeek", "deepseek-ai/DeepSeek-V3 jukofyork/DeepSeek-R1-DRAFT-0.6B"),
        ("OPT", "facebook/opt-6.7b facebook/opt-125m"),
        (None, "org/model Qwen/Qwen-7B huggyllama/llama-30b alamios/Qwenstral-Small"
         " deepseek-ai/DeepSeek-R1-Distill-Llama-8B deepseek-ai/DeepSeek-R1-Distill-Qwen-7B org/adopt-7b"),
    ],
)  # fmt: skip
def test_a_family_is_read_from_the_name(family: str | None, models: str) -> None:
    assert {model: tokenizer_family(model) for model in models.split()} == dict.fromkeys(
        models.split(), family
    )
