"""SD101, SD231, SD235, SD237, SD241, SD242, SD245: heads and drafts, and their targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specserve.checks.rule import ERROR, WARNING, Variant, Violation, Violations, variant_rule
from specserve.checks.rules.revisions import is_hub_id
from specserve.models.config import (
    Config,
    architectures,
    layers,
    model_type,
    prediction_layers,
    section,
    text_config,
    whole,
)
from specserve.vllm.facts import Registry
from specserve.vllm.speculation import METHODS, retyped

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts, Tensor

_STAGED = ("deepseek_v4", "deepseek_v41")
_METHODS = {"Eagle3": "eagle3", "DFlash": "dflash", "DSpark": "dspark", "Eagle": "eagle"}
"""The method of a head by a word in its class."""
HEADS = frozenset(_METHODS.values())
_NAMED = (
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "mimo",
    "qwen2",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_text",
    "qwen3_5_moe_text",
)
"""Model types whose further layers are known by the names of their tensors."""
_SHARE = 4
"""A draft below this part of the target's bytes can pay; published pairs lie between 6 and 50."""
_TARGET = {"target.model": "the target"}
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_IDS = "eagle_aux_hidden_state_layer_ids"


def method_of(config: Config) -> str | None:
    """The method that a draft head was made for, by its config.json; None if it is no head."""
    if config.get("speculators_model_type") in HEADS:
        return str(config["speculators_model_type"])
    names = " ".join(architectures(config))
    return _detected(config) or next(
        (each for word, each in _METHODS.items() if word in names), None
    )


def _detected(config: Config) -> str | None:
    """The method that vLLM puts in place of `draft_model` (`# Automatically detect the method`)."""
    names = " ".join(architectures(config))
    if "MuseGlimmerAssistantModel" in names:
        return "dflash"
    if "DSpark" in names:
        return "dspark"
    return "mtp" if model_type(config).endswith(("_assistant", "_mtp")) else None


def predicts(known: Registry, config: Config) -> bool:
    """Whether this version would build further layers for this model."""
    kind, names = model_type(config), architectures(config)
    if kind in ("nemotron_h", "nemotron_h_puzzle") and not prediction_layers(config):
        return False
    by_name = kind in known.mtp or any(name in known.mtp for name in names) or kind.endswith("_mtp")
    return by_name or "exaone4_5" in kind or text_config(config).get("num_mtp_layers") is not None


def own_layers(variant: Variant) -> tuple[Config, Mapping[str, Tensor]]:
    """The config.json and the tensors of the target, if its own layers draft; else nothing."""
    target = variant.ctx.target
    is_own = variant.method == "mtp" and variant.model in (None, variant.ctx.profile.target.model)
    return (variant.config or {}, target.tensors or {}) if target and is_own else ({}, {})


@variant_rule("SD101", ERROR, needs="models", in_lint=True)
def retyped_draft(variant: Variant) -> Violations:
    """vLLM changes the method because of the draft's name, or of what the draft is."""
    model = variant.model or (variant.ctx.profile.target.model if variant.method == "mtp" else None)
    if change := retyped(variant.method, model) if model else None:
        method, word = change
        yield Violation(
            variant.at("model") if variant.model else "target.model",
            f"vLLM would run this draft as `{method}`: its name contains `{word}`",
            related={variant.at("method"): f"the profile says `{variant.method}`"},
            help=f"write `method: {method}` if it is such a head; if not, keep it in a directory "
            f"whose path does not contain `{word}`",
        )
        return
    config, draft = variant.config, variant.draft
    if variant.method != "draft_model" or config is None or draft is None or _detected(config):
        return
    heads = variant.ctx.versions_whose_registry(Registry.has_kind, architectures(config), "draft")
    name = (*architectures(config), model_type(config))[0]
    if draft.config.get("speculators_model_type") or heads:
        related = {variant.at("method"): "the profile says `draft_model`"}
        help_ = _other_method(name)
        text = "this is a draft head, not a draft model"
        yield variant.violation("model", text, related=related, versions=heads, help=help_)
    elif layered := variant.ctx.versions_whose_registry(predicts, config):
        text = f"vLLM runs a `{name}` draft as `mtp`, with its prediction layers only"
        help_ = "use a draft of another family"
        yield variant.violation("model", text, versions=layered, help=help_)


