"""SD245 to SD249 about draft models and quantisation: what vLLM takes and what it does not, or not as it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.arms import Config, has_kind, text_config
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.models.facts import BITS, ModelFacts
from specserve.vllm.context import ropes

_SHARE = 4
"""A draft below this part of the target's bytes can pay; published pairs lie between 6 and 50."""
_FOREIGN = frozenset({
    "aqlm", "bitnet", "bitsandbytes", "deepspeedfp", "eetq", "exl2", "exl3", "gguf", "higgs", "hqq", "marlin", "mlx",
    "neuron_quant", "petit_nvfp4", "ptpc_fp8", "qqq", "quip", "rtn", "spqr", "tpu_int8", "vptq",
})  # fmt: skip
"""Formats that other libraries, or former versions, read."""
_FAMILIES = {
    "awq": "awq", "awq_marlin": "awq", "auto_awq": "awq", "gptq": "gptq", "gptq_marlin": "gptq", "auto_gptq": "gptq",
    "fp8": "fp8", "compressed-tensors": "compressed-tensors", "quark": "quark", "torchao": "torchao",
    "bitsandbytes": "bitsandbytes",
}  # fmt: skip
_FROM_FILES = ("awq", "gptq", "compressed-tensors", "quark")
_SETTINGS = ("quantize_config.json", "quant_config.json", "hf_quant_config.json", "quantization_config.json")


@rule("SD245", "oversized-draft", Severity.WARNING, needs="models")
def oversized_draft(ctx: Context) -> Iterator[Hit]:
    """The draft is not much smaller than its target.

    A step of decoding costs about as much as reading the weights once. A draft of a quarter of the target's bytes
    spends, for four tokens, the time of one of the target's own steps before anything is verified.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft-big, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: specserve, the bytes of both checkpoints
    """
    limit = _weight_bytes(ctx.target)
    for arm in ctx.arms:
        own = _weight_bytes(arm.draft) if arm.speculation.method == "draft_model" else None
        if limit is not None and own is not None and own * _SHARE >= limit:
            yield Hit(
                f"{arm.path}.model",
                f"the draft has {own / limit:.0%} of the target's bytes",
                related=(("target.model", "the target"),),
                help="drafts that pay have 2 to 15 %; only a measurement tells whether this one does",
            )


def _weight_bytes(facts: ModelFacts | None) -> int | None:
    tensors = (facts.tensors if facts else None) or {}
    if not tensors or any(tensor.dtype not in BITS for tensor in tensors.values()):
        return None
    return sum(tensor.size_bytes for tensor in tensors.values())


@rule("SD246", "text-draft", Severity.INFO, needs="models")
def text_draft(ctx: Context) -> Iterator[Hit]:
    """The target takes images or sound; its draft reads text alone.

    Requests with images are served, and drafted without having seen them: acceptance falls on those requests. Measure
    them on their own, or switch the inputs off that nobody sends.
    Example:
        target: {model: ./qwen-vl}
        speculation: {method: draft_model, model: ./qwen-vl-draft, num_speculative_tokens: 4}
    Instead: engine: {language_model_only: true}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `"Proceeding with text-only speculative decoding."`
    """
    engine, config = ctx.profile.engine, ctx.target_config
    limits = engine.get("limit_mm_per_prompt")
    no_media = isinstance(limits, Mapping) and bool(limits) and all(value == 0 for value in limits.values())
    if config is None or no_media or engine.get("language_model_only") is True:
        return
    found = ctx.where(lambda known: has_kind(config, known, "multimodal"))
    for arm in ctx.arms if found else ():
        draft = ctx.draft_config(arm)
        is_text = draft is not None and not any("vision" in key or "audio" in key for key in draft)
        drafts = arm.speculation.method in ("draft_model", "eagle", "eagle3", "dflash", "dspark")
        if drafts and arm.speculation.model and is_text:
            yield Hit(
                f"{arm.path}.model",
                "the draft sees no image or sound that the target is sent",
                related=(("target.model", "takes more than text"),),
                help="measure such requests apart, with prompts of your own",
            )


