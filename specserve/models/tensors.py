"""The tensors that a checkpoint of a config.json holds: names as published, shapes, types as quantized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specserve.errors import FactError
from specserve.models.config import Fields, text_fields
from specserve.models.layertensors import RECIPES, Named, Recipe, Table, layer_tensors, per_layer_width, rows
from specserve.models.shape import GATED_DELTA, Shape, read_mtp, read_shape

_MOST_LAYERS = 2000
"""What a hostile config.json may make us list."""


_QWEN_ENCODER: Table = {
    "patch_embed.proj.weight": "hidden channels frames patch patch", "patch_embed.proj.bias": "hidden",
    "pos_embed.weight": "positions hidden", "merger.norm.weight": "hidden", "merger.norm.bias": "hidden",
    "merger.linear_fc1.weight": "merged merged", "merger.linear_fc1.bias": "merged",
    "merger.linear_fc2.weight": "out merged", "merger.linear_fc2.bias": "out",
}  # fmt: skip
_QWEN_BLOCK: Table = {
    "attn.qkv.weight": "fused hidden", "attn.qkv.bias": "fused",
    "attn.proj.weight": "hidden hidden", "attn.proj.bias": "hidden",
    "mlp.linear_fc1.weight": "width hidden", "mlp.linear_fc1.bias": "width",
    "mlp.linear_fc2.weight": "hidden width", "mlp.linear_fc2.bias": "hidden",
    "norm1.weight": "hidden", "norm1.bias": "hidden", "norm2.weight": "hidden", "norm2.bias": "hidden",
}  # fmt: skip
_GEMMA_4_ENCODER: Table = {
    "vision_tower.patch_embedder.input_proj.weight": "hidden patch",
    "vision_tower.patch_embedder.position_embedding_table": "2 positions hidden",
    "embed_vision.embedding_projection.weight": "outer hidden",
}
_GEMMA_4_BLOCK: Table = {
    "self_attn.q_proj.linear.weight": "queries hidden", "self_attn.k_proj.linear.weight": "keys hidden",
    "self_attn.v_proj.linear.weight": "keys hidden", "self_attn.o_proj.linear.weight": "hidden queries",
    "mlp.gate_proj.linear.weight": "width hidden", "mlp.up_proj.linear.weight": "width hidden",
    "mlp.down_proj.linear.weight": "hidden width",
    "self_attn.q_norm.weight": "head", "self_attn.k_norm.weight": "head",
    "input_layernorm.weight": "hidden", "post_attention_layernorm.weight": "hidden",
    "pre_feedforward_layernorm.weight": "hidden", "post_feedforward_layernorm.weight": "hidden",
}  # fmt: skip


def encoder_tensors(encoder: Fields, *, model_type: str, hidden: int) -> Iterator[Named] | None:
    """The image encoder of a `vision_config`; None for a kind that is not known.

    `model_type`: the language model's; `hidden`: its width. Source: qwen3_vl.py and gemma4_mm.py in
    vllm/model_executor/models 0.32.
    """
    if model_type in ("qwen3_5_text", "qwen3_5_moe_text"):
        return None if encoder.integers("deepstack_visual_indexes") else _qwen_encoder(encoder)
    return _gemma4_encoder(encoder, hidden) if model_type == "gemma4_text" else None


def _qwen_encoder(encoder: Fields) -> Iterator[Named]:
    size = encoder.integer("hidden_size", default=1152)
    sizes = {
        "hidden": size,
        "fused": 3 * size,
        "width": encoder.integer("intermediate_size", default=4304),
        "channels": encoder.integer("in_channels", default=3),
        "frames": encoder.integer("temporal_patch_size", default=2),
        "patch": encoder.integer("patch_size", default=16),
        "positions": encoder.integer("num_position_embeddings", default=2304),
        "merged": size * encoder.integer("spatial_merge_size", default=2) ** 2,
        "out": encoder.integer("out_hidden_size", default=3584),
    }
    yield from rows(_QWEN_ENCODER, sizes, prefix="visual.")
    for index in range(_depth(encoder, "depth", default=27)):
        yield from rows(_QWEN_BLOCK, sizes, prefix=f"visual.blocks.{index}.")


def _gemma4_encoder(encoder: Fields, hidden: int) -> Iterator[Named]:
    head = encoder.integer("head_dim", default=64)
    sizes = {
        "2": 2,
        "outer": hidden,
        "hidden": encoder.integer("hidden_size", default=768),
        "width": encoder.integer("intermediate_size", default=3072),
        "head": head,
        "queries": head * encoder.integer("num_attention_heads", default=12),
        "keys": head * encoder.integer("num_key_value_heads", default=12),
        "patch": 3 * encoder.integer("patch_size", default=16) ** 2,
        "positions": encoder.integer("position_embedding_size", default=10240),
    }
    yield from rows(_GEMMA_4_ENCODER, sizes)
    for index in range(_depth(encoder, "num_hidden_layers", default=16)):
        yield from rows(_GEMMA_4_BLOCK, sizes, prefix=f"vision_tower.encoder.layers.{index}.")


def _depth(encoder: Fields, key: str, *, default: int) -> int:
    depth = encoder.integer(key, default=default)
    if depth > _MOST_LAYERS:
        raise FactError(
            f"`{encoder.where}{key}` in config.json of `{encoder.model}` is {depth}: more than {_MOST_LAYERS}"
        )
    return depth


_TOWERS = ("audio_config", "vision_tower", "visual")
"""Encoders beside the language model that are not known."""


def expected_tensors(model: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """Name → shape of every tensor, unquantized; None for what is not known: other model types, other encoders.

    Multi-token prediction layers are left out. Raises FactError for a config.json that does not make sense.
    """
    fields, model_type = text_fields(model, config)
    recipe = RECIPES.get(model_type)
    if recipe is None or any(config.get(part) is not None for part in _TOWERS):
        return None
    shape = read_shape(model, config)
    named = dict(_tables(fields, shape, recipe))
    encoder = Fields(model, config).section("vision_config")
    if encoder is not None:
        listed = encoder_tensors(encoder, model_type=model_type, hidden=shape.hidden_size)
        if listed is None:
            return None
        named |= dict(listed)
    for index in range(len(shape.layers)):
        prefix = f"model.layers.{index}."
        named |= {prefix + name: size for name, size in layer_tensors(fields, shape, recipe, index=index)}
    return named


_TABLES: Table = {
    "model.embed_tokens.weight": "vocabulary hidden", "model.embed_positions.weight": "positions hidden",
    "word_embeddings_layernorm.weight": "embedding_norm", "word_embeddings_layernorm.bias": "embedding_norm",
    "model.embed_tokens_per_layer.weight": "narrow_rows all_narrow",
    "model.per_layer_model_projection.weight": "all_narrow hidden",
    "model.per_layer_projection_norm.weight": "narrow",
    "model.norm.weight": "norm", "model.norm.bias": "norm_bias",
    "lm_head.weight": "output hidden", "lm_head.bias": "output_bias",
}  # fmt: skip
"""What stands outside of the layers."""
_GEMMA_4_ROWS = 262144
"""Rows of Gemma 4's embeddings for each layer if config.json does not say it."""