@variant_rule("SD231", ERROR, needs="models")
def missing_mtp_weights(variant: Variant) -> Violations:
    """The checkpoint has lost its multi-token prediction layers."""
    config, tensors = own_layers(variant)
    depth, own = layers(config), prediction_layers(config)
    is_known = model_type(config) in _NAMED and tensors
    if is_known and own and depth and not any(is_further(name, depth) for name in tensors):
        text = "the checkpoint holds no tensor of a layer that predicts further tokens"
        help_ = "copy those tensors from the original model, or use another method"
        related = {"target.model": f"config.json promises {own}"}
        yield variant.violation("method", text, related=related, help=help_)


def is_further(name: str, depth: int) -> bool:
    """Whether a tensor belongs to a layer behind the model's own."""
    match = re.search(r"(?:^|\.)layers\.(\d{1,9})\.", name)
    return "mtp" in name or "nextn" in name or (match is not None and int(match[1]) >= depth)


@variant_rule("SD235", ERROR, needs="models")
def unknown_head(variant: Variant) -> Violations:
    """vLLM has no class for this head."""
    if variant.draft is None:
        return
    kind, is_head = variant.draft.config.get("speculators_model_type"), variant.method in HEADS
    names = _loaded_as(variant.method, (variant.config if is_head else None) or {})
    if isinstance(kind, str):
        found = variant.ctx.versions_whose_registry(lambda known: kind not in known.speculators)
        text = f"does not read heads of the kind `{kind}`"
    elif names and not variant.draft.config.get("auto_map"):
        found = variant.ctx.versions_whose_registry(
            lambda known: not any(name in known.classes for name in names)
        )
        text = f"has no head of the class `{names[0]}`"
    else:
        return
    if found:
        text, related = f"vLLM {', '.join(found)} {text}", {variant.at("method"): "the method"}
        help_ = _other_method((*architectures(variant.draft.config), "")[0])
        yield variant.violation("model", text, related=related, versions=found, help=help_)


def _loaded_as(method: str, config: Config) -> tuple[str, ...]:
    """The classes that vLLM looks for (`EAGLEConfig`, vllm/transformers_utils/configs/eagle.py)."""
    prefix, starts, ends = {
        "eagle": ("Eagle", ("Eagle",), ()),
        "eagle3": ("Eagle3", ("Eagle3",), ("Eagle3",)),
        "dflash": ("DFlash", ("DFlash", "LiLiCorr"), ("DFlash",)),
    }.get(method, ("", ("",), ()))
    names = architectures(config) if prefix else ()
    return tuple(n if n.startswith(starts) or n.endswith(ends) else f"{prefix}{n}" for n in names)


def _other_method(name: str) -> str:
    method = next((method for word, method in _METHODS.items() if word in name), None)
    if method:
        return f"if this is a head for `{method}`, write `method: {method}`"
    return "use a head that was published for vLLM, or `draft_model`, `ngram` or `suffix`"


@variant_rule("SD242", WARNING, needs="models")
def block_overrun(variant: Variant) -> Violations:
    """More tokens are drafted per step than the head was trained to draft."""
    config = variant.config or {}
    if not variant.model:  # of a target's own layers, only the stages of DeepSeek V4 draft blocks
        config = variant.ctx.target_config or {}
        config = text_config(config) if model_type(config) in _STAGED else {}
    block = whole(config, "block_size", "dspark_block_size")
    if not METHODS[variant.method].in_one_pass or block is None or not variant.k:
        return
    # whether the first place of a block is drafted too
    inner = section(config, "dflash_config").get("sample_from_anchor")
    is_whole = variant.method == "dspark" or True in (inner, config.get("sample_from_anchor"))
    most = block if is_whole else block - 1
    if variant.k > most:
        text = f"the head drafts {most} tokens in one pass; the profile asks for {variant.k}"
        related = {variant.at("model") if variant.model else "target.model": f"blocks of {block}"}
        help_ = f"write `num_speculative_tokens: {most}`"
        yield variant.violation("num_speculative_tokens", text, related=related, help=help_)


