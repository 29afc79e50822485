"""What a decoder layer, its encoder and its prediction layers hold: recipes by model type, tables of names and sizes.

A row of a table is the name of a tensor and its sizes by name. A size of 0 leaves the row out: biases, norms and
experts that a model does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from specserve.errors import FactError
from specserve.models.config import Fields
from specserve.models.shape import GATED_DELTA, Attention, Latent, Shape, State

Flag = bool | str
"""True, False, or the key of config.json that says so."""
Named = tuple[str, tuple[int, ...]]
Table = Mapping[str, str]


def rows(table: Table, sizes: Mapping[str, int], *, prefix: str = "") -> Iterator[Named]:
    """The tensors of a table with these sizes; those with a size of 0 are left out."""
    for name, dimensions in table.items():
        shape = tuple(sizes[dimension] for dimension in dimensions.split())
        if all(shape):
            yield prefix + name, shape


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


def _has(flag: Flag, fields: Fields) -> bool:
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

_ATTENTION: Table = {
    "q_proj.weight": "query hidden", "k_proj.weight": "key hidden", "v_proj.weight": "value hidden",
    "q_proj.bias": "query_bias", "k_proj.bias": "key_bias", "v_proj.bias": "value_bias",
    "o_proj.weight": "hidden out", "o_proj.bias": "out_bias",
    "sinks": "sinks", "q_norm.weight": "query_norm", "k_norm.weight": "key_norm",
}  # fmt: skip
_LATENT: Table = {
    "q_a_proj.weight": "query_rank hidden", "q_a_layernorm.weight": "query_rank",
    "q_b_proj.weight": "query query_rank", "q_proj.weight": "direct_query hidden",
    "kv_a_proj_with_mqa.weight": "latent hidden", "kv_a_layernorm.weight": "rank",
    "kv_b_proj.weight": "expanded rank", "o_proj.weight": "hidden value",
}  # fmt: skip
_GATED_DELTA: Table = {
    "in_proj_qkvz.weight": "fused hidden", "in_proj_ba.weight": "fused_gates hidden",
    "in_proj_qkv.weight": "plain hidden", "in_proj_z.weight": "plain_value hidden",
    "in_proj_b.weight": "plain_gates hidden", "in_proj_a.weight": "plain_gates hidden",
    "conv1d.weight": "channels 1 kernel", "A_log": "heads", "dt_bias": "heads",
    "norm.weight": "value_dim", "out_proj.weight": "hidden value",
}  # fmt: skip
_SHORT_CONV: Table = {
    "in_proj.weight": "inner hidden", "conv.weight": "channels 1 kernel", "out_proj.weight": "hidden channels",
    "in_proj.bias": "inner_bias", "conv.bias": "bias", "out_proj.bias": "bias",
}  # fmt: skip
_MAMBA_2: Table = {
    "in_proj.weight": "inner hidden", "conv1d.weight": "convolved 1 kernel", "conv1d.bias": "bias",
    "A_log": "heads", "D": "heads", "dt_bias": "heads", "norm.weight": "norm", "out_proj.weight": "hidden channels",
}  # fmt: skip
GATED: Table = {
    "gate_proj.weight": "width hidden", "up_proj.weight": "width hidden", "down_proj.weight": "hidden width",
}  # fmt: skip
_MLP: Table = {
    **GATED, "gate_proj.bias": "width_bias", "up_proj.bias": "width_bias", "down_proj.bias": "hidden_bias",
}  # fmt: skip
_PLAIN_MLP: Table = {
    "fc1.weight": "width hidden", "fc2.weight": "hidden width", "fc1.bias": "width_bias", "fc2.bias": "hidden_bias",
}  # fmt: skip
_GRANITE_MLP: Table = {"input_linear.weight": "double hidden", "output_linear.weight": "hidden width"}
_GPT_OSS: Table = {
    "router.weight": "count hidden", "router.bias": "count",
    "experts.gate_up_proj": "count hidden double", "experts.gate_up_proj_bias": "count double",
    "experts.down_proj": "count width hidden", "experts.down_proj_bias": "count hidden",
}  # fmt: skip
_GEMMA_4: Table = {
    **{f"mlp.{name}": dimensions for name, dimensions in GATED.items()},
    "router.proj.weight": "experts hidden", "router.scale": "expert_norm", "router.per_expert_scale": "experts",
    "experts.gate_up_proj": "experts double hidden", "experts.down_proj": "experts hidden inner",
    "post_feedforward_layernorm_1.weight": "expert_norm", "post_feedforward_layernorm_2.weight": "expert_norm",
    "pre_feedforward_layernorm_2.weight": "expert_norm",
    "per_layer_input_gate.weight": "narrow hidden", "per_layer_projection.weight": "hidden narrow",
    "post_per_layer_input_norm.weight": "narrow_norm",
}  # fmt: skip
_PER_LAYER = 256
"""Width of Gemma 4's embeddings for each layer if config.json does not say it (transformers' Gemma4TextConfig)."""
_LIKE_DEEPSEEK = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"})
"""A few dense layers first, then experts with shared ones."""
_MOST_EXPERTS = 200_000
"""Of all layers together: what a hostile config.json may make us list."""


def layer_tensors(fields: Fields, shape: Shape, recipe: Recipe, *, index: int) -> Iterator[Named]:
    """One decoder layer, names without their prefix: norms, what mixes tokens, and what follows it."""
    norms = recipe.norms
    if shape.model_type == "falcon" and fields.flag("new_decoder_architecture", default=False):
        norms = ("ln_attn", "ln_mlp")
    for name in norms:
        yield f"{name}.weight", (shape.hidden_size,)
        if recipe.norm_bias:
            yield f"{name}.bias", (shape.hidden_size,)
    for mixer in shape.layers[index]:
        if isinstance(mixer, Attention):
            yield from _attention(fields, shape, recipe, mixer)
        elif isinstance(mixer, Latent):
            yield from _latent(fields, shape, mixer)
        else:
            yield from _state(fields, shape, mixer)
    yield from _feed_forward(fields, shape, recipe, index=index)


def _attention(fields: Fields, shape: Shape, recipe: Recipe, mixer: Attention) -> Iterator[Named]:
    queries, norm = mixer.heads * mixer.head_dim, recipe.qk_norm
    has_gate = shape.model_type in GATED_DELTA and fields.flag("attn_output_gate", default=True)
    rows_of = {"query": queries * (2 if has_gate else 1), "key": 0, "value": 0}  # a gate beside each query
    if not mixer.is_shared:  # Gemma 4's keys may be its values: vLLM holds both all the same
        rows_of |= {"key": mixer.kv_heads * mixer.head_dim, "value": mixer.kv_heads * mixer.head_dim_v}
    if shape.model_type == "glm4_moe" and fields.flag("use_qk_norm", default=False):
        norm = "head"
    query_norm, key_norm = {"head": (mixer.head_dim,) * 2, "full": (queries, rows_of["key"]), None: (0, 0)}[
        norm
    ]
    has_bias = _has(recipe.qkv_bias, fields)
    sizes = {
        **rows_of,
        **{f"{name}_bias": size * has_bias for name, size in rows_of.items()},
        "hidden": shape.hidden_size,
        "out": mixer.heads * mixer.head_dim_v,
        "out_bias": shape.hidden_size * _has(recipe.out_bias, fields),
        "sinks": mixer.heads * (shape.model_type == "gpt_oss"),
        "query_norm": query_norm,
        "key_norm": 0 if mixer.is_shared else key_norm,
    }
    yield from rows(_ATTENTION, sizes, prefix="self_attn.")


def _latent(fields: Fields, shape: Shape, mixer: Latent) -> Iterator[Named]:
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    queries, rank = mixer.heads * (nope + mixer.rope_dim), fields.optional("q_lora_rank", least=0) or 0
    sizes = {
        "hidden": shape.hidden_size,
        "query": queries,
        "query_rank": rank,
        "direct_query": 0 if rank else queries,
        "rank": mixer.kv_lora_rank,
        "latent": mixer.kv_lora_rank + mixer.rope_dim,
        "expanded": mixer.heads * (nope + value),
        "value": mixer.heads * value,
    }
    yield from rows(_LATENT, sizes, prefix="self_attn.")


def _state(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    """Projections, convolution and the few vectors of a recurrence."""
    sizes = {"hidden": shape.hidden_size, "channels": mixer.conv_dim, "kernel": mixer.conv_kernel, "1": 1}
    if shape.model_type in GATED_DELTA:
        heads, value_dim, _key_dim = mixer.recurrent
        value, is_fused = heads * value_dim, shape.model_type == "qwen3_next"
        sizes |= {"heads": heads, "value_dim": value_dim, "value": value}
        sizes |= {"fused": (mixer.conv_dim + value) * is_fused, "fused_gates": 2 * heads * is_fused}
        sizes |= {"plain": mixer.conv_dim * (not is_fused), "plain_value": value * (not is_fused)}
        sizes["plain_gates"] = heads * (not is_fused)
        yield from rows(_GATED_DELTA, sizes, prefix="linear_attn.")
    elif shape.model_type in ("lfm2", "lfm2_moe"):
        has_bias = fields.flag("conv_bias", default=False)
        sizes |= {"inner": 3 * mixer.conv_dim, "inner_bias": 3 * mixer.conv_dim * has_bias}
        sizes["bias"] = mixer.conv_dim * has_bias
        yield from rows(_SHORT_CONV, sizes, prefix="conv.")
    elif mixer.groups:
        heads, convolved = mixer.recurrent[0], mixer.conv_dim + mixer.groups * mixer.group_dim
        has_bias = fields.flag("use_conv_bias", default=fields.flag("mamba_conv_bias", default=True))
        sizes |= {"heads": heads, "convolved": convolved, "inner": mixer.conv_dim + convolved + heads}
        sizes |= {"bias": convolved * has_bias}
        sizes["norm"] = mixer.conv_dim * fields.flag("mamba_rms_norm", default=True)
        yield from rows(_MAMBA_2, sizes, prefix="mixer.")


def _feed_forward(fields: Fields, shape: Shape, recipe: Recipe, *, index: int) -> Iterator[Named]:
    """What a layer has beside its attention or state."""
    hidden, kind = shape.hidden_size, shape.model_type
    if kind == "mamba2" or (kind == "nemotron_h" and shape.layers[index]):
        return
    if kind == "gemma4_text":
        yield from _gemma4(fields, shape, index=index)
        return
    if kind == "granitemoehybrid":
        width = fields.integer("shared_intermediate_size")
        sizes = {"hidden": hidden, "width": width, "double": 2 * width}
        yield from rows(_GRANITE_MLP, sizes, prefix="shared_mlp.")
    count = experts_of(fields, shape, index=index)
    if count:
        yield from _experts(fields, shape, count=count)
    if count or kind == "granitemoehybrid":
        return
    has_bias = _has(recipe.mlp_bias, fields)
    width = _width(fields, shape)
    sizes = {
        "hidden": hidden,
        "width": width,
        "width_bias": width * has_bias,
        "hidden_bias": hidden * has_bias,
    }
    yield from rows(_MLP if recipe.mlp == "gated" else _PLAIN_MLP, sizes, prefix="mlp.")


def per_layer_width(fields: Fields) -> int:
    """The width of Gemma 4's embeddings for each layer; 0 without them."""
    return fields.integer("hidden_size_per_layer_input", default=_PER_LAYER, least=0)


