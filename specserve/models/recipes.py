"""What the decoder layers of each model type hold beside two projections and an MLP, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_EXAONE = Recipe(norms=_POST_NORMS, qk_norm="head")
_CLASSIC = Recipe(norm_bias=True, qkv_bias=True, out_bias=True, mlp="plain", mlp_bias=True)
_QWEN2 = Recipe(qkv_bias=True)
_QWEN3 = Recipe(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head")
_OLMO = Recipe(norms=_POST_NORMS, qk_norm="full", qkv_bias="attention_bias", out_bias="attention_bias")
_LLAMA = Recipe(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")

RECIPES: Mapping[str, Recipe] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "mistral": Recipe(),
    "ministral3": Recipe(),
    "mixtral": Recipe(),
    "phi3": Recipe(),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "gemma": Recipe(),
    "gemma2": Recipe(norms=_GEMMA_NORMS),
    "gemma3_text": Recipe(norms=_GEMMA_NORMS, qk_norm="head"),
    "gemma4_text": Recipe(
        norms=_GEMMA_NORMS, qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias"
    ),
    "gpt_oss": Recipe(qkv_bias="attention_bias", out_bias="attention_bias"),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "cohere2": Recipe(norms=("input_layernorm",)),
    "glm4": Recipe(
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "post_self_attn_layernorm",
            "post_mlp_layernorm",
        ),
        qkv_bias="attention_bias",
    ),
    "glm4_moe": Recipe(qkv_bias="attention_bias"),
    "deepseek_v2": Recipe(),
    "deepseek_v3": Recipe(),
    "kimi_k2": Recipe(),
    "stablelm": Recipe(norm_bias=True, qkv_bias="use_qkv_bias"),
    "starcoder2": Recipe(
        norm_bias=True, qkv_bias="use_bias", out_bias="use_bias", mlp="plain", mlp_bias="use_bias"
    ),
    "phi": Recipe(
        ("input_layernorm",), norm_bias=True, qkv_bias=True, out_bias=True, mlp="plain", mlp_bias=True
    ),
    "gpt2": Recipe(
        ("ln_1", "ln_2"),
        norm_bias=True,
        qkv_bias=True,
        out_bias=True,
        mlp="plain",
        mlp_bias=True,
        learned_positions=0,
    ),
    "gpt_neox": _CLASSIC,
    "bloom": _CLASSIC,
    "opt": Recipe(
        ("self_attn_layer_norm", "final_layer_norm"),
        norm_bias=True,
        qkv_bias=True,
        out_bias=True,
        mlp="plain",
        mlp_bias=True,
        learned_positions=2,
    ),
    "falcon": Recipe(
        ("input_layernorm",), norm_bias=True, qkv_bias="bias", out_bias="bias", mlp="plain", mlp_bias="bias"
    ),
    "llama4_text": Recipe(),
    "exaone4": _EXAONE,
    "smollm3": Recipe(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "seed_oss": Recipe(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "ernie4_5": Recipe(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "hunyuan_v1_dense": Recipe(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head"),
    "minimax_m2": Recipe(qkv_bias="attention_bias", qk_norm="full"),
    "olmoe": Recipe(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full"),
    "phimoe": Recipe(norm_bias=True, qkv_bias="attention_bias", out_bias="attention_bias", head_bias=True),
    "nemotron": Recipe(
        norm_bias=True, qkv_bias="attention_bias", out_bias="attention_bias", mlp="plain", mlp_bias="mlp_bias"
    ),
    "apertus": Recipe(
        ("attention_layernorm", "feedforward_layernorm"),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="head",
        mlp="plain",
    ),
    "glm4_moe_lite": Recipe(),
    "granitemoehybrid": Recipe(),
    "qwen3_next": _QWEN3,
    "qwen3_5_text": _QWEN3,
    "qwen3_5_moe_text": _QWEN3,
    "falcon_h1": Recipe(("input_layernorm", "pre_ff_layernorm")),
    "nemotron_h": Recipe(("norm",), mlp="plain"),
    "mamba2": Recipe(("norm",)),
    "lfm2": Recipe(("operator_norm", "ffn_norm"), qk_norm="head"),
}
"""By model type. Checked against vLLM's own figures by the tests."""
