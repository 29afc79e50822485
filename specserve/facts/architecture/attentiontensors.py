"""The tensors of one attention layer, names as published. Knows no sharding."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.recipes import Recipe
from specserve.facts.architecture.shape import Attention, Latent, Shape
from specserve.facts.architecture.states import GATED_DELTA

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
