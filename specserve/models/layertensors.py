"""What one decoder layer of each model type holds: recipes as data, and tensors with their names as published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from specserve.errors import FactError
from specserve.models.config import Fields
from specserve.models.shape import GATED_DELTA, Attention, Latent, Shape, State

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


Named = tuple[str, tuple[int, ...]]


def attention_tensors(
    fields: Fields, shape: Shape, recipe: Recipe, mixer: Attention | Latent
) -> Iterator[Named]:
    """Projections, their biases, norms of queries and keys, sinks."""
    if isinstance(mixer, Latent):
        yield from _latent(fields, shape, mixer)
        return
    hidden, queries, keys = shape.hidden_size, mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    has_gate = shape.model_type in GATED_DELTA and fields.flag("attn_output_gate", default=True)
    rows = {"q_proj": queries * 2 if has_gate else queries}  # a gate beside each query
    if not mixer.is_shared:  # Gemma 4's keys may be its values: vLLM holds both all the same
        rows |= {"k_proj": keys, "v_proj": mixer.kv_heads * mixer.head_dim_v}
    for name, size in rows.items():
        yield f"self_attn.{name}.weight", (size, hidden)
        if recipe.has(recipe.qkv_bias, fields):
            yield f"self_attn.{name}.bias", (size,)
    yield "self_attn.o_proj.weight", (hidden, mixer.heads * mixer.head_dim_v)
    if recipe.has(recipe.out_bias, fields):
        yield "self_attn.o_proj.bias", (hidden,)
    if shape.model_type == "gpt_oss":
        yield "self_attn.sinks", (mixer.heads,)
    yield from _query_key_norms(fields, shape, recipe, mixer)


def _query_key_norms(fields: Fields, shape: Shape, recipe: Recipe, mixer: Attention) -> Iterator[Named]:
    wide = recipe.qk_norm
    if shape.model_type == "glm4_moe" and fields.flag("use_qk_norm", default=False):
        wide = "head"
    if wide == "head":
        names = ("q_norm",) if mixer.is_shared else ("q_norm", "k_norm")
        yield from ((f"self_attn.{name}.weight", (mixer.head_dim,)) for name in names)
    elif wide == "full":
        yield "self_attn.q_norm.weight", (mixer.heads * mixer.head_dim,)
        yield "self_attn.k_norm.weight", (mixer.kv_heads * mixer.head_dim,)


def _latent(fields: Fields, shape: Shape, mixer: Latent) -> Iterator[Named]:
    hidden, nope, value = shape.hidden_size, fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    queries = mixer.heads * (nope + mixer.rope_dim)
    rank = fields.optional("q_lora_rank", least=0)
    if rank:
        yield "self_attn.q_a_proj.weight", (rank, hidden)
        yield "self_attn.q_a_layernorm.weight", (rank,)
        yield "self_attn.q_b_proj.weight", (queries, rank)
    else:
        yield "self_attn.q_proj.weight", (queries, hidden)
    yield "self_attn.kv_a_proj_with_mqa.weight", (mixer.kv_lora_rank + mixer.rope_dim, hidden)
    yield "self_attn.kv_a_layernorm.weight", (mixer.kv_lora_rank,)
    yield "self_attn.kv_b_proj.weight", (mixer.heads * (nope + value), mixer.kv_lora_rank)
    yield "self_attn.o_proj.weight", (hidden, mixer.heads * value)


def state_tensors(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    """Projections, convolution and the few vectors of a recurrence."""
    if shape.model_type in GATED_DELTA:
        yield from _gated_delta(fields, shape, mixer)
    elif shape.model_type in ("lfm2", "lfm2_moe"):
        yield from _short_conv(fields, shape, mixer)
    elif mixer.groups:
        yield from _mamba2(fields, shape, mixer)


def _gated_delta(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    heads, value_dim, _key_dim = mixer.recurrent
    hidden, values = shape.hidden_size, heads * value_dim
    if shape.model_type == "qwen3_next":
        yield "linear_attn.in_proj_qkvz.weight", (mixer.conv_dim + values, hidden)
        yield "linear_attn.in_proj_ba.weight", (2 * heads, hidden)
    else:
        yield "linear_attn.in_proj_qkv.weight", (mixer.conv_dim, hidden)
        yield "linear_attn.in_proj_z.weight", (values, hidden)
        yield from ((f"linear_attn.in_proj_{name}.weight", (heads, hidden)) for name in "ba")
    yield "linear_attn.conv1d.weight", (mixer.conv_dim, 1, mixer.conv_kernel)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (value_dim,)
    yield "linear_attn.out_proj.weight", (hidden, values)


def _short_conv(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    yield "conv.in_proj.weight", (3 * mixer.conv_dim, shape.hidden_size)
    yield "conv.conv.weight", (mixer.conv_dim, 1, mixer.conv_kernel)
    yield "conv.out_proj.weight", (shape.hidden_size, mixer.conv_dim)
    if fields.flag("conv_bias", default=False):
        yield "conv.in_proj.bias", (3 * mixer.conv_dim,)
        yield "conv.conv.bias", (mixer.conv_dim,)
        yield "conv.out_proj.bias", (shape.hidden_size,)


def _mamba2(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    heads = mixer.recurrent[0]
    channels = mixer.conv_dim + mixer.groups * mixer.group_dim
    yield "mixer.in_proj.weight", (mixer.conv_dim + channels + heads, shape.hidden_size)
    yield "mixer.conv1d.weight", (channels, 1, mixer.conv_kernel)
    if fields.flag("use_conv_bias", default=fields.flag("mamba_conv_bias", default=True)):
        yield "mixer.conv1d.bias", (channels,)
    yield from ((f"mixer.{name}", (heads,)) for name in ("A_log", "D", "dt_bias"))
    if fields.flag("mamba_rms_norm", default=True):
        yield "mixer.norm.weight", (mixer.conv_dim,)
    yield "mixer.out_proj.weight", (shape.hidden_size, mixer.conv_dim)


_PER_LAYER = 256
"""Width of the embeddings for each layer if config.json does not say it (transformers' Gemma4TextConfig)."""
_ROWS = 262144
"""Rows of them, likewise."""


def gemma4_layer(fields: Fields, shape: Shape, *, index: int) -> Iterator[Named]:
    """The MLP of one layer, its experts, and its part of the embeddings for each layer."""
    hidden, width = shape.hidden_size, fields.integer("intermediate_size")
    first_shared = len(shape.layers) - fields.integer("num_kv_shared_layers", default=0, least=0)
    if fields.flag("use_double_wide_mlp", default=False) and index >= first_shared > 0:
        width *= 2
    yield from (("mlp.gate_proj.weight", (width, hidden)), ("mlp.up_proj.weight", (width, hidden)))
    yield "mlp.down_proj.weight", (hidden, width)
    experts = fields.optional("num_experts")
    if experts is not None:
        inner = fields.integer("moe_intermediate_size", "expert_intermediate_size")
        yield from (("router.proj.weight", (experts, hidden)), ("router.scale", (hidden,)))
        yield "router.per_expert_scale", (experts,)
        yield "experts.gate_up_proj", (experts, 2 * inner, hidden)
        yield "experts.down_proj", (experts, hidden, inner)
        norms = (
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
            "pre_feedforward_layernorm_2",
        )
        yield from ((f"{name}.weight", (hidden,)) for name in norms)
    narrow = _per_layer(fields)
    if narrow:
        yield from (
            ("per_layer_input_gate.weight", (narrow, hidden)),
            ("per_layer_projection.weight", (hidden, narrow)),
            ("post_per_layer_input_norm.weight", (hidden,)),
        )


def gemma4_tables(fields: Fields, shape: Shape) -> Iterator[Named]:
    """The embeddings for each layer, outside of the layers."""
    narrow = _per_layer(fields)
    if narrow:
        rows = fields.integer("vocab_size_per_layer_input", default=_ROWS)
        yield "model.embed_tokens_per_layer.weight", (rows, narrow * len(shape.layers))
        yield "model.per_layer_model_projection.weight", (narrow * len(shape.layers), shape.hidden_size)
        yield "model.per_layer_projection_norm.weight", (narrow,)


def assistant_tables(whole: Fields, shape: Shape) -> Iterator[Named]:
    """What stands outside of the layers of an assistant model; vLLM drops its embeddings, not its output table."""
    hidden, target = shape.hidden_size, whole.integer("backbone_hidden_size")
    yield "norm.weight", (hidden,)
    yield "pre_projection.weight", (hidden, 2 * target)
    yield "post_projection.weight", (target, hidden)
    yield "lm_head.weight", (shape.vocab_size, hidden)
    if whole.flag("use_ordered_embeddings", default=False):
        yield "masked_embedding.centroids.weight", (whole.integer("num_centroids", default=2048), hidden)


def _per_layer(fields: Fields) -> int:
    return fields.integer("hidden_size_per_layer_input", default=_PER_LAYER, least=0)


_LIKE_DEEPSEEK = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"})
"""A few dense layers first, then experts with shared ones."""
_MOST_EXPERTS = 200_000
"""Of all layers together: what a hostile config.json may make us list."""


def feed_forward(fields: Fields, shape: Shape, recipe: Recipe, *, index: int) -> Iterator[Named]:
    """What a layer has beside its attention or state."""
    if shape.model_type == "mamba2" or (shape.model_type == "nemotron_h" and shape.layers[index]):
        return
    if shape.model_type == "gemma4_text":
        yield from gemma4_layer(fields, shape, index=index)
        return
    if shape.model_type == "granitemoehybrid":
        width = fields.integer("shared_intermediate_size")
        yield "shared_mlp.input_linear.weight", (2 * width, shape.hidden_size)
        yield "shared_mlp.output_linear.weight", (shape.hidden_size, width)
        if fields.integer("num_local_experts", default=0, least=0):
            yield from _experts(fields, shape, index=index)
        return
    if experts_of(fields, shape, index=index):
        yield from _experts(fields, shape, index=index)
        return
    width = _width(fields, shape)
    if recipe.mlp == "gated":
        yield from gated("mlp.", hidden=shape.hidden_size, width=width)
        names: tuple[str, ...] = ("gate_proj", "up_proj")
    else:
        yield "mlp.fc1.weight", (width, shape.hidden_size)
        yield "mlp.fc2.weight", (shape.hidden_size, width)
        names = ("fc1",)
    if recipe.has(recipe.mlp_bias, fields):
        yield from ((f"mlp.{name}.bias", (width,)) for name in names)
        yield f"mlp.{'down_proj' if recipe.mlp == 'gated' else 'fc2'}.bias", (shape.hidden_size,)


def gated(prefix: str, *, hidden: int, width: int) -> Iterator[Named]:
    """Gate, up and down."""
    yield f"{prefix}gate_proj.weight", (width, hidden)
    yield f"{prefix}up_proj.weight", (width, hidden)
    yield f"{prefix}down_proj.weight", (hidden, width)


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
    if count == 0:
        return 0
    if count * len(shape.layers) > _MOST_EXPERTS:
        raise FactError(
            f"config.json of `{fields.model}` has {count} experts in each of {len(shape.layers)} layers, "
            "which is too many"
        )
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


def _experts(fields: Fields, shape: Shape, *, index: int) -> Iterator[Named]:
    hidden, count = shape.hidden_size, experts_of(fields, shape, index=index)
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    if shape.model_type == "gpt_oss":
        yield from _gpt_oss(hidden=hidden, count=count, width=width)
        return
    yield "mlp.gate.weight", (count, hidden)
    is_corrected = shape.model_type in ("glm4_moe", "glm4_moe_lite", "minimax_m2")
    if is_corrected or fields.text("topk_method", default="") == "noaux_tc":
        yield "mlp.gate.e_score_correction_bias", (count,)
    for expert in range(count):
        yield from gated(f"mlp.experts.{expert}.", hidden=hidden, width=width)
    shared = fields.integer("shared_expert_intermediate_size", default=0, least=0)
    if shape.model_type in _LIKE_DEEPSEEK:
        shared = fields.integer("n_shared_experts", default=0, least=0) * width
    elif shape.model_type == "llama4_text":
        shared = width
    if shared:
        yield from gated("mlp.shared_expert.", hidden=hidden, width=shared)
    if shape.model_type in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
        yield "mlp.shared_expert_gate.weight", (1, hidden)


def _gpt_oss(*, hidden: int, count: int, width: int) -> Iterator[Named]:
    yield "mlp.router.weight", (count, hidden)
    yield "mlp.router.bias", (count,)
    yield "mlp.experts.gate_up_proj", (count, hidden, 2 * width)
    yield "mlp.experts.gate_up_proj_bias", (count, 2 * width)
    yield "mlp.experts.down_proj", (count, width, hidden)
    yield "mlp.experts.down_proj_bias", (count, hidden)
