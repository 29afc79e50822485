"""The tensors of draft heads, and of multi-token prediction layers inside a target. Knows no sharding.

What a head shares with its target (embeddings of most, and the output table) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specserve.facts.architecture.defaults import text_fields
from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.gemma4tensors import assistant_tables
from specserve.facts.architecture.read import read_mtp, read_shape
from specserve.facts.architecture.recipes import RECIPES
from specserve.facts.architecture.shape import Shape
from specserve.facts.architecture.states import GATED_DELTA
from specserve.facts.architecture.tensors import layer_tensors

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
