"""SD237 to SD240 about draft heads: whether they were made for this target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.arms import (
    Config,
    architectures,
    hidden_size,
    judged,
    layers,
    only_in,
    severity_in,
    target_config,
    vocab_size,
    whole,
)
from specserve.checks.heads import head_arms
from specserve.checks.revisions import is_hub_id
from specserve.checks.rule import Arm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.vllm.facts import QUANTIZED_DFLASH

_FLOATS = frozenset({"BF16", "F16", "F32"})
_BUILD = re.compile(
    r"(?i)[-_.](fp8|fp4|nvfp4|mxfp4|int4|int8|awq|gptq|autoround|quantized|dynamic|block|bnb|4bit|8bit|w\d+a\d+|"
    r"bf16|fp16|hf|gguf|kv|marlin|sym|g\d+|q\d\w*)(?=[-_.]|$)"
)


@rule("SD237", "head-of-another-size", Severity.ERROR, needs="models")
def head_of_another_size(ctx: Context) -> Iterator[Hit]:
    """The head takes hidden states of another width than the target's.

    ## Why is this bad?
    It was trained for another model. Loading fails, or the first request does. It also fails for a head of the
    Llama class that reads other than three layers and says so in `eagle_aux_hidden_state_layer_ids` alone
    (vllm-project/vllm#54526): vLLM counts by `num_aux_hidden_states`.

    ## Example
        target: {model: ./qwen3-wide}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}

    ## Use instead
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}

    ## Source
    vllm/model_executor/models/qwen3_dflash.py (from 0.27), `target_hidden_size = (`
    """
    target = target_config(ctx)
    width = hidden_size(target) if target is not None else None
    for arm, config in head_arms(ctx) if width else ():
        expected = whole(config, "target_hidden_size") or whole(config, "hidden_size")
        if (
            expected is not None
            and expected != width
            and architectures(config) != ("DFlashLagunaForCausalLM",)
        ):
            text = f"the head takes hidden states of width {expected}; the target has {width}"
        elif (wrong := _wrong_input(arm, config, width=width or 0)) is not None:
            text = wrong
        elif (miscounted := _miscounted(arm, config)) is not None:
            text = miscounted
        else:
            continue
        yield Hit(
            f"{arm.path}.model",
            text,
            related=(("target.model", "the target"),),
            help="take the head that was trained for this target",
        )


def _wrong_input(arm: Arm, config: Config, *, width: int) -> str | None:
    """What the first matrix of an EAGLE head says against its method."""
    tensors = (arm.draft.tensors if arm.draft else None) or {}
    matrix = tensors.get("fc.weight")
    if arm.speculation.method not in ("eagle", "eagle3") or matrix is None or len(matrix.shape) != 2:
        return None
    own, inputs = whole(config, "hidden_size"), matrix.shape[1]
    if matrix.dtype not in _FLOATS or own is None or own != width:
        return None
    made_for = {2 * width: "eagle", 3 * width: "eagle3"}.get(inputs)
    if made_for is None or made_for == arm.speculation.method or _counts_states(config):
        return None
    return f"this is a head for `{made_for}`: it takes {inputs // width} vectors of width {width}"


def _miscounted(arm: Arm, config: Config) -> str | None:
    """Whether the head names another number of layers than vLLM builds it for: only some classes read that list."""
    ids, own = _numbers(config.get("eagle_aux_hidden_state_layer_ids")), config.get("eagle_config")
    nested = isinstance(own, Mapping) and own.get("eagle_aux_hidden_state_layer_ids")
    reads = any("Qwen3" in name for name in architectures(config))
    if arm.speculation.method != "eagle3" or not ids or len(ids) == 3 or nested or reads:
        return None
    if whole(config, "num_aux_hidden_states") is not None:
        return None
    return f"vLLM builds this head for 3 hidden states; its config.json names {len(ids)} layers"


def _counts_states(config: Config) -> bool:
    """Whether the head says itself how many hidden states it takes."""
    inner = config.get("eagle_config")
    nested = isinstance(inner, Mapping) and inner.get("eagle_aux_hidden_state_layer_ids")
    return bool(
        nested or config.get("num_aux_hidden_states") or config.get("eagle_aux_hidden_state_layer_ids")
    )


@rule("SD238", "layer-beyond-target", Severity.ERROR, needs="models")
def layer_beyond_target(ctx: Context) -> Iterator[Hit]:
    """The head reads a layer that the target does not have.

    ## Why is this bad?
    The head was trained for a deeper model. vLLM collects fewer hidden states than the head takes, and the first
    request ends the engine.

    ## Example
        target: {model: ./qwen3-flat}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}

    ## Use instead
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}

    ## Source
    vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, `get_eagle3_aux_layers_from_config`
    """
    target = target_config(ctx)
    depth = layers(target) if target is not None else None
    for arm, config in head_arms(ctx) if depth else ():
        beyond = [index for index in _layer_ids(arm.speculation.method, config) if index > (depth or 0)]
        if beyond:
            yield Hit(
                f"{arm.path}.model",
                f"the head reads the output of layer {max(beyond)}; the target has {depth} layers",
                related=(("target.model", "the target"),),
                help="take the head that was trained for this target",
            )


def _layer_ids(method: str, config: Config) -> list[int]:
    """The layers whose output the head reads, counted from 1; none where it leaves them to vLLM."""
    if method == "eagle":
        return []
    own = _numbers(config.get("eagle_aux_hidden_state_layer_ids"))
    if own:
        return own
    inner = config.get("dflash_config")
    for value in (
        inner.get("target_layer_ids") if isinstance(inner, Mapping) else None,
        config.get("dspark_target_layer_ids"),
        config.get("target_layer_ids"),
    ):
        if _numbers(value):
            return [index + 1 for index in _numbers(value)]
    return []


def _numbers(value: Any) -> list[int]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


@rule("SD239", "head-of-another-target", Severity.WARNING, needs="models")
def head_of_another_target(ctx: Context) -> Iterator[Hit]:
    """The head names another model that it was trained for.

    ## Why is this bad?
    The sizes fit, so vLLM serves the pair. A head follows the hidden states of one model: with another of the same
    family its drafts are rejected more often, sometimes always. Quantised builds of the same model count as it.

    ## Example
        target: {model: ./llama-base, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-speculator, num_speculative_tokens: 3}

    ## Use instead
        target: {model: ./llama-instruct, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-speculator, num_speculative_tokens: 3}

    ## Source
    vllm/transformers_utils/config.py, `verifier_model = speculators_config["verifier"]["name_or_path"]`
    """
    known = _names(ctx)
    for arm in ctx.arms if known else ():
        named = _verifier(arm)
        if named is not None and _bare(named) not in known:
            yield Hit(
                f"{arm.path}.model",
                f"the head was trained for `{named}`",
                related=(("target.model", "the target"),),
                help="take the head of this target; where it is the same model, silence this finding",
            )


def _names(ctx: Context) -> set[str]:
    """What the target is called on the Hub; a directory's own name says nothing."""
    own = ctx.target.config.get("_name_or_path") if ctx.target else None
    return {
        _bare(name) for name in (ctx.profile.target.model, own) if isinstance(name, str) and is_hub_id(name)
    }


