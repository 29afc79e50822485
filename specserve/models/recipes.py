"""What the decoder layers of each model type hold beside two projections and an MLP, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from specserve.models.config import Fields

Flag = bool | str
"""True, False, or the key of config.json that says so."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One family. The defaults are Llama's."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    final_norm: bool = True
    qkv_bias: Flag = False
    out_bias: Flag = False
    qk_norm: Literal["head", "full"] | None = None
    mlp: Literal["gated", "plain"] = "gated"
    mlp_bias: Flag = False
    head_bias: bool = False
    """A bias beside the rows of lm_head."""
    learned_positions: int | None = None
    """Rows of a position table beyond max_position_embeddings."""

    def has(self, flag: Flag, fields: Fields) -> bool:
        """What a flag says for one config.json."""
        return fields.flag(flag, default=False) if isinstance(flag, str) else flag


_GEMMA_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
_GLM_NORMS = (
    "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm",
)  # fmt: skip
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_PLAIN = Recipe()
_BIASED = Recipe(qkv_bias="attention_bias", out_bias="attention_bias")
_LLAMA = replace(_BIASED, mlp_bias="mlp_bias")
_QWEN2 = Recipe(qkv_bias=True)
_QWEN3 = replace(_BIASED, qk_norm="head")
_OLMO = replace(_BIASED, norms=_POST_NORMS, qk_norm="full")
_CLASSIC = Recipe(norm_bias=True, qkv_bias=True, out_bias=True, mlp="plain", mlp_bias=True)

RECIPES: Mapping[str, Recipe] = {
    **dict.fromkeys(("mistral", "ministral3", "mixtral", "phi3", "gemma", "llama4_text"), _PLAIN),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "granitemoehybrid"), _PLAIN),
    **dict.fromkeys(("llama", "granite", "smollm3"), _LLAMA),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_5_vl_text"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN3),
    **dict.fromkeys(("olmo2", "olmo3"), _OLMO),
    **dict.fromkeys(("gpt_neox", "bloom"), _CLASSIC),
    "hunyuan_v1_dense": _QWEN3,
    "gpt_oss": _BIASED,
    "gemma2": Recipe(norms=_GEMMA_NORMS),
    "gemma3_text": Recipe(norms=_GEMMA_NORMS, qk_norm="head"),
    "gemma4_text": replace(_QWEN3, norms=_GEMMA_NORMS),
    "cohere2": Recipe(norms=("input_layernorm",)),
    "glm4": Recipe(norms=_GLM_NORMS, qkv_bias="attention_bias"),
    "glm4_moe": Recipe(qkv_bias="attention_bias"),
    "stablelm": Recipe(norm_bias=True, qkv_bias="use_qkv_bias"),
    "starcoder2": replace(_CLASSIC, qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "phi": replace(_CLASSIC, norms=("input_layernorm",)),
    "gpt2": replace(_CLASSIC, norms=("ln_1", "ln_2"), learned_positions=0),
    "opt": replace(_CLASSIC, norms=("self_attn_layer_norm", "final_layer_norm"), learned_positions=2),
    "falcon": replace(
        _CLASSIC, norms=("input_layernorm",), qkv_bias="bias", out_bias="bias", mlp_bias="bias"
    ),
    "nemotron": replace(_LLAMA, norm_bias=True, mlp="plain"),
    "exaone4": Recipe(norms=_POST_NORMS, qk_norm="head"),
    "seed_oss": replace(_LLAMA, out_bias="attention_out_bias"),
    "ernie4_5": Recipe(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "minimax_m2": Recipe(qkv_bias="attention_bias", qk_norm="full"),
    "olmoe": replace(_BIASED, qk_norm="full"),
    "phimoe": replace(_BIASED, norm_bias=True, head_bias=True),
    "apertus": replace(_QWEN3, norms=("attention_layernorm", "feedforward_layernorm"), mlp="plain"),
    "falcon_h1": Recipe(norms=("input_layernorm", "pre_ff_layernorm")),
    "nemotron_h": Recipe(norms=("norm",), mlp="plain"),
    "mamba2": Recipe(norms=("norm",)),
    "lfm2": Recipe(norms=("operator_norm", "ffn_norm"), qk_norm="head"),
}
"""By model type. Checked against vLLM's own figures by the tests."""