@rule("SD247", "unknown-quantization", Severity.ERROR, needs="models")
def unknown_quantization(ctx: Context) -> Iterator[Hit]:
    """The checkpoint is quantised in a way that vLLM does not read.

    vLLM refuses the start. `bitsandbytes` was read until vLLM 0.26.
    Example:
        vllm: ">=0.32"
        target: {model: ./llama-bnb}
    Instead: target: {model: ./llama}
    Source: vllm/config/model.py, `f"Unknown quantization method: {self.quantization}. Must "`
    """
    for path, config in ctx.models():
        method = _method(config)
        found = ctx.where(lambda known, method=method: method not in known.quantizations)  # type: ignore[misc]
        if found and method in _FOREIGN:
            text = f"vLLM {', '.join(found)} does not read `{method}` checkpoints"
            help_ = "take another build of the model: compressed-tensors, AWQ, GPTQ or FP8"
            yield Hit(path, text, versions=found, help=help_)


@rule("SD248", "quantization-mismatch", Severity.ERROR, needs="models")
def quantization_mismatch(ctx: Context) -> Iterator[Hit]:
    """The profile asks for another quantisation than the checkpoint has.

    `quantization` need not be said: vLLM reads it from the checkpoint. Where it is said, and differs, vLLM refuses the
    start; for a format whose weights must be prepared, and were not, it fails while loading.
    Example: target: {model: ./llama, quantization: awq}
    Use instead: target: {model: ./llama}
    Source: vllm/config/model.py, `"Quantization method specified in the model config "`
    """
    engine = ctx.profile.engine
    if engine.get("hf_overrides") is not None or engine.get("quantization_config") is not None:
        return
    for path, config, facts, asked in _asked(ctx):
        has, wanted = _method(config), _FAMILIES.get(asked)
        is_plain = not has and facts.files and not any(name in facts.files for name in _SETTINGS)
        if wanted and has and _FAMILIES.get(has) not in (wanted, None):
            text = f"the checkpoint is `{has}`; the profile asks for `{asked}`"
        elif wanted in _FROM_FILES and is_plain:
            text = f"the checkpoint is not quantised; `{asked}` needs weights that were prepared for it"
        else:
            continue
        yield Hit(path, text, help="leave `quantization` out, or take the build that has it")


def _asked(ctx: Context) -> Iterator[tuple[str, Config, ModelFacts, str]]:
    """Each model whose quantisation the profile names, with the place."""
    target, quantization = ctx.target_config, ctx.profile.target.quantization
    if target is not None and ctx.target and isinstance(quantization, str):
        yield "target.quantization", target, ctx.target, quantization
    for arm in ctx.arms:
        own, config = arm.speculation.keys.get("quantization"), ctx.draft_config(arm)
        if isinstance(own, str) and config is not None and arm.draft:
            yield f"{arm.path}.quantization", config, arm.draft, own


def _method(config: Config) -> str:
    """`quant_method` of a config.json, as vLLM spells it; nothing if it has none."""
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(value := place.get(key), Mapping):
                method = str(value.get("quant_method") or "").lower()
                return method.replace("compressed_tensors", "compressed-tensors")
    return ""


@rule("SD249", "refused-mrope-draft", Severity.ERROR, needs="models")
def refused_mrope_draft(ctx: Context) -> Iterator[Hit]:
    """The draft has positions of a vision model, on a runner that cannot draft with them.

    The V1 runner refuses a draft model with M-RoPE once it is loaded. It serves where the V2 runner cannot: on the CPU,
    with another vocabulary, with parallel drafting, or where the environment asks for it.
    Example:
        vllm: ">=0.32"
        target: {model: ./qwen-vl}
        speculation: {method: draft_model, model: ./qwen-vl-tiny, num_speculative_tokens: 4}
        engine: {language_model_only: true}
        env: {VLLM_USE_V2_MODEL_RUNNER: "0"}
    Instead: speculation: {method: draft_model, model: ./qwen-vl-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `"does not support M-RoPE yet"`
    """
    for arm in ctx.arms:
        config = ctx.draft_config(arm)
        parallel = arm.speculation.keys.get("parallel_drafting") is True
        if config is None or not (arm.speculation.method == "draft_model" or parallel):
            continue
        found = ctx.on("V1", arm.speculation)
        if found and any("mrope_section" in rope for rope in ropes(text_config(config))):
            text, help_ = "the V1 runner drafts with no M-RoPE model", "take a text-only draft of the family"
            yield Hit(f"{arm.path}.model", text, versions=found, help=help_)
