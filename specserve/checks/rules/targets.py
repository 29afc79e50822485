"""SD251 to SD256 and SD259 about the target and what it is asked to do: types, experts, adapters, caches."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import (
    architectures,
    has_kind,
    heads,
    kv_heads,
    lacks,
    model_type,
    section,
    text_config,
    whole,
)
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.rules.models import has_no_embedding
from specserve.diagnostics import Severity
from specserve.errors import FactError
from specserve.models.architecture import read_shape
from specserve.models.facts import ModelFacts
from specserve.vllm.facts import UNDRAFTED_HYBRIDS

_NO_HALF = ("gemma2", "gemma3", "gemma3_text", "glm4")
"""`_FLOAT16_NOT_SUPPORTED_MODELS` of vllm/config/model.py, 0.26 to 0.33."""
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts", "block_configs")
_MODEL = (("target.model", "the model"),)
_APART = frozenset({"LMCacheConnectorV1", "FlexKVConnectorV1", "HF3FSKVConnector", "ExampleConnector"})
"""KV connectors that are no `SupportsHMA` in any vLLM from 0.26 to 0.33."""


@rule("SD251", "unsupported-half", Severity.ERROR, needs="models")
def unsupported_half(ctx: Context) -> Iterator[Hit]:
    """The profile asks for float16, but the model overflows in this type.

    vLLM refuses float16 for model families whose activations exceed its range. The draft runs in the target's type, so
    the rule checks the draft, too. bfloat16 has a sufficient range.
    Example: target: {model: ./gemma2, dtype: float16}
    Use instead: target: {model: ./gemma2, dtype: bfloat16}
    Source: vllm/config/model.py, `does not support float16. Reason: `
    """
    for path, config in ctx.models() if ctx.profile.target.dtype in ("float16", "half") else ():
        if model_type(config) in _NO_HALF:
            text = f"vLLM does not run `{model_type(config)}` models in float16"
            help_ = "write `dtype: bfloat16`, or `float32` if the hardware has no bfloat16"
            yield Hit(path, text, related=(("target.dtype", "asked for here"),), help=help_)


@rule("SD252", "missing-experts", Severity.ERROR, needs="models")
def missing_experts(ctx: Context) -> Iterator[Hit]:
    """Expert parallelism is asked for, but the model has no experts.

    vLLM refuses `enable_expert_parallel` for a dense model.
    Example:
        target: {model: ./llama}
        engine: {enable_expert_parallel: true}
    Instead: target: {model: ./qwen3-moe}
    Source: vllm/config/model.py, `"Number of experts in the model must be greater than 0 "`
    """
    config = ctx.target_config
    if ctx.profile.engine.get("enable_expert_parallel") is not True or config is None:
        return
    text = text_config(config)
    has_experts = any(text.get(key) is not None for key in _EXPERTS)
    found = ctx.where(lambda known: has_kind(config, known, "text"))
    if not has_experts and found and "moe" not in f"{model_type(text)}{architectures(config)}".lower():
        message = f"a `{architectures(config)[0]}` has no experts"
        yield Hit(
            "engine.enable_expert_parallel", message, related=_MODEL, versions=found, help="leave it out"
        )


@rule("SD253", "unadaptable-model", Severity.ERROR, needs="models")
def unadaptable_model(ctx: Context) -> Iterator[Hit]:
    """LoRA adapters are enabled for a model that does not support them.

    vLLM says `does not support LoRA yet` after the model is loaded.
    Example:
        target: {model: ./gpt2}
        engine: {enable_lora: true}
    Instead: target: {model: ./llama}
    Source: vllm/v1/worker/lora_model_runner_mixin.py, `does not support LoRA yet.`
    """
    config, engine = ctx.target_config, ctx.profile.engine
    if engine.get("enable_lora") is not True or config is None or config.get("auto_map"):
        return
    if engine.get("model_impl", "auto") != "auto":
        return
    found = ctx.where(lambda known: lacks(config, known, "lora"))
    if found:
        text = f"a `{architectures(config)[0]}` takes no adapters"
        help_ = "merge the adapter into the weights, and serve those"
        yield Hit("engine.enable_lora", text, related=_MODEL, versions=found, help=help_)


@rule("SD254", "uncuttable-context", Severity.ERROR, needs="models")
def uncuttable_context(ctx: Context) -> Iterator[Hit]:
    """Decode context parallelism asks for more parts than there are copies of a KV head.

    `decode_context_parallel_size` divides the KV cache of one head over the ranks that hold a copy of this head. vLLM
    refuses more parts than copies. The number of copies is `tensor_parallel_size` divided by the number of KV heads.
    vLLM also refuses a number of parts that does not divide the query heads of one KV head.
    Example:
        target: {model: ./qwen3, tensor_parallel_size: 2}
        engine: {decode_context_parallel_size: 2}
    Instead: target: {model: ./qwen3, tensor_parallel_size: 4}
    Source: vllm/config/model.py (from 0.27), `"Decode context parallelism for GQA/MQA requires "`
    """
    config, parts = ctx.target_config or {}, whole(ctx.profile.engine, "decode_context_parallel_size")
    size, groups, total = ctx.profile.target.tensor_parallel_size, kv_heads(config), heads(config)
    if parts in (None, 1) or groups is None or total is None or (size % groups and groups % size):
        return
    assert parts is not None
    repeats, shared = size // groups, total // groups
    if parts > repeats:
        text = f"each KV head is on {max(repeats, 1)} rank{'s' if repeats > 1 else ''}"
    elif shared % parts:
        text = f"{shared} query heads share a KV head"
    else:
        return
    yield Hit(
        "engine.decode_context_parallel_size",
        f"{text}: the context cannot be cut into {parts} parts",
        related=(("target.tensor_parallel_size", f"{size} ranks, {groups} KV heads"),),
        help="raise `tensor_parallel_size`, or leave this setting out",
    )


@rule("SD255", "missing-tokenizer", Severity.ERROR, needs="models")
def missing_tokenizer(ctx: Context) -> Iterator[Hit]:
    """The target's directory has no tokenizer, and the profile names no other tokenizer.

    Training scripts often save only the weights. vLLM fails while it starts the engine.
    Example: target: {model: ./llama-mute}
    Use instead: target: {model: ./llama}
    Source: vllm/tokenizers/registry.py, `tokenizer`
    """
    target = ctx.target
    if (
        target is None
        or ctx.profile.target.tokenizer
        or ctx.profile.engine.get("skip_tokenizer_init") is True
    ):
        return
    if (
        target.origin == "directory"
        and not any(map(_of_tokenizer, target.files))
        and not _is_head(ctx, target)
    ):
        help_ = "copy the tokenizer of the original model, or name it: `tokenizer: ORG/MODEL`"
        yield Hit("target.model", "the directory holds no tokenizer", help=help_)


def _of_tokenizer(name: str) -> bool:
    return (
        "token" in name
        or name in ("tekken.json", "vocab.json", "vocab.txt")
        or name.endswith((".tiktoken", ".model"))
    )


def _is_head(ctx: Context, facts: ModelFacts) -> bool:
    """Whether SD221 says more of it."""
    drafts = ctx.where(lambda known: has_kind(facts.config, known, "draft"))
    return bool(drafts) or has_no_embedding(facts) or facts.config.get("speculators_config") is not None


@rule("SD256", "undrafted-hybrid", Severity.ERROR, needs="models")
def undrafted_hybrid(ctx: Context) -> Iterator[Hit]:
    """The target is a hybrid model for which vLLM reserves no room for the states of draft tokens.

    A recurrent layer keeps one state per draft token, so that it can return to the last accepted token. For Granite 4,
    Falcon-H1 and Zamba2, vLLM before 0.32 reserves no room for these states, and the start ends with an assertion
    (vllm-project/vllm#47635, vllm-project/vllm#57721).
    Example:
        vllm: "==0.29.*"
        target: {model: ./granite-hybrid}
        speculation: {method: ngram, num_speculative_tokens: 2, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Use instead:
        vllm: "==0.29.*"
        target: {model: ./granite-hybrid}
    Source: vllm/model_executor/models/granitemoehybrid.py (from 0.32), `num_spec=vllm_config.num_speculative_tokens`
    """
    kind = model_type(ctx.target_config or {})
    found = [version for version in ctx.judged if kind in UNDRAFTED_HYBRIDS.at(version)]
    for arm in ctx.arms if found else ():
        yield Hit(
            f"{arm.path}.method",
            f"vLLM {', '.join(found)} cannot speculate with a `{kind}`",
            related=(("target.model", "the target"),),
            versions=found,
            help="serve it without speculation, or use a vLLM version that supports it",
        )


@rule("SD259", "missing-hybrid-manager", Severity.ERROR, needs="models")
def missing_hybrid_manager(ctx: Context) -> Iterator[Hit]:
    """The hybrid KV cache manager is off, and the model cannot run without it.

    Recurrent layers (Mamba, linear attention) keep a state, attention layers keep keys and values of every token. Only
    the hybrid manager holds both. Some KV connectors cannot work with it, and vLLM then switches it off by itself. The
    start ends with `Failed to promote local KV cache specs to one unified type`, with speculation and without.
    Example:
        target: {model: ./granite-hybrid}
        engine: {disable_hybrid_kv_cache_manager: true}
    Use instead: target: {model: ./granite-hybrid}
    Source:
        vllm/config/vllm.py, `"(e.g. Jamba, Bamba) require HMA and will fail at "`
        vllm/v1/core/kv_cache_utils.py, `Failed to promote local KV cache specs to one unified type.`
    """
    engine = ctx.profile.engine
    off = engine.get("disable_hybrid_kv_cache_manager")
    connector = section(engine, "kv_transfer_config").get("kv_connector")
    if ctx.target is None or not (off is True or (off is None and connector in _APART)):
        return
    try:
        is_hybrid = read_shape(ctx.target.model, ctx.target.config).is_hybrid
    except FactError:
        return
    if is_hybrid:
        key = "disable_hybrid_kv_cache_manager" if off else "kv_transfer_config.kv_connector"
        why = "" if off else f", which `{connector}` switches off"
        yield Hit(
            f"engine.{key}",
            f"a `{model_type(ctx.target.config)}` needs the hybrid KV cache manager{why}",
            related=_MODEL,
            help="leave it on" if off else "use a connector that supports it, such as `OffloadingConnector`",
        )