@variant_rule("SD237", ERROR, needs="models", in_lint=True)
def head_of_another_target(variant: Variant) -> Violations:
    """The head was trained for another model, or for another method."""
    if variant.method not in {*HEADS, "mtp"}:
        return
    from specserve.models.drafts import heads_named, kinship

    ctx, rows = variant.ctx, heads_named(variant.model or "")
    other = {"eagle": "eagle3", "eagle3": "eagle"}.get(variant.method)
    if {row.method for row in rows} == {other}:
        text, help_ = f"the head is published as `{other}`", f"write `method: {other}`"
        yield variant.violation("method", text, help=help_)
    own = ctx.target.config.get("_name_or_path") if ctx.target else None
    names = (ctx.profile.target.model, own)  # a directory's own name says nothing
    config = variant.draft.config if variant.draft else {}
    verifier = section(section(config, "speculators_config"), "verifier").get("name_or_path")
    named = [verifier] if isinstance(verifier, str) and verifier else []
    trained = [*named, *(row.target for row in rows)]
    known = [name for name in names if isinstance(name, str) and is_hub_id(name)]
    found = {kinship(name, model) for name in known for model in trained}
    is_other = found == {"other"}
    is_near = "same" not in found and (named or "near" in found)
    if found and (is_other or is_near):
        notes = tuple(f"published: {source.url}" for row in rows[:1] for source in row.sources[:1])
        text, severity = f"the head was trained for `{trained[0]}`", ERROR if is_other else WARNING
        help_ = f"`specserve drafts {ctx.profile.target.model}` lists the heads of this target"
        more: dict[str, Any] = {"related": _TARGET, "notes": notes, "severity": severity}
        yield variant.violation("model", text, help=help_, **more)
        if is_other:
            return
    if misfit := _misfit(variant):
        help_ = "take the head that was trained for this target"
        yield variant.violation("model", misfit, related=_TARGET, help=help_)


def _misfit(variant: Variant) -> str | None:
    """What the files of a head and of its target say against each other."""
    target, config = variant.ctx.target_config or {}, variant.config
    width, depth = whole(text_config(target), "hidden_size"), layers(target)
    if not variant.model or config is None or variant.method not in HEADS or width is None:
        return None
    expected = whole(config, "target_hidden_size", "hidden_size")
    if expected not in (None, width) and architectures(config) != ("DFlashLagunaForCausalLM",):
        return f"the head takes hidden states of width {expected}; the target has {width}"
    matrix = ((variant.draft.tensors if variant.draft else None) or {}).get("fc.weight")
    columns = matrix.shape[-1] if matrix and matrix.shape else 0
    made_for = {2 * width: "eagle", 3 * width: "eagle3"}.get(columns, variant.method)
    ids, nested = _numbers(config.get(_IDS)), section(config, "eagle_config").get(_IDS)
    is_counted = nested or whole(config, "num_aux_hidden_states")  # how many hidden states it takes
    if variant.method in ("eagle", "eagle3") and not is_counted:
        if made_for != variant.method and not ids:
            return f"this is a head for `{made_for}`, by the width of its first matrix"
        reads = any("Qwen3" in name for name in architectures(config))  # few classes read that list
        if variant.method == "eagle3" and ids and len(ids) != 3 and not reads:
            return f"vLLM builds this head for 3 hidden states; config.json names {len(ids)} layers"
    deepest = max(_numbers(section(config, "dflash_config").get("target_layer_ids")), default=0)
    if depth is not None and deepest >= depth:
        return f"the head reads the output of layer {deepest + 1}; the target has {depth} layers"
    return None


def _numbers(value: Any) -> list[int]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


@variant_rule("SD241", ERROR, needs="models")
def missing_mask_token(variant: Variant) -> Violations:
    """Parallel drafting is asked for, but the model has no mask token."""
    config = variant.config if variant.model else None
    is_parallel = variant.get("parallel_drafting") is True or variant.method == "dflash"
    if config is not None and is_parallel:
        inner = section(config, "dflash_config")
        if all(part.get(key) is None for part in (config, inner) for key in _MASKS):
            help_ = "parallel drafting needs a draft that was trained for it (PARD, DFlash)"
            yield variant.violation("model", "config.json names no mask token", help=help_)


@variant_rule("SD245", WARNING, needs="models")
def oversized_draft(variant: Variant) -> Violations:
    """The draft is not much smaller than its target."""
    limit, own = _weight_bytes(variant.ctx.target), _weight_bytes(variant.draft)
    if variant.method == "draft_model" and limit and own and own * _SHARE >= limit:
        text = f"the draft has {own / limit:.0%} of the target's bytes"
        help_ = "drafts that pay off have 2 to 15 %; measure this one with `specserve bench`"
        yield variant.violation("model", text, related=_TARGET, help=help_)


def _weight_bytes(facts: ModelFacts | None) -> int | None:
    from specserve.models.facts import BITS

    tensors = (facts.tensors if facts else None) or {}
    if not tensors or any(tensor.dtype not in BITS for tensor in tensors.values()):
        return None
    return sum(tensor.size_bytes for tensor in tensors.values()) or None
