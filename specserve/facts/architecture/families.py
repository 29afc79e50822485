"""Model types: those whose figures were compared with vLLM's own, those that are not known, and other names of both."""

from __future__ import annotations

import re
from functools import lru_cache

from specserve.errors import FactError

COMPARED = frozenset({
    "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt_oss", "mixtral",
    "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "falcon", "gpt2", "opt", "bloom", "gpt_neox", "olmo2",
    "olmo3", "granite", "cohere2", "glm4", "glm4_moe", "stablelm", "starcoder2", "qwen3_next", "mamba2", "falcon_h1",
    "nemotron_h", "lfm2", "llama4_text", "kimi_k2", "exaone4", "smollm3", "seed_oss", "ernie4_5", "hunyuan_v1_dense",
    "minimax_m2", "olmoe", "phimoe", "nemotron", "apertus", "glm4_moe_lite", "granitemoehybrid", "jamba", "ministral3",
    "gemma4_text", "qwen3_5_text", "qwen3_5_moe_text",
})  # fmt: skip
UNKNOWN = frozenset({
    "deepseek_v4", "deepseek_v41", "mimo_v2_flash", "mimo_v2", "step3p5", "kimi_linear",
    "minimax_m3", "zamba2", "hy_v4", "bailing_hybrid", "inkling", "longcat_flash", "nemotron-nas", "qwen4_exp",
    "dots3_note", "whisper", "t5", "bart", "iquest_loopcoder", "minimax", "plamo2", "rwkv",
})  # fmt: skip
"""Layers of different sizes, shared caches, two kinds of state: what the usual keys of config.json do not say."""
_WRAPPER = re.compile(r"_(?:unified|vl|omni)(?=_|$)")
"""Words for what stands around a language model that is otherwise the same."""


@lru_cache
def family(model_type: str) -> str:
    """The model type that this one is another name of, such as `gemma4_text` of `gemma4_unified_text`; else itself."""
    bare = _WRAPPER.sub("", model_type)
    names = (model_type, bare, bare.removesuffix("_text"))
    return next((name for name in names if name in COMPARED or name in UNKNOWN), model_type)


class UnknownArchitecture(FactError):
    """What a model type keeps for each request cannot be computed from its config.json."""

    def __init__(self, what: str, model_type: str, *, model: str) -> None:
        super().__init__(
            f"the {what} of model type `{model_type}` (`{model}`) is not known",
            hint="`specserve check --ask-vllm` lets the installed vLLM say what it needs",
        )
