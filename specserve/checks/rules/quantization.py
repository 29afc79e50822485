"""SD234, SD311: quantized checkpoints that vLLM, its versions or a GPU cannot run."""

from __future__ import annotations

import re
from contextlib import suppress

from specserve.checks.rule import ERROR, Context, Variant, Violation, Violations, rule, variant_rule
from specserve.checks.rules.heads import is_further, own_layers
from specserve.models.config import Config, layers, model_type, section
from specserve.models.facts import ModelFacts

_BY_INDEX = ("deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "glm4_moe")
"""Model types whose further layers are counted after the model's own (`mtp_start_layer_idx`)."""
_LEAST_CAPABILITY = {
    "awq": 75, "awq_marlin": 75, "auto_awq": 75, "fp8": 75, "torchao": 75, "modelopt_fp4": 75,
    "modelopt": 80, "mxfp4": 80, "fbgemm_fp8": 80, "experts_int8": 80, "fp_quant": 100,
    "compressed-tensors": 70, "quark": 70, "moe_wna16": 70, "bitsandbytes": 70,
}  # fmt: skip
"""The least of `get_min_capability` over vLLM 0.31 to 0.33 (layers/quantization)."""


@variant_rule("SD234", ERROR, needs="models")
def unquantized_mtp(variant: Variant) -> Violations:
    """The multi-token prediction layers are not quantized, and the checkpoint does not say so."""
    config, facts = own_layers(variant) or ({}, None)
    related, help_ = {"target.model": "the checkpoint"}, "use a checkpoint that lists them there"
    if facts is not None and (found := _plain_layer(facts, config)):
        text = f"`{found[0]}` is not packed, but `quantization_config.{found[1]}` does not list it"
        help_ += ", or one that quantized them"
        yield variant.violation("method", text, related=related, help=help_)
    elif entry := _misnamed(config):
        text = f"`quantization_config.ignore` names the prediction layers by `{entry}`, but vLLM"
        text += f" builds them as `model.layers.{layers(config)}`, quantized"
        yield variant.violation("method", text, related=related, help=f"{help_} by that name")


def _misnamed(config: Config) -> str | None:
    """The entry that is to exclude further layers by a name that vLLM does not give them."""
    ignored = section(config, "quantization_config").get("ignore")
    entries = [str(entry) for entry in ignored] if isinstance(ignored, list) else []
    layer = f"model.layers.{layers(config)}."
    names = [
        f"{layer}{part}" for part in ("self_attn.o_proj", "attn.wo_b", "mlp.experts.0.down_proj")
    ]
    with suppress(re.error):
        patterns = [entry[3:] for entry in entries if entry.startswith("re:")]
        is_named = any(re.match(pattern, name) for pattern in patterns for name in names)
        if model_type(config) in _BY_INDEX and not is_named and layer not in " ".join(entries):
            return next((entry for entry in entries if "mtp" in entry), None)
    return None


def _plain_layer(facts: ModelFacts, config: Config) -> tuple[str, str] | None:
    """A plain projection of a further layer in a packed checkpoint, and the key that omits it."""
    quantization, depth = section(config, "quantization_config"), layers(config)
    key = _list_of_plain(quantization)
    ignored = quantization.get(key) or [] if key else None
    if key is None or facts.tensors is None or depth is None or not isinstance(ignored, list):
        return None
    for name, tensor in facts.tensors.items():
        match = re.fullmatch(r"(.*\.(?:q|k|v|o|gate|up|down)_proj)\.weight", name)
        is_plain = tensor.dtype in ("BF16", "F16", "F32") and is_further(name, depth)
        if match and is_plain and not any(_could_name(str(entry), match[1]) for entry in ignored):
            return match[1], key
    return None


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


@rule("SD311", ERROR, needs="hardware")
def unsupported_quantization(ctx: Context) -> Violations:
    """The GPU has no kernels for the quantization, or no bfloat16."""
    assert ctx.machine is not None
    kind, asked = ctx.machine.accelerator, ctx.profile.target.quantization
    major, minor = kind.compute_capability or (10, 0)
    own = section(ctx.target.config if ctx.target else {}, "quantization_config").get(
        "quant_method"
    )
    method = (asked or (own if isinstance(own, str) else "")).lower()
    least = _LEAST_CAPABILITY.get(method, 0)
    if 10 * major + minor < least:
        text = f"`{method}` needs compute capability {least / 10}; {kind.name} has {major}.{minor}"
        help_ = "use a checkpoint without this quantization, or another GPU"
        yield Violation("target.quantization" if asked else "target.model", text, help=help_)
    if ctx.profile.target.dtype == "bfloat16" and (major, minor) < (8, 0):
        text = (
            f"{kind.name} has no bfloat16: its compute capability is {major}.{minor}; 8.0 is needed"
        )
        yield Violation("target.dtype", text, help="write `dtype: float16`, or `auto`")
