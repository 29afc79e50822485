"""The tensors that a quantized checkpoint holds in the place of each weight."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from specserve.models.config import Fields, quantization_of
from specserve.models.facts import Tensor

_LEFT_ALONE = re.compile(
    r"(embed|lm_head|norm|router|\.gate\.weight$|shared_expert_gate|conv|word_embeddings|sinks|positions|in_proj_ba)"
)
_WHOLE = "*"
_FORMATS: Mapping[str, Mapping[str, str]] = {
    "F8_E4M3": {"": "F8_E4M3 *", ".weight_scale": "F32 1"},
    "I8": {"": "I8 *", ".weight_scale": "F32 1"},
    "F8_E4M3 channel": {"": "F8_E4M3 *", ".weight_scale": "F32 rows 1"},
    "I8 channel": {"": "I8 *", ".weight_scale": "F32 rows 1"},
    "block": {"": "F8_E4M3 *", ".weight_scale_inv": "F32 row_blocks column_blocks"},
    "words": {".qweight": "I32 words rows", ".scales": "F16 groups rows"},
    "words and zeros": {
        ".qweight": "I32 words rows", ".scales": "F16 groups rows", ".qzeros": "I32 groups row_words",
    },
    "nvfp4": {
        ".weight_packed": "U8 rows halves", ".weight_scale": "F8_E4M3 rows sixteenths",
        ".weight_global_scale": "F32 1",
    },
    "mxfp4": {"_blocks": "U8 half_count", "_scales": "U8 scale_count"},
}  # fmt: skip
"""What a checkpoint holds in the place of a weight, by what follows its name: type and sizes; `*`: its own."""


class _Format(NamedTuple):
    """How a quantized checkpoint stores its weights."""

    name: str
    bits: int = 4
    group: int = -1
    block: tuple[int, ...] = (1, 1)


def as_stored(
    tensors: Mapping[str, tuple[int, ...]], *, model: str, config: Mapping[str, Any], online: str | None
) -> dict[str, Tensor] | None:
    """Each tensor with its type. `online`: the method that vLLM applies to an unquantized checkpoint while loading.

    Unquantized ones are BF16: they are served in the type of the model. Raises FactError for a quantization_config
    of wrong types.
    """
    fields = Fields(model, quantization_of(config), "quantization_config.")
    stored = {name: Tensor("I64" if name.endswith("d2t") else "BF16", size) for name, size in tensors.items()}
    if not fields.values and online in (None, "auto"):
        return stored
    form, ignored = _format(fields, online), _ignored(fields)
    if form is None:
        return None
    packed: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        is_plain = _LEFT_ALONE.search(name) or len(tensor.shape) < 2 or any(hits(name) for hits in ignored)
        is_expert = ".experts." in name and not name.endswith("_bias")
        if is_plain or (form.name == "mxfp4" and not is_expert):
            packed[name] = tensor
        else:
            packed |= _packed(name, tensor.shape, form)
    return packed


def _packed(name: str, shape: tuple[int, ...], form: _Format) -> dict[str, Tensor]:
    lines, columns, count = shape[0], shape[1], math.prod(shape)
    sizes = {
        "1": 1, "rows": lines, "halves": columns // 2, "sixteenths": columns // 16,
        "row_blocks": -(-lines // form.block[0]), "column_blocks": -(-columns // form.block[1]),
        "words": columns * form.bits // 32, "row_words": lines * form.bits // 32,
        "groups": 1 if form.group <= 0 else -(-columns // form.group),
        "half_count": count // 2, "scale_count": count // 32,
    }  # fmt: skip
    found = {}
    for suffix, text in _FORMATS[form.name].items():
        dtype, *dimensions = text.split()
        size = shape if dimensions == [_WHOLE] else tuple(sizes[each] for each in dimensions)
        stem = name.removesuffix(".weight") if suffix.startswith(".") else name
        found[stem + suffix] = Tensor(dtype, size)
    return found


def _ignored(fields: Fields) -> list[Callable[[str], object]]:
    """Tests for modules that a checkpoint leaves in full precision: names, globs, and `re:` expressions."""
    tests: list[Callable[[str], object]] = []
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        for entry in fields.texts(key) or ():
            if entry.startswith("re:"):
                with suppress(re.error):
                    tests.append(re.compile(entry[3:]).match)
            else:
                tests.append(lambda name, entry=entry: entry in name or fnmatch.fnmatch(name, f"{entry}*"))  # type: ignore[misc]
    return tests


def _format(fields: Fields, online: str | None) -> _Format | None:
    method = fields.text("quant_method", default="").lower().replace("_", "-")
    if not method:
        return _Format("F8_E4M3") if online == "fp8" else None
    if method == "fp8":
        block = fields.integers("weight_block_size") or ()
        is_block = len(block) == 2 and min(block) > 0
        return _Format("block", block=block) if is_block else _Format("F8_E4M3")
    if method in ("gptq", "awq", "gptq-marlin", "awq-marlin"):
        bits = fields.integer("bits", "w_bit", default=4)
        group = fields.integer("group_size", "q_group_size", default=128, least=-1)
        return _Format("words and zeros", bits, group)
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return _Format("mxfp4")
    return _compressed(fields) if method == "compressed-tensors" else None


def _compressed(fields: Fields) -> _Format | None:
    """compressed-tensors with one group of weights: what most public checkpoints are."""
    groups = fields.section("config_groups")
    group = groups.section(next(iter(groups.values))) if groups and len(groups.values) == 1 else None
    weights = group.section("weights") if group else None
    if weights is None:
        return None
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    strategy = weights.text("strategy", default="tensor")
    if bits == 8 and strategy in ("tensor", "channel"):
        dtype = "F8_E4M3" if kind == "float" else "I8"
        return _Format(dtype if strategy == "tensor" else f"{dtype} channel")
    if bits == 4 and kind == "int":
        return _Format("words", 4, weights.optional("group_size") or -1)
    return _Format("nvfp4") if bits == 4 and kind == "float" else None
