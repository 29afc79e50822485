"""SD234, SD247, SD248, SD257, SD311: quantized checkpoints that vLLM, its versions or a GPU cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from specserve.checks.config import Config, layers, section
from specserve.checks.rule import ERROR, Context, Hit, Hits, Variant, rule, variant_rule
from specserve.checks.rules.heads import head_variants, is_further, own_layers
from specserve.models.facts import ModelFacts
from specserve.vllm.facts import QUANTIZED_DFLASH

_FOREIGN = frozenset({
    "aqlm", "bitnet", "bitsandbytes", "deepspeedfp", "eetq", "exl2", "exl3", "gguf", "higgs", "hqq", "marlin", "mlx",
    "neuron_quant", "petit_nvfp4", "ptpc_fp8", "qqq", "quip", "rtn", "spqr", "tpu_int8", "vptq",
})  # fmt: skip
"""Formats that other libraries, or former versions, read."""
_FAMILIES = {
    "awq": "awq", "awq_marlin": "awq", "auto_awq": "awq", "gptq": "gptq", "gptq_marlin": "gptq", "auto_gptq": "gptq",
    "fp8": "fp8", "compressed-tensors": "compressed-tensors", "quark": "quark", "torchao": "torchao",
    "bitsandbytes": "bitsandbytes", "auto-round": "auto-round", "auto_round": "auto-round", "fp4": "modelopt",
    "nvfp4": "modelopt",
}  # fmt: skip
_FROM_FILES = ("awq", "gptq", "compressed-tensors", "quark", "auto-round", "modelopt")
_SETTINGS = ("quantize_config.json", "quant_config.json", "hf_quant_config.json", "quantization_config.json")
_LEAST_CAPABILITY = {
    "awq": 75, "awq_marlin": 75, "auto_awq": 75, "fp8": 75, "torchao": 75, "modelopt_fp4": 75, "modelopt": 80,
    "mxfp4": 80, "fbgemm_fp8": 80, "experts_int8": 80, "fp_quant": 100, "compressed-tensors": 70, "quark": 70,
    "moe_wna16": 70, "bitsandbytes": 70,
}  # fmt: skip
"""The least of `get_min_capability` over vLLM 0.26-0.33, in vllm/model_executor/layers/quantization."""


@variant_rule("SD234", ERROR, needs="models")
def unquantized_mtp(variant: Variant) -> Hits:
    """The multi-token prediction layers are not quantized, and the checkpoint does not say so.

    vLLM builds every layer quantized unless the checkpoint's own list excludes it. Here the list does not exclude these
    layers, so vLLM expects packed weights and finds plain ones. Either the start fails after the target is loaded, or
    no draft token is accepted (vllm-project/vllm#53387, vllm-project/vllm#52649). The rule knows the lists of
    compressed-tensors, Quark and ModelOpt.
    Example:
        target: {model: ./mimo-packed}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Instead: target: {model: ./mimo}
    Source:
        vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py, `ignore`
        vllm/model_executor/layers/quantization/quark/quark.py, `self.quant_config.get("exclude")`
        vllm/model_executor/layers/quantization/modelopt.py, `exclude_modules`
    """
    config, facts = own_layers(variant) or ({}, None)
    if facts is not None and (found := _plain_layer(facts, config)):
        text = f"`{found[0]}` is not packed, but `quantization_config.{found[1]}` does not list it"
        help_ = "use a checkpoint that lists these layers there, or one that quantized them"
        yield variant.hit("method", text, related={"target.model": "the checkpoint"}, help=help_)


def _plain_layer(facts: ModelFacts, config: Config) -> tuple[str, str] | None:
    """A projection of a further layer with plain weights in a packed checkpoint, and the key that does not list it."""
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
    """The key under which a checkpoint packed to four bits lists what it left plain; None for other checkpoints."""
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
    return entry.startswith("re:") or "mtp" in entry or module in entry or entry.strip("*.") in module


@rule("SD247", ERROR, needs="models")
def unknown_quantization(ctx: Context) -> Hits:
    """The checkpoint is quantized in a way that vLLM does not read.

    vLLM refuses to start. From 0.28 on, it no longer supports `bitsandbytes`.
    Example:
        vllm: ">=0.32"
        target: {model: ./llama-bnb}
    Instead: target: {model: ./llama}
    Source: vllm/config/model.py, `f"Unknown quantization method: {self.quantization}. Must "`
    """
    for path, config in ctx.models():
        method = _method(config)
        found = ctx.where(lambda known, method: method not in known.quantizations, method)
        if found and method in _FOREIGN:
            text = f"vLLM {', '.join(found)} does not read `{method}` checkpoints"
            help_ = "take another build of the model: compressed-tensors, AWQ, GPTQ or FP8"
            yield Hit(path, text, versions=found, help=help_)


@rule("SD248", ERROR, needs="models")
def quantization_mismatch(ctx: Context) -> Hits:
    """The profile asks for another quantization than the checkpoint has.

    vLLM reads the quantization from the checkpoint. If the profile names another, vLLM refuses to start. If the
    checkpoint is not quantized and the format needs prepared weights, as AWQ does, loading fails.
    Example: target: {model: ./llama, quantization: awq}
    Use instead: target: {model: ./llama}
    Source: vllm/config/model.py, `"Quantization method specified in the model config "`
    """
    if ctx.engine.get("hf_overrides") is not None or ctx.engine.get("quantization_config") is not None:
        return
    for path, config, facts, asked in _asked(ctx):
        has, wanted = _method(config), _FAMILIES.get(asked)
        is_plain = not has and facts.files and not any(name in facts.files for name in _SETTINGS)
        if has == "auto-round":
            continue  # vLLM takes `inc`, whatever the profile asks for
        if wanted and has and _FAMILIES.get(has) not in (wanted, None):
            text = f"the checkpoint is `{has}`; the profile asks for `{asked}`"
        elif wanted in _FROM_FILES and is_plain:
            text = f"the checkpoint is not quantized; `{asked}` needs weights that were prepared for it"
        else:
            continue
        help_ = "leave `quantization` out, or use a checkpoint that was quantized that way"
        yield Hit(path, text, help=help_)


def _asked(ctx: Context) -> Iterator[tuple[str, Config, ModelFacts, str]]:
    """Each model whose quantization the profile names, with the place."""
    target, quantization = ctx.target_config, ctx.profile.target.quantization
    if target is not None and ctx.target and isinstance(quantization, str):
        yield "target.quantization", target, ctx.target, quantization
    for variant in ctx.variants:
        own = variant.get("quantization")
        if isinstance(own, str) and variant.config is not None and variant.draft:
            yield variant.at("quantization"), variant.config, variant.draft, own


def _method(config: Config) -> str:
    """`quant_method` of a config.json, as vLLM spells it; nothing if it has none."""
    for place in (config, section(config, "text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(value := place.get(key), Mapping):
                method = str(value.get("quant_method") or "").lower()
                return method.replace("compressed_tensors", "compressed-tensors")
    return ""


@rule("SD257", ERROR, needs="models")
def quantized_block_head(ctx: Context) -> Hits:
    """The DFlash head is quantized, but this vLLM supports only unquantized DFlash heads.

    Before 0.31, vLLM joins the head's key and value matrices as if they were not quantized. It loads the head, and the
    engine ends in its first pass because the shapes do not match (vllm-project/vllm#51581).
    Example:
        vllm: "==0.27.*"
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash-fp8, num_speculative_tokens: 7}
    Instead: speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Source: vllm/model_executor/models/qwen3_dflash.py (from 0.31), `proj.quant_method, UnquantizedLinearMethod`
    """
    found = [version for version in ctx.judged if not QUANTIZED_DFLASH.at(version)]
    for variant, config in head_variants(ctx) if found else ():
        if variant.method == "dflash" and isinstance(config.get("quantization_config"), Mapping):
            text = f"vLLM {', '.join(found)} does not support quantized DFlash heads"
            yield variant.hit("model", text, versions=found, help="use a head that is not quantized")


@rule("SD311", ERROR, needs="hardware")
def unsupported_quantization(ctx: Context) -> Hits:
    """The quantization has no kernels for this GPU.

    Each method requires a compute capability. vLLM refuses older GPUs when it builds its configuration.
    Example:
        target: {model: ./llama, max_model_len: 2048, quantization: fp8}
        hardware: {accelerator: V100-32GB}
    Instead: hardware: {accelerator: T4-16GB}
    Source: vllm/config/vllm.py, `if capability < quant_config.get_min_capability():`
    """
    assert ctx.machine is not None
    kind, asked = ctx.machine.accelerator, ctx.profile.target.quantization
    own = section(ctx.target.config if ctx.target else {}, "quantization_config").get("quant_method")
    method = (asked or (own if isinstance(own, str) else "")).lower()
    least, capability = _LEAST_CAPABILITY.get(method, 0), kind.compute_capability
    major, minor = capability or (10, 0)
    if 10 * major + minor < least:
        text = f"`{method}` needs compute capability {least / 10}; {kind.name} has {major}.{minor}"
        help_ = "use a checkpoint without this quantization, or another GPU"
        yield Hit("target.quantization" if asked else "target.model", text, help=help_)
