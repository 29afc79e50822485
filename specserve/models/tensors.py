"""The tensors that a checkpoint of a config.json holds: names as published, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specserve.errors import FactError
from specserve.models.architecture import read_mtp, read_shape
from specserve.models.config import Fields, text_fields
from specserve.models.layertensors import (
    RECIPES,
    Recipe,
    assistant_tables,
    attention_tensors,
    feed_forward,
    gemma4_tables,
    state_tensors,
)
from specserve.models.shape import GATED_DELTA, Attention, Latent, Shape, State

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


_TOWERS = ("audio_config", "vision_tower", "visual")
"""Encoders beside the language model that are not known."""


def expected_tensors(model: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """Name → shape of every tensor, unquantised; None for what is not known: other model types, other encoders.

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


def layer_tensors(fields: Fields, shape: Shape, recipe: Recipe, *, index: int) -> Iterator[Named]:
    """One decoder layer, names without their prefix."""
    mixers = shape.layers[index]
    for name in _norms(fields, shape, recipe):
        yield f"{name}.weight", (shape.hidden_size,)
        if recipe.norm_bias:
            yield f"{name}.bias", (shape.hidden_size,)
    for mixer in mixers:
        if isinstance(mixer, State):
            yield from state_tensors(fields, shape, mixer)
        elif isinstance(mixer, Attention | Latent):
            yield from attention_tensors(fields, shape, recipe, mixer)
    yield from feed_forward(fields, shape, recipe, index=index)


def _norms(fields: Fields, shape: Shape, recipe: Recipe) -> tuple[str, ...]:
    if shape.model_type == "falcon" and fields.flag("new_decoder_architecture", default=False):
        return ("ln_attn", "ln_mlp")
    return recipe.norms


def _tables(fields: Fields, shape: Shape, recipe: Recipe) -> Iterator[Named]:
    """What stands outside of the layers."""
    hidden = shape.hidden_size
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    if recipe.learned_positions is not None:
        rows = fields.integer("max_position_embeddings", "n_positions") + recipe.learned_positions
        yield "model.embed_positions.weight", (rows, hidden)
    if shape.model_type == "bloom":
        yield from (
            ("word_embeddings_layernorm.weight", (hidden,)),
            ("word_embeddings_layernorm.bias", (hidden,)),
        )
    if shape.model_type == "gemma4_text":
        yield from gemma4_tables(fields, shape)
    if recipe.final_norm:
        yield "model.norm.weight", (hidden,)
        if recipe.norm_bias:
            yield "model.norm.bias", (hidden,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab_size, hidden)
        if recipe.head_bias:
            yield "lm_head.bias", (shape.vocab_size,)


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
        return sizes | dict(assistant_tables(Fields(model, config), shape))
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
