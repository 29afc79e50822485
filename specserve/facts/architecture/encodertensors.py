"""The tensors of image encoders beside a language model, names as published. Knows no sharding."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.errors import FactError
from specserve.facts.architecture.fields import Fields

Named = tuple[str, tuple[int, ...]]
_MOST_LAYERS = 2000
"""What a hostile config.json may make us list."""


def encoder_tensors(encoder: Fields, *, model_type: str, hidden: int) -> Iterator[Named] | None:
    """The image encoder of a `vision_config`; None for a kind that is not known.

    `model_type`: the language model's; `hidden`: its width. Source: qwen3_vl.py and gemma4_mm.py in
    vllm/model_executor/models 0.32.
    """
    if model_type in ("qwen3_5_text", "qwen3_5_moe_text"):
        return None if encoder.integers("deepstack_visual_indexes") else _qwen(encoder)
    return _gemma4(encoder, hidden) if model_type == "gemma4_text" else None


def _qwen(encoder: Fields) -> Iterator[Named]:
    size = encoder.integer("hidden_size", default=1152)
    inner = encoder.integer("intermediate_size", default=4304)
    patch = encoder.integer("patch_size", default=16)
    frames = encoder.integer("temporal_patch_size", default=2)
    merged = size * encoder.integer("spatial_merge_size", default=2) ** 2
    yield (
        "visual.patch_embed.proj.weight",
        (size, encoder.integer("in_channels", default=3), frames, patch, patch),
    )
    yield "visual.patch_embed.proj.bias", (size,)
    yield "visual.pos_embed.weight", (encoder.integer("num_position_embeddings", default=2304), size)
    for index in range(_depth(encoder, "depth", default=27)):
        block = f"visual.blocks.{index}."
        yield from _with_bias(f"{block}attn.qkv", 3 * size, size)
        yield from _with_bias(f"{block}attn.proj", size, size)
        yield from _with_bias(f"{block}mlp.linear_fc1", inner, size)
        yield from _with_bias(f"{block}mlp.linear_fc2", size, inner)
        for norm in ("norm1", "norm2"):
            yield from ((f"{block}{norm}.{part}", (size,)) for part in ("weight", "bias"))
    yield from ((f"visual.merger.norm.{part}", (size,)) for part in ("weight", "bias"))
    yield from _with_bias("visual.merger.linear_fc1", merged, merged)
    yield from _with_bias(
        "visual.merger.linear_fc2", encoder.integer("out_hidden_size", default=3584), merged
    )


def _depth(encoder: Fields, key: str, *, default: int) -> int:
    depth = encoder.integer(key, default=default)
    if depth > _MOST_LAYERS:
        raise FactError(
            f"`{encoder.where}{key}` in config.json of `{encoder.model}` is {depth}: more than {_MOST_LAYERS}"
        )
    return depth


def _with_bias(name: str, rows: int, columns: int) -> Iterator[Named]:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _gemma4(encoder: Fields, hidden: int) -> Iterator[Named]:
    size = encoder.integer("hidden_size", default=768)
    inner = encoder.integer("intermediate_size", default=3072)
    head_dim = encoder.integer("head_dim", default=64)
    heads = encoder.integer("num_attention_heads", default=12)
    keys = encoder.integer("num_key_value_heads", default=12)
    patch = encoder.integer("patch_size", default=16)
    yield "vision_tower.patch_embedder.input_proj.weight", (size, 3 * patch**2)
    positions = encoder.integer("position_embedding_size", default=10240)
    yield "vision_tower.patch_embedder.position_embedding_table", (2, positions, size)
    for index in range(_depth(encoder, "num_hidden_layers", default=16)):
        block = f"vision_tower.encoder.layers.{index}."
        for name, rows, columns in (
            ("self_attn.q_proj", heads * head_dim, size), ("self_attn.k_proj", keys * head_dim, size),
            ("self_attn.v_proj", keys * head_dim, size), ("self_attn.o_proj", size, heads * head_dim),
            ("mlp.gate_proj", inner, size), ("mlp.up_proj", inner, size), ("mlp.down_proj", size, inner),
        ):  # fmt: skip
            yield f"{block}{name}.linear.weight", (rows, columns)
        yield from ((f"{block}self_attn.{name}.weight", (head_dim,)) for name in ("q_norm", "k_norm"))
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        yield from ((f"{block}{name}_layernorm.weight", (size,)) for name in norms)
    yield "embed_vision.embedding_projection.weight", (hidden, size)
