"""SD221, SD224, SD234, SD250, SD252, SD253: the models, what they are asked for, their files."""

from __future__ import annotations

import re
from contextlib import suppress

from specserve.checks.rule import ERROR, Context, Variant, Violation, Violations, rule, variant_rule
from specserve.checks.rules.drafts import is_further, own_layers
from specserve.models.config import (
    Config,
    architectures,
    layers,
    model_type,
    quantization_of,
    section,
    text_config,
)
from specserve.vllm.facts import Registry

_HIDDEN_STATES = ("eagle3", "dflash", "dspark")
_OF_CHECKPOINTS = ("compressed-tensors", "fbgemm_fp8", "quark", "torchao")
"""Quantizations that vLLM builds from what config.json says of them, and from nothing else."""
_RENAMED = ("deepseek_v4", "deepseek_v41")
"""Model types of which vLLM builds the `mtp.0` of the checkpoint as a layer behind the last."""


def _own_code(ctx: Context, config: Config) -> bool:
    """Whether the class may come from elsewhere than vLLM, such as the repository's own code."""
    return bool(config.get("auto_map")) or ctx.engine.get("model_impl", "auto") != "auto"


@rule("SD221", ERROR, needs="models")
def served_head(ctx: Context) -> Violations:
    """The target is a draft head."""
    config = ctx.target_config
    help_ = "name here the model that it was trained for, and the head under `speculation.model`"
    if config is None:
        return
    if config.get("speculators_config") is not None:  # vLLM serves its verifier instead
        yield Violation("target.model", "this is a head of speculators", help=help_)
    elif found := ctx.versions_whose_registry(Registry.has_kind, architectures(config), "draft"):
        text = f"`{architectures(config)[0]}` is a draft head, not a model to serve"
        yield Violation("target.model", text, versions=found, help=help_)


@rule("SD224", ERROR, needs="models")
def missing_hidden_states(ctx: Context) -> Violations:
    """The head needs hidden states that vLLM cannot take from this target."""
    config = ctx.target_config
    if config is None or _own_code(ctx, config):
        return
    found = ctx.versions_whose_registry(Registry.lacks, architectures(config), "eagle3")
    rest = [version for version in ctx.target_versions if version not in found]
    help_ = "use `ngram`, `suffix` or `draft_model`, which read no hidden states"
    if rest:
        help_ = f"vLLM {', '.join(rest)} can: see the profile's `vllm` range"
    for variant in ctx.variants if found else ():
        uses = section(variant.config or {}, "eagle_config").get("use_aux_hidden_state")
        blind = variant.method == "eagle3" and uses is False
        if variant.method in _HIDDEN_STATES and not blind:
            name, related = architectures(config)[0], {"target.model": "the target"}
            text = f"vLLM {', '.join(found)} cannot take hidden states from a `{name}`"
            yield variant.violation("method", text, related=related, versions=found, help=help_)


@rule("SD250", ERROR, needs="models")
def missing_weights(ctx: Context) -> Violations:
    """The model's directory has no weights or no tokenizer, or not all of them."""
    is_usual = ctx.engine.get("load_format") in (None, "auto", "safetensors")
    is_usual = is_usual and not ctx.engine.get("model_loader_extra_config")
    drafts = {
        each.at("model"): each.draft for each in ctx.variants if not each.get("draft_load_config")
    }
    for path, facts in {"target.model": ctx.target, **drafts}.items() if is_usual else ():
        if facts is None or facts.origin != "directory":  # what the cache lacks, vLLM downloads
            continue
        lacking = [facts.broken[name] for name in facts.weight_files if name in facts.broken][:1]
        if not facts.weight_files and not any(name.endswith(".gguf") for name in facts.files):
            lacking.append("the directory holds no weights")
        help_ = "copy or download the model again: `specserve pull` for a model of the Hub"
        yield from (Violation(path, text, help=help_) for text in lacking)
    target = ctx.target
    if target is None or target.origin != "directory" or ctx.profile.target.tokenizer:
        return
    has_one = any("token" in name or name.endswith((".model", ".gguf")) for name in target.files)
    if not has_one and not any(served_head.check(ctx)):  # SD221 says more
        help_ = "copy the tokenizer of the original model, or name it: `tokenizer: ORG/MODEL`"
        yield Violation("target.model", "the directory holds no tokenizer", help=help_)


@rule("SD252", ERROR, needs="models")
def unquantized_checkpoint(ctx: Context) -> Violations:
    """`quantization` names the format of a checkpoint, and this one is not in it."""
    config, method = ctx.target_config, ctx.profile.target.quantization
    if config is None or method not in _OF_CHECKPOINTS:
        return
    # overrides may name another place: `quantization_config_file`, `quantization_config_dict_json`
    elsewhere = any(key.startswith("quantization_config_") for key in config)
    if not (elsewhere or quantization_of(config) or quantization_of(text_config(config))):
        text = f"vLLM reads `{method}` from config.json, which says nothing of a quantization"
        help_ = "leave it out, or take a checkpoint that was quantized so"
        related = {"target.model": "plain weights"}
        yield Violation("target.quantization", text, related=related, help=help_)


@rule("SD253", ERROR, needs="models")
def unadaptable_model(ctx: Context) -> Violations:
    """LoRA adapters are enabled for a model that does not support them."""
    config = ctx.target_config
    if ctx.engine.get("enable_lora") is not True or config is None or _own_code(ctx, config):
        return
    if found := ctx.versions_whose_registry(Registry.lacks, architectures(config), "lora"):
        text = f"a `{architectures(config)[0]}` takes no adapters"
        help_ = "merge the adapter into the weights, and serve those"
        yield Violation("engine.enable_lora", text, versions=found, help=help_)


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