def _verifier(arm: Arm) -> str | None:
    config = arm.draft.config.get("speculators_config") if arm.draft else None
    verifier = config.get("verifier") if isinstance(config, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return name if isinstance(name, str) and name else None


def _bare(model: str) -> str:
    """A model's name without organisation and build: `llama-3.1-8b-instruct`."""
    name = model.rstrip("/").rpartition("/")[2]
    shorter = _BUILD.sub("", name)
    while shorter != name:
        name, shorter = shorter, _BUILD.sub("", shorter)
    return name.lower().removeprefix("meta-")


@rule("SD240", "missing-vocabulary-map", Severity.WARNING, needs="models")
def missing_vocabulary_map(ctx: Context) -> Iterator[Hit]:
    """The head drafts from a smaller vocabulary, and the checkpoint does not say which tokens those are.

    ## Why is this bad?
    `d2t` maps the head's tokens to the target's. Without it vLLM takes the head's token i for the target's token i:
    nearly every draft is another word than the head meant.

    ## Example
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3-unmapped, num_speculative_tokens: 3}

    ## Use instead
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}

    ## Source
    vllm/model_executor/models/llama_eagle3.py (from 0.29), `orig_to_new_substr["draft_id_to_target_id"] = None`
    """
    for arm, config in head_arms(ctx):
        drafts, own = whole(config, "draft_vocab_size"), vocab_size(config)
        tensors = arm.draft.tensors if arm.draft else None
        if (
            arm.speculation.method != "eagle3"
            or not tensors
            or drafts is None
            or own is None
            or drafts >= own
        ):
            continue
        if not any("d2t" in name or "draft_id_to_target_id" in name for name in tensors):
            yield Hit(
                f"{arm.path}.model",
                f"the head drafts {drafts} of {own} tokens, and has no `d2t` to tell which",
                help="take a complete checkpoint of the head",
            )


@rule("SD257", "quantized-block-head", Severity.ERROR, needs="models")
def quantized_block_head(ctx: Context) -> Iterator[Hit]:
    """The DFlash head is quantised, and this vLLM takes plain heads only.

    ## Why is this bad?
    Before 0.31 vLLM joins the head's key and value matrices as if they were plain. It loads the head, and the engine
    ends in its first pass, on the shapes (vllm-project/vllm#51581).

    ## Example
        vllm: "==0.27.*"
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash-fp8, num_speculative_tokens: 7}

    ## Use instead
        vllm: "==0.27.*"
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}

    ## Source
    vllm/model_executor/models/qwen3_dflash.py (from 0.31), `isinstance(proj.quant_method, UnquantizedLinearMethod)`
    """
    found = [version for version in judged(ctx) if not QUANTIZED_DFLASH.at(version)]
    for arm, config in head_arms(ctx) if found else ():
        if arm.speculation.method == "dflash" and isinstance(config.get("quantization_config"), Mapping):
            yield Hit(
                f"{arm.path}.model",
                f"vLLM {', '.join(found)} takes no DFlash head that is quantised",
                notes=only_in(ctx, found),
                help="take the head that is not quantised",
                severity=severity_in(ctx, found),
            )
