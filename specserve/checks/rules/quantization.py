"""SD234: prediction layers of a quantized checkpoint."""

from __future__ import annotations

import re
from contextlib import suppress

from specserve.checks.rule import ERROR, Variant, Violations, variant_rule
from specserve.checks.rules.heads import is_further, own_layers
from specserve.models.config import Config, layers, model_type, section

_RENAMED = ("deepseek_v4", "deepseek_v41")
"""Model types of which vLLM builds the `mtp.0` of the checkpoint as a layer behind the last."""


@variant_rule("SD234", ERROR, needs="models")
def unquantized_mtp(variant: Variant) -> Violations:
    """The multi-token prediction layers are not quantized, and the checkpoint does not say so."""
    config, tensors = own_layers(variant)
    related = {"target.model": "the checkpoint"}
    quantization, depth = section(config, "quantization_config"), layers(config)
    key = _list_of_plain(quantization)
    listed = quantization.get(key) or [] if key else None
    if depth is None or not isinstance(listed, list):
        return
    if foreign := _of_the_checkpoint(config, [str(entry) for entry in listed], depth):
        text = f"`quantization_config.{key}` lists `{foreign}`, and vLLM builds `layers.{depth}`"
        help_ = f"list them as `re:.*layers\\.{depth}\\..*` there, or take another checkpoint"
        yield variant.violation("method", text, related=related, help=help_)
        return
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.(?:q|k|v|o|gate|up|down)_proj)\.weight", name)
        is_plain = tensor.dtype in ("BF16", "F16", "F32") and is_further(name, depth)
        if match and is_plain and not any(_could_name(str(entry), match[1]) for entry in listed):
            text = f"`{match[1]}` is not packed, but `quantization_config.{key}` does not list it"
            help_ = "use a checkpoint that lists them there, or one that quantized them"
            yield variant.violation("method", text, related=related, help=help_)
            return


def _of_the_checkpoint(config: Config, listed: list[str], depth: int) -> str | None:
    """The entry that names such layers as the checkpoint does alone, where vLLM renames them."""
    built = f"model.layers.{depth}.mtp_block.attn.wq_a"
    if model_type(config) not in _RENAMED or any(_fits(entry, built) for entry in listed):
        return None
    return next((entry for entry in listed if re.search(r"mtp\\?\.", entry)), None)


def _fits(entry: str, module: str) -> bool:
    with suppress(re.error):
        return bool(re.match(entry[3:], module)) if entry.startswith("re:") else entry in module
    return True


def _list_of_plain(quantization: Config) -> str | None:
    """The key under which a checkpoint packed to four bits lists what it left plain, else None."""
    method = str(quantization.get("quant_method")).replace("_", "-")
    if method == "compressed-tensors":
        return "ignore" if str(quantization.get("format")).endswith("pack-quantized") else None
    if method == "quark":
        weight = section(section(quantization, "global_quant_config"), "weight")
        return "exclude" if str(weight.get("dtype")).endswith("4") else None
    if method.startswith("modelopt") and "FP4" in str(quantization.get("quant_algo")):
        return "exclude_modules" if "exclude_modules" in quantization else "ignore"
    return None


def _could_name(entry: str, module: str) -> bool:
    """Whether an entry names this module, or any that could: a pattern counts as it is."""
    return (
        entry.startswith("re:") or "mtp" in entry or module in entry or entry.strip("*.") in module
    )