def _gemma4(fields: Fields, shape: Shape, *, index: int) -> Iterator[Named]:
    """The MLP of one layer, its experts, and its part of the embeddings for each layer."""
    hidden, width = shape.hidden_size, fields.integer("intermediate_size")
    first_shared = len(shape.layers) - fields.integer("num_kv_shared_layers", default=0, least=0)
    is_double = fields.flag("use_double_wide_mlp", default=False) and index >= first_shared > 0
    experts, narrow, inner = fields.optional("num_experts") or 0, per_layer_width(fields), 0
    if experts:
        inner = fields.integer("moe_intermediate_size", "expert_intermediate_size")
    sizes = {
        "hidden": hidden,
        "width": width * (2 if is_double else 1),
        "experts": experts,
        "inner": inner,
        "double": 2 * inner,
        "expert_norm": hidden * bool(experts),
        "narrow": narrow,
        "narrow_norm": hidden * bool(narrow),
    }
    yield from rows(_GEMMA_4, sizes)


def _width(fields: Fields, shape: Shape) -> int:
    """The MLP's inner size, by the name that the family has for it."""
    if shape.model_type == "lfm2":
        return _lfm2_width(fields)
    if shape.model_type == "llama4_text":
        return fields.integer("intermediate_size_mlp", "intermediate_size")
    if shape.model_type == "falcon":
        return fields.integer("ffn_hidden_size", default=4 * shape.hidden_size)
    return fields.integer("intermediate_size", "ffn_dim", "n_inner", default=4 * shape.hidden_size)