def _tables(fields: Fields, shape: Shape, recipe: Recipe) -> Iterator[Named]:
    hidden, narrow, positions = shape.hidden_size, 0, 0
    if shape.model_type == "gemma4_text":
        narrow = per_layer_width(fields)
    if recipe.learned_positions is not None:
        positions = fields.integer("max_position_embeddings", "n_positions") + recipe.learned_positions
    output = 0 if shape.is_tied else shape.vocab_size
    sizes = {
        "hidden": hidden,
        "vocabulary": shape.vocab_size,
        "positions": positions,
        "embedding_norm": hidden * (shape.model_type == "bloom"),
        "narrow": narrow,
        "all_narrow": narrow * len(shape.layers),
        "narrow_rows": fields.integer("vocab_size_per_layer_input", default=_GEMMA_4_ROWS) if narrow else 0,
        "norm": hidden * recipe.final_norm,
        "norm_bias": hidden * (recipe.final_norm and recipe.norm_bias),
        "output": output,
        "output_bias": output * recipe.head_bias,
    }
    yield from rows(_TABLES, sizes)


Sizes = dict[str, tuple[int, ...]]
_AUXILIARY = 3
"""Hidden states of the target that an EAGLE-3 head reads, unless it says otherwise."""


def head_tensors(
    model: str, config: Mapping[str, Any], *, method: str, target_hidden_size: int
) -> Sizes | None:
    """A head's tensors by its config.json; None for a kind that is not known.

    Source: llama_eagle.py, llama_eagle3.py, qwen3_dflash.py, gemma4_mtp.py in vllm/model_executor/models 0.32.
    """
    fields, model_type = text_fields(model, config)
    recipe = RECIPES.get(model_type)
    is_assistant = method == "mtp" and config.get("model_type") == "gemma4_assistant"
    if recipe is None or not (is_assistant or method in ("eagle", "eagle3", "dflash")):
        return None
    shape = read_shape(model, config)
    sizes: Sizes = {}
    for index in range(len(shape.layers)):
        for name, size in layer_tensors(fields, shape, recipe, index=index):
            sizes[f"layers.{index}.{name}"] = _widened(name, size, method=method, index=index)
    if is_assistant:
        return sizes | dict(_around_assistant(Fields(model, config), shape))
    hidden = shape.hidden_size
    if method == "eagle":
        sizes.pop("layers.0.input_layernorm.weight", None)
        return sizes | {"fc.weight": (hidden, 2 * hidden)}
    count = _auxiliary(fields, method=method)
    width = fields.integer("target_hidden_size", default=target_hidden_size)
    sizes |= {"fc.weight": (hidden, count * width), "norm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    if method == "eagle3":
        sizes.pop("hidden_norm.weight")
        sizes |= {f"layers.{index}.hidden_norm.weight": (hidden,) for index in range(len(shape.layers))}
        rows = fields.integer("draft_vocab_size", default=shape.vocab_size)
        sizes["lm_head.weight"] = (rows, hidden)
        if rows != shape.vocab_size:
            sizes["d2t"] = (rows,)
        if brings_embeddings(config):
            sizes["embed_tokens.weight"] = (shape.vocab_size, hidden)
    else:
        sizes["mask_embedding"] = (hidden,)
    return sizes


_ASSISTANT: Table = {
    "norm.weight": "hidden", "pre_projection.weight": "hidden double", "post_projection.weight": "target hidden",
    "lm_head.weight": "vocabulary hidden", "masked_embedding.centroids.weight": "centroids hidden",
}  # fmt: skip


def _around_assistant(whole: Fields, shape: Shape) -> Iterator[Named]:
    """What stands outside of the layers of an assistant model; vLLM drops its embeddings, not its output table."""
    target = whole.integer("backbone_hidden_size")
    has_centroids = whole.flag("use_ordered_embeddings", default=False)
    sizes = {
        "hidden": shape.hidden_size,
        "vocabulary": shape.vocab_size,
        "target": target,
        "double": 2 * target,
    }
    sizes["centroids"] = whole.integer("num_centroids", default=2048) if has_centroids else 0
    yield from rows(_ASSISTANT, sizes)


def brings_embeddings(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint of an EAGLE-3 head has embeddings of its own: those of the speculators library have."""
    return "transformer_layer_config" in config


def _widened(name: str, size: tuple[int, ...], *, method: str, index: int) -> tuple[int, ...]:
    """An EAGLE-3 head's first layer reads embeddings and hidden states side by side."""
    is_reader = name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    return (size[0], 2 * size[1]) if method == "eagle3" and index == 0 and is_reader else size


def _auxiliary(fields: Fields, *, method: str) -> int:
    if method == "dflash":
        inner = fields.section("dflash_config")
        layers = inner.integers("target_layer_ids") if inner is not None else None
        return len(layers) if layers else fields.integer("num_target_layers", default=_AUXILIARY)
    inner = fields.section("eagle_config")
    layers = inner.integers("eagle_aux_hidden_state_layer_ids") if inner is not None else None
    return len(layers) if layers else fields.integer("num_aux_hidden_states", default=_AUXILIARY)


def mtp_tensors(model: str, config: Mapping[str, Any]) -> Sizes | None:
    """The multi-token prediction layers of a target; None for a family whose layers are not known."""
    fields, model_type = text_fields(model, config)
    recipe = RECIPES.get(model_type)
    if recipe is None:
        return None
    mixers = read_mtp(model, config)
    shape = read_shape(model, config)
    count, hidden = len(shape.layers), shape.hidden_size
    whole = replace(shape, layers=(*shape.layers, *((mixer,) for mixer in mixers)))
    sizes: Sizes = {}
    for place in range(len(mixers)):
        prefix = f"mtp.layers.{place}."
        sizes |= {
            prefix + name: size for name, size in layer_tensors(fields, whole, recipe, index=count + place)
        }
        sizes |= dict(_around(prefix, shape, hidden=hidden))
    if shape.model_type in GATED_DELTA:
        sizes |= {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,)}
        sizes |= {f"mtp.pre_fc_norm_{name}.weight": (hidden,) for name in ("hidden", "embedding")}
    return sizes


def _around(prefix: str, shape: Shape, *, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What DeepSeek and GLM put around each prediction layer."""
    if shape.model_type in GATED_DELTA:
        return
    yield f"{prefix}eh_proj.weight", (hidden, 2 * hidden)
    yield from ((f"{prefix}{name}.weight", (hidden,)) for name in ("enorm", "hnorm", "shared_head.norm"))
