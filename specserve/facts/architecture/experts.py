"""The tensors of one layer's MLP, or of its experts, names as published. Knows no sharding."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.errors import FactError
from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.gemma4tensors import gemma4_layer
from specserve.facts.architecture.recipes import Recipe
from specserve.facts.architecture.shape import Shape

Named = tuple[str, tuple[int, ...]]
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
            f"config.json of `{fields.model}` names {count} experts in each of {len(shape.layers)} layers"
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
