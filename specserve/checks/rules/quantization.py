"""SD234: prediction layers of a quantized checkpoint."""

from __future__ import annotations

import re

from specserve.checks.rule import ERROR, Variant, Violations, variant_rule
from specserve.checks.rules.heads import is_further, own_layers
from specserve.models.config import Config, layers, section


@variant_rule("SD234", ERROR, needs="models")
def unquantized_mtp(variant: Variant) -> Violations:
    """The multi-token prediction layers are not quantized, and the checkpoint does not say so."""
    config, tensors = own_layers(variant)
    quantization, depth = section(config, "quantization_config"), layers(config)
    key = _list_of_plain(quantization)
    listed = quantization.get(key) or [] if key else None
    if depth is None or not isinstance(listed, list):
        return
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.(?:q|k|v|o|gate|up|down)_proj)\.weight", name)
        is_plain = tensor.dtype in ("BF16", "F16", "F32") and is_further(name, depth)
        if match and is_plain and not any(_could_name(str(entry), match[1]) for entry in listed):
            text = f"`{match[1]}` is not packed, but `quantization_config.{key}` does not list it"
            help_ = "use a checkpoint that lists them there, or one that quantized them"
            related = {"target.model": "the checkpoint"}
            yield variant.violation("method", text, related=related, help=help_)
            return


def _list_of_plain(quantization: Config) -> str | None:
    """The key under which a checkpoint packed to four bits lists what it left plain, else None."""
    method = str(quantization.get("quant_method")).replace("_", "-")
    if method == "compressed-tensors":
        return "ignore" if quantization.get("format") == "pack-quantized" else None
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
