"""SD237 to SD240 about draft heads: whether they were made for this target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.arms import Config, architectures, hidden_size, layers, section, vocab_size, whole
from specserve.checks.heads import head_arms
from specserve.checks.revisions import is_hub_id
from specserve.checks.rule import CheckedArm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.vllm.facts import QUANTIZED_DFLASH

_BUILD = re.compile(
    r"(?i)[-_.](fp8|fp4|nvfp4|mxfp4|int4|int8|awq|gptq|autoround|quantized|dynamic|block|bnb|4bit|8bit|w\d+a\d+|"
    r"bf16|fp16|hf|gguf|kv|marlin|sym|g\d+|q\d\w*)(?=[-_.]|$)"
)
_TARGET = (("target.model", "the target"),)
_IDS = "eagle_aux_hidden_state_layer_ids"


@rule("SD237", "head-of-another-size", Severity.ERROR, needs="models")
def head_of_another_size(ctx: Context) -> Iterator[Hit]:
    """The head takes hidden states of another width than the target's.

    It was trained for another model. Loading fails, or the first request does. It also fails for a head of the Llama
    class that reads other than three layers and says so in `eagle_aux_hidden_state_layer_ids` alone
    (vllm-project/vllm#54526): vLLM counts by `num_aux_hidden_states`.
    Example:
        target: {model: ./qwen3-wide}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Instead: target: {model: ./qwen3}
    Source: vllm/model_executor/models/qwen3_dflash.py (from 0.27), `target_hidden_size = (`
    """
    width = hidden_size(ctx.target_config or {})
    for arm, config in head_arms(ctx) if width else ():
        assert width is not None
        expected = whole(config, "target_hidden_size", "hidden_size")
        is_laguna = architectures(config) == ("DFlashLagunaForCausalLM",)
        text = _wrong_input(arm, config, width=width) or _miscounted(arm, config)
        if expected not in (None, width) and not is_laguna:
            text = f"the head takes hidden states of width {expected}; the target has {width}"
        if text is not None:
            help_ = "take the head that was trained for this target"
            yield Hit(f"{arm.path}.model", text, related=_TARGET, help=help_)


def _wrong_input(arm: CheckedArm, config: Config, *, width: int) -> str | None:
    """What the first matrix of an EAGLE head says against its method."""
    matrix = ((arm.draft.tensors if arm.draft else None) or {}).get("fc.weight")
    if arm.speculation.method not in ("eagle", "eagle3") or matrix is None or len(matrix.shape) != 2:
        return None
    inputs = matrix.shape[1]
    if matrix.dtype not in ("BF16", "F16", "F32") or whole(config, "hidden_size") != width:
        return None
    made_for = {2 * width: "eagle", 3 * width: "eagle3"}.get(inputs)
    counts = (
        section(config, "eagle_config").get(_IDS) or config.get("num_aux_hidden_states") or config.get(_IDS)
    )
    if made_for in (None, arm.speculation.method) or counts:
        return None  # a head may say itself how many hidden states it takes
    return f"this is a head for `{made_for}`: it takes {inputs // width} vectors of width {width}"


def _miscounted(arm: CheckedArm, config: Config) -> str | None:
    """Whether the head names another number of layers than vLLM builds it for: only some classes read that list."""
    ids, nested = _numbers(config.get(_IDS)), section(config, "eagle_config").get(_IDS)
    reads = any("Qwen3" in name for name in architectures(config))
    if arm.speculation.method != "eagle3" or not ids or len(ids) == 3 or nested or reads:
        return None
    if whole(config, "num_aux_hidden_states") is not None:
        return None
    return f"vLLM builds this head for 3 hidden states; its config.json names {len(ids)} layers"


@rule("SD238", "layer-beyond-target", Severity.ERROR, needs="models")
def layer_beyond_target(ctx: Context) -> Iterator[Hit]:
    """The head reads a layer that the target does not have.

    The head was trained for a deeper model. vLLM collects fewer hidden states than the head takes, and the first
    request ends the engine.
    Example:
        target: {model: ./qwen3-flat}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Instead: target: {model: ./qwen3}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, `get_eagle3_aux_layers_from_config`
    """
    depth = layers(ctx.target_config or {})
    for arm, config in head_arms(ctx) if depth else ():
        deepest = max(_layer_ids(arm.speculation.method, config), default=0)
        if deepest > (depth or 0):
            text = f"the head reads the output of layer {deepest}; the target has {depth} layers"
            help_ = "take the head that was trained for this target"
            yield Hit(f"{arm.path}.model", text, related=_TARGET, help=help_)


def _layer_ids(method: str, config: Config) -> list[int]:
    """The layers whose output the head reads, counted from 1; none if it leaves them to vLLM."""
    own = _numbers(config.get(_IDS))
    if method == "eagle" or own:
        return [] if method == "eagle" else own
    inner = section(config, "dflash_config").get("target_layer_ids")
    for value in (inner, config.get("dspark_target_layer_ids"), config.get("target_layer_ids")):
        if _numbers(value):
            return [index + 1 for index in _numbers(value)]
    return []


def _numbers(value: Any) -> list[int]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


@rule("SD239", "head-of-another-target", Severity.WARNING, needs="models")
def head_of_another_target(ctx: Context) -> Iterator[Hit]:
    """The head names another model that it was trained for.

    The sizes fit, so vLLM serves the pair. A head follows the hidden states of one model: with another of the same
    family its drafts are rejected more often, sometimes always. Quantised builds of the same model count as it.
    Example:
        target: {model: ./llama-base, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-speculator, num_speculative_tokens: 3}
    Instead: target: {model: ./llama-instruct, max_model_len: 2048}
    Source: vllm/transformers_utils/config.py, `verifier_model = speculators_config["verifier"]["name_or_path"]`
    """
    own = ctx.target.config.get("_name_or_path") if ctx.target else None
    names = (ctx.profile.target.model, own)  # a directory's own name says nothing
    known = {_bare(name) for name in names if isinstance(name, str) and is_hub_id(name)}
    for arm in ctx.arms if known else ():
        config = arm.draft.config if arm.draft else {}
        named = section(section(config, "speculators_config"), "verifier").get("name_or_path")
        if isinstance(named, str) and named and _bare(named) not in known:
            text = f"the head was trained for `{named}`"
            help_ = "take the head of this target; where it is the same model, silence this finding"
            yield Hit(f"{arm.path}.model", text, related=_TARGET, help=help_)


def _bare(model: str) -> str:
    """A model's name without organisation and build: `llama-3.1-8b-instruct`."""
    name = model.rstrip("/").rpartition("/")[2]
    while (shorter := _BUILD.sub("", name)) != name:
        name = shorter
    return name.lower().removeprefix("meta-")


@rule("SD240", "missing-vocabulary-map", Severity.WARNING, needs="models")
def missing_vocabulary_map(ctx: Context) -> Iterator[Hit]:
    """The head drafts from a smaller vocabulary, and the checkpoint does not say which tokens those are.

    `d2t` maps the head's tokens to the target's. Without it vLLM takes the head's token i for the target's token i:
    nearly every draft is another word than the head meant.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3-unmapped, num_speculative_tokens: 3}
    Instead: speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Source: vllm/model_executor/models/llama_eagle3.py (from 0.29), `orig_to_new_substr["draft_id_to_target_id"] = None`
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
            text = f"the head drafts {drafts} of {own} tokens, and has no `d2t` to tell which"
            yield Hit(f"{arm.path}.model", text, help="take a complete checkpoint of the head")


@rule("SD257", "quantized-block-head", Severity.ERROR, needs="models")
def quantized_block_head(ctx: Context) -> Iterator[Hit]:
    """The DFlash head is quantised, and this vLLM takes plain heads only.

    Before 0.31 vLLM joins the head's key and value matrices as if they were plain. It loads the head, and the engine
    ends in its first pass, on the shapes (vllm-project/vllm#51581).
    Example:
        vllm: "==0.27.*"
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash-fp8, num_speculative_tokens: 7}
    Instead: speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Source: vllm/model_executor/models/qwen3_dflash.py (from 0.31), `proj.quant_method, UnquantizedLinearMethod`
    """
    found = [version for version in ctx.judged if not QUANTIZED_DFLASH.at(version)]
    for arm, config in head_arms(ctx) if found else ():
        if arm.speculation.method == "dflash" and isinstance(config.get("quantization_config"), Mapping):
            text = f"vLLM {', '.join(found)} takes no DFlash head that is quantised"
            yield Hit(f"{arm.path}.model", text, versions=found, help="take the head that is not quantised")