def _lfm2_width(fields: Fields) -> int:
    """Source: `Lfm2MLP` in model_executor/models/lfm2.py."""
    width = fields.integer("block_ff_dim", "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = 2 * width // 3
    multiplier = fields.values.get("block_ffn_dim_multiplier")
    if isinstance(multiplier, int | float) and not isinstance(multiplier, bool):
        width = int(multiplier * width)
    step = fields.integer("block_multiple_of", default=256)
    return step * -(-width // step)


def experts_of(fields: Fields, shape: Shape, *, index: int) -> int:
    """Experts of one layer; 0 for a layer with a plain MLP."""
    keys = ("num_local_experts", "n_routed_experts", "num_experts")
    count = fields.integer(*keys, default=0, least=0) if shape.model_type != "nemotron_h" else 0
    if count * len(shape.layers) > _MOST_EXPERTS:
        raise FactError(
            f"config.json of `{fields.model}` has {count} experts in each of {len(shape.layers)} layers, "
            "which is too many"
        )
    if count == 0 or shape.model_type == "granitemoehybrid":
        return count
    if shape.model_type in _LIKE_DEEPSEEK:
        first = fields.integer("first_k_dense_replace", default=0, least=0)
        every = fields.integer("moe_layer_freq", default=1)
        return count if index >= first and index % every == 0 else 0
    if shape.model_type == "llama4_text":
        step = fields.integer("interleave_moe_layer_step", default=1, least=0)
        layers = fields.integers("moe_layers")
        is_sparse = index in layers if layers is not None else step > 0 and (index + 1) % step == 0
        return count if is_sparse else 0
    step = fields.integer("decoder_sparse_step", default=1)
    dense = fields.integers("mlp_only_layers") or ()
    return count if (index + 1) % step == 0 and index not in dense else 0


def _experts(fields: Fields, shape: Shape, *, count: int) -> Iterator[Named]:
    hidden, kind = shape.hidden_size, shape.model_type
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    sizes = {"hidden": hidden, "width": width, "double": 2 * width, "count": count}
    if kind == "gpt_oss":
        yield from rows(_GPT_OSS, sizes, prefix="mlp.")
        return
    yield "mlp.gate.weight", (count, hidden)
    is_corrected = kind in ("glm4_moe", "glm4_moe_lite", "minimax_m2")
    if is_corrected or fields.text("topk_method", default="") == "noaux_tc":
        yield "mlp.gate.e_score_correction_bias", (count,)
    for expert in range(count):
        yield from rows(GATED, sizes, prefix=f"mlp.experts.{expert}.")
    shared = fields.integer("shared_expert_intermediate_size", default=0, least=0)
    if kind in _LIKE_DEEPSEEK:
        shared = fields.integer("n_shared_experts", default=0, least=0) * width
    elif kind == "llama4_text":
        shared = width
    yield from rows(GATED, {"hidden": hidden, "width": shared}, prefix="mlp.shared_expert.")
    if kind in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
        yield "mlp.shared_expert_gate.weight", (1, hidden)
