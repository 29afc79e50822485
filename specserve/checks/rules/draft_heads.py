"""SD235, SD236, SD241 to SD243 and SD258 about draft heads: whether vLLM knows them, and how many tokens they draft."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import Config, architectures, has_kind, model_type, section, text_config, whole
from specserve.checks.rule import CheckedArm, Context, Hit, rule
from specserve.checks.rules.multitoken import predicts
from specserve.diagnostics import Severity
from specserve.vllm.facts import PARTIAL_DSPARK_BLOCKS

_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_DSPARK_CLASSES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel")
_STAGED = ("deepseek_v4", "deepseek_v41")
_METHODS = {"Eagle3": "eagle3", "DFlash": "dflash", "DSpark": "dspark", "Eagle": "eagle"}
"""The method of a head by a word in its class."""


def method_of(config: Config) -> str | None:
    """The method that a draft head was made for, by its config.json; None if it is no head."""
    for kind in (
        config.get("speculators_model_type"),
        section(config, "speculators_config").get("algorithm"),
    ):
        if kind in _METHODS.values():
            return str(kind)
    own = _own_method(config)
    if own:
        return own
    names = architectures(config)
    return next((method for word, method in _METHODS.items() if any(word in name for name in names)), None)


def head_arms(ctx: Context) -> Iterator[tuple[CheckedArm, Config]]:
    """The arms with a head of its own that was read."""
    for arm in ctx.arms:
        config = ctx.draft_config(arm) if arm.speculation.model else None
        if config is not None and arm.speculation.method in _METHODS.values():
            yield arm, config


@rule("SD235", "unknown-head", Severity.ERROR, needs="models")
def unknown_head(ctx: Context) -> Iterator[Hit]:
    """vLLM has no class for this head.

    vLLM writes `Eagle`, `Eagle3` or `DFlash` before the class that the head's config.json names, and has such classes
    only for model families that heads were published for. It refuses any other class: if an `EagleLlamaForCausalLM` is
    run as `eagle3`, there is no `Eagle3EagleLlamaForCausalLM`.
    Example:
        target: {model: ./qwen}
        speculation: {method: eagle, model: ./qwen-eagle, num_speculative_tokens: 3}
    Use instead:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle, model: ./llama-eagle, num_speculative_tokens: 3}
    Source: vllm/transformers_utils/configs/eagle.py, `f"Eagle{arch}" if not arch.startswith("Eagle") else arch`
    """
    read = {arm.path: config for arm, config in head_arms(ctx)}
    for arm in ctx.arms:
        raw = arm.draft.config if arm.draft else {}
        names = _loaded_as(arm.speculation.method, read.get(arm.path, {}))
        kind = raw.get("speculators_model_type")
        if isinstance(kind, str):
            found = ctx.where(lambda known, kind=kind: kind not in known.speculators)  # type: ignore[misc]
            text = f"does not read heads of the kind `{kind}`"
        elif names and not raw.get("auto_map"):
            found = ctx.where(lambda known, names=names: not any(n in known.classes for n in names))  # type: ignore[misc]
            text = f"has no head of the class `{names[0]}`"
        else:
            continue
        if found:
            yield Hit(
                f"{arm.path}.model",
                f"vLLM {', '.join(found)} {text}",
                related=((f"{arm.path}.method", "the method"),),
                versions=found,
                help=_other_method((*(arm.draft.architectures if arm.draft else ()), "")[0]),
            )


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
    return "use a head that was published for vLLM, or the method `draft_model`, `ngram` or `suffix`"


@rule("SD236", "head-as-draft", Severity.ERROR, needs="models")
def head_as_draft(ctx: Context) -> Iterator[Hit]:
    """A head, or a model with multi-token prediction layers, is run as a draft model.

    A head by itself predicts nothing useful: without the target's hidden states, every draft token is rejected, or
    loading fails. If the draft's family has multi-token prediction layers, vLLM silently runs the draft as `mtp` and
    uses only these layers, whatever `method` says.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: draft_model, model: ./mimo-small, num_speculative_tokens: 1}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 1}
    Source:
        vllm/config/speculative.py (from 0.33), `in get_args(MTPModelTypes)`
        vllm/config/speculative.py (to 0.32), `elif self.draft_model_config.hf_config.model_type in get_args(`
    """
    for arm in ctx.arms:
        config = ctx.draft_config(arm)
        if arm.speculation.method != "draft_model" or config is None or arm.draft is None:
            continue
        own, name = _own_method(config), (*architectures(config), model_type(config))[0]
        if own:
            text = f"vLLM sees that this is a `{name}`, and runs it as `{own}`"
            yield Hit(f"{arm.path}.method", text, help=f"write `method: {own}`", severity=Severity.INFO)
            continue
        heads = ctx.where(lambda known, config=config: has_kind(config, known, "draft"))  # type: ignore[misc]
        retyped = ctx.where(lambda known, config=config: predicts(config, known))  # type: ignore[misc]
        if arm.draft.config.get("speculators_model_type") or heads:
            text, help_ = "this is a draft head, not a draft model", _other_method(name)
        elif retyped:
            text = f"vLLM runs a `{name}` draft as `mtp`, with its prediction layers only"
            help_ = "use a draft of another family"
        else:
            continue
        related = ((f"{arm.path}.method", "the profile says `draft_model`"),)
        yield Hit(f"{arm.path}.model", text, related=related, versions=heads or retyped, help=help_)


def _own_method(config: Config) -> str | None:
    """The method that vLLM itself puts in the place of `draft_model` for a draft that was made for it.

    Source: vllm/config/speculative.py, `# Automatically detect the method`.
    """
    names, kind = architectures(config), model_type(config)
    if "MuseGlimmerAssistantModel" in names:
        return "dflash"
    if any(name in _DSPARK_CLASSES for name in names) or (names == ("DSparkDraftModel",) and kind == "qwen3"):
        return "dspark"
    return "mtp" if kind.endswith(("_assistant", "_mtp")) else None


@rule("SD241", "missing-mask-token", Severity.ERROR, needs="models")
def missing_mask_token(ctx: Context) -> Iterator[Hit]:
    """Parallel drafting is asked for, but the model has no mask token.

    Parallel drafting puts a mask token, which the draft was trained to read as empty, at each position that it drafts.
    vLLM looks for the token's id in the draft's config.json while it loads, and fails if there is none.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4, parallel_drafting: true}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `"For parallel drafting, the draft model config must have "`
    """
    for arm in ctx.arms:
        block, config = arm.speculation, ctx.draft_config(arm) if arm.speculation.model else None
        if config is None or not (block.keys.get("parallel_drafting") is True or block.method == "dflash"):
            continue
        nested = section(config, "dflash_config").get("mask_token_id") is not None
        if not nested and all(config.get(key) is None for key in _MASKS):
            explicit = "parallel_drafting" in block.keys
            yield Hit(
                f"{arm.path}.parallel_drafting" if explicit else f"{arm.path}.model",
                "config.json of the draft names no mask token",
                related=((f"{arm.path}.model", "the draft"),) * explicit,
                help="parallel drafting needs a draft that was trained for it (PARD, P-EAGLE, DFlash)",
            )


@rule("SD258", "serial-parallel-head", Severity.WARNING, needs="models")
def serial_parallel_head(ctx: Context) -> Iterator[Hit]:
    """A head that was trained to draft all its tokens in one pass drafts them one after the other.

    The checkpoint of a P-EAGLE head holds the hidden state of a mask (`mask_hidden`). Without `parallel_drafting`, vLLM
    skips this tensor with a warning and runs the head once per token, which it was not trained for: each draft costs
    K passes, and the tokens after the first are accepted less often. A P-EAGLE head of the speculators library says by
    itself that it drafts in parallel.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-peagle, num_speculative_tokens: 3}
    Instead: speculation: {method: eagle3, model: ./llama-peagle, num_speculative_tokens: 3, parallel_drafting: true}
    Source: vllm/model_executor/models/llama_eagle3.py, `"mask_hidden found in weights but "`
    """
    for arm, config in head_arms(ctx):
        tensors = (arm.draft.tensors if arm.draft else None) or {}
        is_told = (
            arm.speculation.keys.get("parallel_drafting") is True or config.get("parallel_drafting") is True
        )
        is_own = arm.draft is not None and arm.draft.config.get("speculators_model_type") == "peagle"
        if arm.speculation.method != "eagle3" or is_told or is_own:
            continue
        if any(name.endswith("mask_hidden") for name in tensors):
            yield Hit(
                f"{arm.path}.model",
                "the head was trained to draft in parallel, and will draft one token per pass",
                related=((f"{arm.path}.method", "without `parallel_drafting`"),),
                help="write `parallel_drafting: true`",
            )


@rule("SD242", "block-overrun", Severity.WARNING, needs="models")
def block_overrun(ctx: Context) -> Iterator[Hit]:
    """More tokens are drafted per step than the head was trained to draft.

    A block head drafts one block per step. It was never trained on tokens beyond the block: they are rejected, and
    their verification still takes time. The same holds for the DSpark stages inside a DeepSeek V4 checkpoint
    (vllm-project/vllm#41834).
    Example:
        target: {model: ./qwen3}
        speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 12}
    Instead: speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Source:
        vllm/config/vllm.py (from 0.33), `# Fill-in drafting uses a bonus query plus one query per draft token.`
        vllm/config/speculative.py (0.28 to 0.32), `# DFlash uses one bonus query followed by K mask queries.`
    """
    target = ctx.target_config or {}
    stages = [arm for arm in ctx.arms if arm.speculation.method == "dspark" and not arm.speculation.model]
    staged = [(arm, text_config(target)) for arm in stages if model_type(target) in _STAGED]
    for arm, config in (*head_arms(ctx), *staged):
        method, k = arm.speculation.method, arm.speculation.num_speculative_tokens
        block = whole(config, "block_size", "dspark_block_size")
        if method not in ("dflash", "dspark") or block is None or not k:
            continue
        # whether the first place of a block is drafted too
        inner = section(config, "dflash_config").get("sample_from_anchor")
        anchored = inner is True or config.get("sample_from_anchor") is True
        most = block if method == "dspark" or anchored else block - 1
        if k > most:
            yield Hit(
                f"{arm.path}.num_speculative_tokens",
                f"the head drafts {most} tokens in one pass; the profile asks for {k}",
                related=((f"{arm.path if arm.speculation.model else 'target'}.model", f"blocks of {block}"),),
                help=f"write `num_speculative_tokens: {most}`",
            )


@rule("SD243", "missing-dspark-stages", Severity.ERROR, needs="models")
def missing_dspark_stages(ctx: Context) -> Iterator[Hit]:
    """The method is `dspark` without a head, but the target has no DSpark stages.

    Only DeepSeek V4 has DSpark stages in its own checkpoint. For any other target, vLLM builds a DeepSeek head from the
    wrong configuration, and fails.
    Example:
        target: {model: ./qwen3}
        speculation: {method: dspark, num_speculative_tokens: 4}
    Instead: speculation: {method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7}
    Source: vllm/config/speculative.py, `# DeepSeek DSpark can ship the weights inside the target checkpoint`
    """
    is_staged = ctx.target_config is None or model_type(ctx.target_config) in _STAGED
    for arm in ctx.arms if not is_staged else ():
        if arm.speculation.method == "dspark" and not arm.speculation.model:
            text, related = "the target has no DSpark stages of its own", (("target.model", "the target"),)
            yield Hit(f"{arm.path}.method", text, related=related, help="set `model` to a DSpark head")


@rule("SD244", "partial-block", Severity.ERROR, needs="models")
def partial_block(ctx: Context) -> Iterator[Hit]:
    """Fewer tokens are drafted than a block of the DSpark head holds, but vLLM accepts only whole blocks.

    vLLM 0.26 and 0.27 refuse a partial block, because the head would write garbled text. Later versions cut the block.
    A DSpark head for Qwen3-Omni needs whole blocks in every version.
    Example:
        vllm: "==0.26.*"
        target: {model: ./qwen3}
        speculation: {method: dspark, model: ./qwen3-dspark, num_speculative_tokens: 3}
    Instead: speculation: {method: dspark, model: ./qwen3-dspark, num_speculative_tokens: 7}
    Source: vllm/config/speculative.py (0.26), `"DSpark requires num_speculative_tokens >= "`
    """
    for arm in ctx.arms:
        config, k = ctx.draft_config(arm), arm.speculation.num_speculative_tokens
        if arm.speculation.method != "dspark" or config is None or not k:
            continue
        block = whole(config, "dspark_block_size")
        found = [version for version in ctx.judged if not PARTIAL_DSPARK_BLOCKS.at(version)]
        if architectures(config) == ("Qwen3OmniDSparkModel",):
            block, found = whole(config, "block_size", "dspark_block_size"), list(ctx.judged)
        if block is not None and k < block and found:
            yield Hit(
                f"{arm.path}.num_speculative_tokens",
                f"the head drafts blocks of {block} tokens; the profile asks for {k}",
                versions=found,
                help=f"write `num_speculative_tokens: {block}`",
            )
