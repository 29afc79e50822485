"""The tensors of a quantised checkpoint, from those of the model and its `quantization_config`. Knows no sharding.

For checkpoints whose headers are not known. None for a format that is not known: nothing is guessed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specserve.models.config import Fields
from specserve.models.facts import Tensor

Sizes = Mapping[str, tuple[int, ...]]
Format = Callable[[str, tuple[int, ...]], Iterator[tuple[str, Tensor]]]

_LEFT_ALONE = re.compile(
    r"(embed|lm_head|norm|router|\.gate\.weight$|shared_expert_gate|conv|word_embeddings|sinks|positions|in_proj_ba)"
)
_ONLINE = {"fp8": "F8_E4M3"}


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
    quantization = quantization_of(config)
    stored = {name: Tensor("I64" if name.endswith("d2t") else "BF16", size) for name, size in tensors.items()}
    if not quantization and online in (None, "auto"):
        return stored
    form = _format(Fields(model, quantization, "quantization_config."), online)
    if form is None:
        return None
    ignored = _ignored(Fields(model, quantization, "quantization_config."))
    packed: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if _LEFT_ALONE.search(name) or len(tensor.shape) < 2 or any(is_hit(name) for is_hit in ignored):
            packed[name] = tensor
        else:
            packed.update(form(name, tensor.shape))
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


def _format(fields: Fields, online: str | None) -> Format | None:
    method = fields.text("quant_method", default="").lower().replace("_", "-")
    if not method:
        return _scaled("F8_E4M3", block=None) if online in _ONLINE else None
    if method == "fp8":
        block = fields.integers("weight_block_size")
        return _scaled(
            "F8_E4M3", block=(block[0], block[1]) if block and len(block) == 2 and min(block) > 0 else None
        )
    if method in ("gptq", "awq", "gptq-marlin", "awq-marlin"):
        bits = fields.integer("bits", "w_bit", default=4)
        group = fields.integer("group_size", "q_group_size", default=128, least=-1)
        return _packed(bits, group)
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return _mxfp4
    return _compressed(fields) if method == "compressed-tensors" else None


def _compressed(fields: Fields) -> Format | None:
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
        dtype = "F8_E4M3" if kind == "float" else "I8"
        return _per_channel(dtype) if strategy == "channel" else _scaled(dtype, block=None)
    if bits == 4 and kind == "int":
        return _packed(4, weights.optional("group_size") or -1, has_zeros=False)
    if bits == 4 and kind == "float":
        return _nvfp4
    return None


def _scaled(dtype: str, *, block: tuple[int, int] | None) -> Format:
    def form(name: str, size: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
        yield name, Tensor(dtype, size)
        stem = name.removesuffix(".weight")
        if block is None:
            yield f"{stem}.weight_scale", Tensor("F32", (1,))
        else:
            yield (
                f"{stem}.weight_scale_inv",
                Tensor("F32", (-(-size[0] // block[0]), -(-size[1] // block[1]))),
            )

    return form


def _per_channel(dtype: str) -> Format:
    def form(name: str, size: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
        yield name, Tensor(dtype, size)
        yield f"{name.removesuffix('.weight')}.weight_scale", Tensor("F32", (size[0], 1))

    return form


def _packed(bits: int, group: int, *, has_zeros: bool = True) -> Format:
    def form(name: str, size: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
        stem, rows, columns = name.removesuffix(".weight"), size[0], size[1]
        groups = 1 if group <= 0 else -(-columns // group)
        yield f"{stem}.qweight", Tensor("I32", (columns * bits // 32, rows))
        yield f"{stem}.scales", Tensor("F16", (groups, rows))
        if has_zeros:
            yield f"{stem}.qzeros", Tensor("I32", (groups, rows * bits // 32))

    return form


def _mxfp4(name: str, size: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    if ".experts." not in name or name.endswith("_bias"):
        yield name, Tensor("BF16", size)
        return
    count = 1
    for part in size:
        count *= part
    yield f"{name}_blocks", Tensor("U8", (count // 2,))
    yield f"{name}_scales", Tensor("U8", (count // 32,))


def _nvfp4(name: str, size: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    stem = name.removesuffix(".weight")
    yield f"{stem}.weight_packed", Tensor("U8", (size[0], size[1] // 2))
    yield f"{stem}.weight_scale", Tensor("F8_E4M3", (size[0], size[1] // 16))
    yield f"{stem}.weight_global_scale", Tensor("F32", (1,))
