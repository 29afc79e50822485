"""The tensors that a checkpoint of this config.json holds: names as published, shapes. Knows no sharding.

Where a checkpoint's own headers are known they are better: this is for those that are not there, or have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specserve.facts.architecture.attentiontensors import attention_tensors
from specserve.facts.architecture.defaults import text_fields
from specserve.facts.architecture.encodertensors import encoder_tensors
from specserve.facts.architecture.experts import feed_forward
from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.gemma4tensors import gemma4_tables
from specserve.facts.architecture.read import read_shape
from specserve.facts.architecture.recipes import RECIPES, Recipe
from specserve.facts.architecture.shape import Attention, Latent, Shape, State
from specserve.facts.architecture.statetensors import state_tensors

_TOWERS = ("audio_config", "vision_tower", "visual")
"""Encoders beside the language model that are not known."""
Named = tuple[str, tuple[int, ...]]


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
