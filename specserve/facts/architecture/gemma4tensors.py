"""What Gemma 4 holds beside attention and norms: experts next to the MLP, and embeddings for each layer.

Source: vllm/model_executor/models/gemma4.py and gemma4_mtp.py, 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator

from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.shape import Shape

Named = tuple[str, tuple[int, ...]]
_PER_LAYER = 256
"""Width of the embeddings for each layer where config.json does not say it (transformers' Gemma4TextConfig)."""
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
