"""What a configuration says of a model's architecture, and of how its weights are quantised."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from specserve.errors import FactError
from specserve.models.config import COMPARED, UNKNOWN, Fields, UnknownArchitecture, text_fields
from specserve.models.facts import Tensor
from specserve.models.shape import (
    GATED_DELTA,
    LATENT_TYPES,
    SHARING,
    Mixer,
    Shape,
    attention,
    attention_layers,
    layer_kinds,
    state,
)

Sizes = Mapping[str, tuple[int, ...]]
Packing = Callable[[str, tuple[int, ...]], dict[str, Tensor]]
"""A weight's name and shape → the tensors that a checkpoint holds in its place."""

_LEFT_ALONE = re.compile(
    r"(embed|lm_head|norm|router|\.gate\.weight$|shared_expert_gate|conv|word_embeddings|sinks|positions|in_proj_ba)"
)


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`quantization_config`, wherever in config.json; empty without one."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            for key in ("quantization_config", "compression_config"):
                found = part.get(key)
                if isinstance(found, Mapping):
                    return found
    return {}


def is_mxfp4(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is in MXFP4, as each library writes it: by name, or as 4-bit floats with e8m0 scales."""
    words = repr(dict(quantization_of(config))).lower()
    return "mxfp4" in words or ("fp4" in words and "e8m0" in words)


def as_stored(
    tensors: Sizes, *, model: str, config: Mapping[str, Any], online: str | None
) -> dict[str, Tensor] | None:
    """Each tensor with its type. `online`: the method that vLLM applies to an unquantised checkpoint while loading.

    Unquantised ones are BF16: they are served in the type of the model. Raises FactError for a quantization_config
    of wrong types.
    """
    fields = Fields(model, quantization_of(config), "quantization_config.")
    stored = {name: Tensor("I64" if name.endswith("d2t") else "BF16", size) for name, size in tensors.items()}
    if not fields.values and online in (None, "auto"):
        return stored
    packing, ignored = _packing(fields, online), _ignored(fields)
    if packing is None:
        return None
    packed: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        is_plain = _LEFT_ALONE.search(name) or len(tensor.shape) < 2 or any(hits(name) for hits in ignored)
        packed |= {name: tensor} if is_plain else packing(name, tensor.shape)
    return packed


def _ignored(fields: Fields) -> list[Callable[[str], object]]:
    """Tests for modules that a checkpoint leaves in full precision: names, globs, and `re:` expressions."""
    tests: list[Callable[[str], object]] = []
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        for entry in fields.texts(key) or ():
            if entry.startswith("re:"):
                try:
                    tests.append(re.compile(entry[3:]).match)
                except re.error:
                    continue
            else:
                tests.append(lambda name, entry=entry: entry in name or fnmatch.fnmatch(name, f"{entry}*"))  # type: ignore[misc]
    return tests


def _packing(fields: Fields, online: str | None) -> Packing | None:
    method = fields.text("quant_method", default="").lower().replace("_", "-")
    if not method:
        return _scaled("F8_E4M3") if online == "fp8" else None
    if method == "fp8":
        block = fields.integers("weight_block_size")
        is_block = block and len(block) == 2 and min(block) > 0
        return _in_blocks(*block) if block and is_block else _scaled("F8_E4M3")
    if method in ("gptq", "awq", "gptq-marlin", "awq-marlin"):
        bits = fields.integer("bits", "w_bit", default=4)
        return _packed(bits, fields.integer("group_size", "q_group_size", default=128, least=-1))
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return _mxfp4
    return _compressed(fields) if method == "compressed-tensors" else None


def _compressed(fields: Fields) -> Packing | None:
    """compressed-tensors with one group of weights: what most public checkpoints are."""
    groups = fields.section("config_groups")
    if groups is None or len(groups.values) != 1:
        return None
    group = groups.section(next(iter(groups.values)))
    weights = group.section("weights") if group is not None else None
    if weights is None:
        return None
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    strategy = weights.text("strategy", default="tensor")
    if bits == 8 and strategy in ("tensor", "channel"):
        return _scaled("F8_E4M3" if kind == "float" else "I8", by_row=strategy == "channel")
    if bits == 4 and kind == "int":
        return _packed(4, weights.optional("group_size") or -1, has_zeros=False)
    return _nvfp4 if bits == 4 and kind == "float" else None


def _scaled(dtype: str, *, by_row: bool = False) -> Packing:
    def pack(name: str, size: tuple[int, ...]) -> dict[str, Tensor]:
        scale = Tensor("F32", (size[0], 1) if by_row else (1,))
        return {name: Tensor(dtype, size), f"{_stem(name)}.weight_scale": scale}

    return pack


def _in_blocks(rows: int, columns: int) -> Packing:
    def pack(name: str, size: tuple[int, ...]) -> dict[str, Tensor]:
        scales = Tensor("F32", (-(-size[0] // rows), -(-size[1] // columns)))
        return {name: Tensor("F8_E4M3", size), f"{_stem(name)}.weight_scale_inv": scales}

    return pack


def _packed(bits: int, group: int, *, has_zeros: bool = True) -> Packing:
    def pack(name: str, size: tuple[int, ...]) -> dict[str, Tensor]:
        stem, rows, columns = _stem(name), size[0], size[1]
        groups = 1 if group <= 0 else -(-columns // group)
        zeros = {f"{stem}.qzeros": Tensor("I32", (groups, rows * bits // 32))} if has_zeros else {}
        return {
            f"{stem}.qweight": Tensor("I32", (columns * bits // 32, rows)),
            f"{stem}.scales": Tensor("F16", (groups, rows)),
            **zeros,
        }

    return pack


def _mxfp4(name: str, size: tuple[int, ...]) -> dict[str, Tensor]:
    if ".experts." not in name or name.endswith("_bias"):
        return {name: Tensor("BF16", size)}
    count = math.prod(size)
    return {f"{name}_blocks": Tensor("U8", (count // 2,)), f"{name}_scales": Tensor("U8", (count // 32,))}


def _nvfp4(name: str, size: tuple[int, ...]) -> dict[str, Tensor]:
    return {
        f"{_stem(name)}.weight_packed": Tensor("U8", (size[0], size[1] // 2)),
        f"{_stem(name)}.weight_scale": Tensor("F8_E4M3", (size[0], size[1] // 16)),
        f"{_stem(name)}.weight_global_scale": Tensor("F32", (1,)),
    }


def _stem(name: str) -> str:
    return name.removesuffix(".weight")


_MOST_LAYERS = 2000
_NOT_READ = (
    "compress_ratios", "compress_ratio", "kv_lora_rank", "linear_attn_config", "attn_type_list", "block_types",
    "cross_attention_layers", "sparse_attention_config", "num_kv_shared_layers",
)  # fmt: skip
"""Keys that change the KV cache, and that are read for a few model types only."""


def read_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model.

    Raises UnknownArchitecture for a model type that is not known, and FactError with the key for a config.json that
    does not make sense.
    """
    fields, model_type = text_fields(model, config)
    if model_type == "eagle":
        inner = fields.section("model")
        if inner is not None:
            return read_shape(model, inner.values)
    _refuse_unknown(fields, model_type)
    count = fields.integer("num_hidden_layers", "n_layer", "n_layers", least=0)
    if count > _MOST_LAYERS:
        raise FactError(
            f"`num_hidden_layers` in config.json of `{model}` is {count}: more than {_MOST_LAYERS}"
        )
    layers = tuple(_layers(fields, model_type=model_type, count=count))
    return _shape(fields, config, model_type=model_type, layers=layers)


def bare_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model type that is not known: its layers without what they keep for each token.

    Raises FactError if config.json does not say how many layers there are.
    """
    fields, model_type = text_fields(model, config)
    count = fields.integer("num_hidden_layers", "n_layer", "n_layers", least=0)
    return _shape(fields, config, model_type=model_type, layers=((),) * min(count, _MOST_LAYERS))


def _refuse_unknown(fields: Fields, model_type: str) -> None:
    readers = {"kv_lora_rank": LATENT_TYPES, "num_kv_shared_layers": SHARING}
    is_read = model_type in COMPARED or not any(
        fields.values.get(key) and model_type not in readers.get(key, ()) for key in _NOT_READ
    )
    if model_type in UNKNOWN or not is_read:
        raise UnknownArchitecture("KV cache", model_type, model=fields.model)


def _shape(
    fields: Fields, config: Mapping[str, Any], *, model_type: str, layers: tuple[tuple[Mixer, ...], ...]
) -> Shape:
    return Shape(
        model=fields.model,
        model_type=model_type,
        hidden_size=fields.integer("hidden_size", "n_embd", "d_model"),
        vocab_size=fields.integer("vocab_size"),
        is_tied=fields.flag("tie_word_embeddings", default=True),
        dtype=fields.text("dtype", "torch_dtype", default="").removeprefix("torch.") or None,
        layers=layers,
        mxfp4_expert=_mxfp4_expert(fields, config),
        is_known=model_type in COMPARED,
    )


def _mxfp4_expert(fields: Fields, config: Mapping[str, Any]) -> tuple[int, int] | None:
    width = fields.optional("moe_intermediate_size", "intermediate_size")
    has_experts = fields.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    return (fields.integer("hidden_size"), width) if has_experts and width and is_mxfp4(config) else None


def _layers(fields: Fields, *, model_type: str, count: int) -> list[tuple[Mixer, ...]]:
    kinds = layer_kinds(fields, model_type=model_type, count=count)
    heads: list[tuple[Mixer, ...]] = [()] * count
    if {"attention", "both"} & set(kinds):
        heads = [(head,) for head in attention_layers(fields, model_type=model_type, count=count)]
    kept: tuple[Mixer, ...] = ()
    if {"state", "both"} & set(kinds):
        kept = (state(fields, model_type=model_type),)
    return [
        (kept if kind in ("state", "both") else ()) + (head if kind in ("attention", "both") else ())
        for kind, head in zip(kinds, heads, strict=True)
    ]


def read_mtp(model: str, config: Mapping[str, Any]) -> tuple[Mixer, ...]:
    """The mixers of the multi-token prediction layers inside a target. Raises FactError as `read_shape` does."""
    fields, model_type = text_fields(model, config)
    _refuse_unknown(fields, model_type)
    count = fields.integer(
        "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "n_predict",
        default=1 if model_type in GATED_DELTA else 0, least=0,
    )  # fmt: skip
    if count == 0:
        raise FactError(f"config.json of `{model}` has no multi-token prediction layers")
    return (attention(fields, model_type=model_type),) * count
