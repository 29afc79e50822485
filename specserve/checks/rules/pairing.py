"""SD1xx about the draft beside its target: context, kernels, weights, name, family, what it takes over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from specserve.checks.rule import Context, Hit, rule
from specserve.checks.rules.revisions import is_hub_id
from specserve.diagnostics import Severity
from specserve.errors import quoted
from specserve.vllm.facts import SHORTENS_TARGET
from specserve.vllm.speculation import OWN_LAYERS

_ONLINE = frozenset(
    {
        "fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8",
        "int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8",
    }
)  # fmt: skip
"""Quantization methods that vLLM can apply to weights of 16 bits while it loads them."""
_POSITIONS = ("rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings")

_FAMILIES = {
    "Llama 2": r"llama-?2(?!\d*b)|tinyllama|codellama|vicuna|llama-\d+m",
    "Llama 3": r"llama-?3(?!\d*b)",
    "Llama 4": r"llama-?4(?!\d*b)",
    "Qwen 1.5 to 3": r"qwen-?(1\.5|2|2\.5|3)(?![.\d]|b)|qwq",
    "Qwen 3.5 and later": r"qwen-?(3\.[5-9]|[4-9])(?!\d*b)",
    "Gemma 1 and 2": r"gemma-?(1\.1|2)(?![.\d])|gemma-7b",
    "Gemma 3 and 4": r"gemma-?[34](?![.\d])",
    "Mistral": r"mistral|mixtral|ministral|codestral|devstral|magistral",
    "DeepSeek": r"deepseek(?!.*(llama|qwen))",
    "gpt-oss": r"gpt-oss",
    "GLM": r"glm-?[45]",
    "Phi 4": r"phi-?4",
    "OPT": r"opt-[\d.]+[mb]",
    "GPT-2": r"(distil)?gpt-?2",
    "Granite": r"granite-?[34]",
    "OLMo": r"olmo",
    "Falcon": r"falcon",
    "Kimi": r"kimi-k\d",
    "MiniMax": r"minimax-m",
    "Command": r"command-[ra]|aya-",
}
"""Patterns of names. Tokenizers may differ within a family too; between families they do."""


@rule("SD152", "too-long-draft", Severity.ERROR)
def too_long_draft(ctx: Context) -> Iterator[Hit]:
    """The draft is given a longer context than its target.

    vLLM refuses to start: `speculative_max_model_len` cannot be larger than the target's.
    Example:
        target: {model: ./model, max_model_len: 8192}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3, max_model_len: 16384}
    Instead: speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
    Source: vllm/config/speculative.py, `if speculative_max_model_len > target_max_model_len:`
    """
    longest = ctx.profile.target.max_model_len
    for path, block in ctx.blocks:
        own = block.keys.get("max_model_len")
        if own is not None and longest is not None and 0 < longest < own:
            yield Hit(
                f"{path}.max_model_len",
                f"the draft's context of {own} tokens is longer than the target's",
                related=(("target.max_model_len", f"{longest} tokens"),),
                help="leave it out: vLLM uses the shorter context of the two models",
            )


@rule("SD153", "shortened-context", Severity.WARNING)
def shortened_context(ctx: Context) -> Iterator[Hit]:
    """The server's context becomes as short as the draft's.

    The V2 runner cannot pause speculation for a long sequence. So vLLM 0.33 lowers the server's `max_model_len` to that
    of a `draft_model`, with a warning in the log, and longer requests are refused. Earlier versions keep the server's
    context.
    Example:
        vllm: ">=0.32"
        target: {model: ./model, max_model_len: 32768}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3, max_model_len: 4096}
    Instead: speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
    Source: vllm/config/vllm.py (from 0.33), `longer sequences; reducing max_model_len to %d.`
    """
    longest = ctx.profile.target.max_model_len
    for path, block in ctx.blocks:
        own = block.keys.get("max_model_len")
        if block.method != "draft_model" or own is None or longest is None or own >= longest > 0:
            continue
        found = ctx.during(SHORTENS_TARGET) if longest > 0 else []
        if found and set(found) <= set(ctx.on("V2", block)):
            yield Hit(
                f"{path}.max_model_len",
                f"vLLM {', '.join(found)} will take {own} tokens, not {longest}",
                related=(("target.max_model_len", f"{longest} are asked for"),),
                versions=found,
                help='leave it out, or serve with `env: {VLLM_USE_V2_MODEL_RUNNER: "0"}`',
            )


@rule("SD154", "inherited-moe-backend", Severity.INFO)
def inherited_moe_backend(ctx: Context) -> Iterator[Hit]:
    """The draft inherits the MoE kernels that were chosen for the target.

    The draft's experts may have another precision (such as prediction layers in bf16 beside quantized experts), for
    which the target's backend may have no kernel. Loading or the first batch then fails. The published recipes give
    such drafts `triton`.
    Example:
        vllm: ">=0.30"
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {moe_backend: marlin}
    Instead: speculation: {method: mtp, num_speculative_tokens: 1, moe_backend: triton}
    Source: vllm/config/speculative.py, `inherits the target model's `--moe-backend` setting.`
    """
    backend = ctx.profile.engine.get("moe_backend")
    for path, block in ctx.blocks if backend not in (None, "auto", "triton") else ():
        if block.method in ("mtp", "eagle", "eagle3") and "moe_backend" not in block.keys:
            yield Hit(
                f"{path}.method",
                f"the draft will use the MoE kernels {quoted(str(backend))} too",
                related=(("engine.moe_backend", "chosen for the target"),),
                help=(
                    "write `moe_backend: triton` in the block if the draft's experts are quantized differently"
                ),
            )


@rule("SD155", "unquantized-draft", Severity.INFO)
def unquantized_draft(ctx: Context) -> Iterator[Hit]:
    """The target is quantized while it loads, but the draft is not.

    A separate draft does not inherit `quantization`: its weights keep the type of the checkpoint, and take more memory
    than quantized ones. Prediction layers (`mtp` without a model) do inherit it.
    Example:
        target: {model: ./model, quantization: fp8}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
    Instead: speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3, quantization: fp8}
    Source: vllm/config/speculative.py, `quantization=self.quantization,`
    """
    method = ctx.profile.target.quantization
    for path, block in ctx.blocks if method in _ONLINE else ():
        has_weights = block.method in ("draft_model", "eagle", "eagle3", "dflash")
        if has_weights and "quantization" not in block.keys:
            yield Hit(
                f"{path}.model",
                f"the draft will be loaded in its own type, not in `{method}`",
                related=(("target.quantization", "for the target only"),),
                help=f"write `quantization: {method}` in the block to quantize the draft too",
            )


@rule("SD156", "head-as-target", Severity.WARNING)
def head_as_target(ctx: Context) -> Iterator[Hit]:
    """The target looks like a draft head.

    Model cards of heads often show a command that serves the head itself. A head lacks embeddings or layers of its own,
    so it cannot answer. The target is the model that the head was trained for. Checkpoints that contain both target
    and head (DeepSeek-V4-…-DSpark, MiMo-…-DFlash) can be served. For a head of the `speculators` library, vLLM serves
    the model that the head was trained for, and speculates although the profile does not say so; this finding is then
    an info.
    Example: target: {model: z-lab/Qwen3-8B-DFlash-b16, revision: 0123456789012345678901234567890123456789}
    Use instead: target: {model: Qwen/Qwen3-8B, revision: 0123456789012345678901234567890123456789}
    Source: vllm/model_executor/models/registry.py, `_SPECULATIVE_DECODING_MODELS`
    """
    model = ctx.profile.target.model
    is_named = re.search(r"(?i)(?:^|[-_./])(?:eagle-?\d?|dflash|dspark)(?:$|[-_.])", model)
    if ctx.target is not None or not is_named or not is_hub_id(model):
        return  # if its files are known, they tell
    inside = any(
        (block.method in OWN_LAYERS and block.model is None) or f"{block.model}/".startswith(f"{model}/")
        for _, block in ctx.blocks
    )
    # `MiMo-V2.5-DFlash/dflash` and DeepSeek-V4 hold the target and its head (vllm-project/vllm#57784)
    if inside or re.search(r"(?i)deepseek-?v4|mimo-?v\d", model):
        return
    text, severity = f"`{model}` reads like a draft head, which cannot be served by itself", None
    if "speculator" in model.lower():
        text = f"vLLM will serve the model that `{model}` was trained for, and speculate with this head"
        severity = Severity.INFO
    help_ = "write the model it was trained for here, and the head as `speculation.model`"
    yield Hit("target.model", text, help=help_, severity=severity)


@rule("SD157", "ignored-draft-parallelism", Severity.INFO)
def ignored_draft_parallelism(ctx: Context) -> Iterator[Hit]:
    """The profile asks for a head on one rank, but the head runs on all ranks of the target.

    vLLM accepts `draft_tensor_parallel_size: 1` for a head, but splits the head like the target
    (vllm-project/vllm#31886). Memory and speed are not what the profile says.
    Example:
        target: {model: ./model, tensor_parallel_size: 4}
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3, draft_tensor_parallel_size: 1}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/config/speculative.py, `other value than 1 or target model tensor_parallel_size`
    """
    size = ctx.profile.target.tensor_parallel_size
    for path, block in ctx.blocks if size > 1 else ():
        ignored = block.method in ("eagle", "eagle3", "mtp", "dflash")
        if ignored and block.keys.get("draft_tensor_parallel_size") == 1:
            text = f"`{block.method}` runs on the target's {size} ranks in any case"
            related = (("target.tensor_parallel_size", f"{size} ranks"),)
            yield Hit(f"{path}.draft_tensor_parallel_size", text, related=related, help="leave it out")


@rule("SD158", "inherited-cache-type", Severity.INFO)
def inherited_cache_type(ctx: Context) -> Iterator[Hit]:
    """A drafter with bidirectional attention inherits the target's quantized KV cache type.

    `dflash` and `dspark` need a non-causal attention backend, and few such backends support an 8-bit cache. vLLM may
    end with `No valid attention backend found`, or pick a slower backend.
    Example:
        speculation: {method: dflash, model: ./drafter, num_speculative_tokens: 7}
        engine: {kv_cache_dtype: fp8}
    Instead: speculation: {method: dflash, model: ./drafter, num_speculative_tokens: 7, kv_cache_dtype: bfloat16}
    Source: vllm/config/speculative.py, `target model's `--kv-cache-dtype`.`
    """
    dtype = str(ctx.profile.engine.get("kv_cache_dtype") or "auto")
    for path, block in ctx.blocks if dtype.startswith(("fp8", "nvfp4", "int8", "int4")) else ():
        if block.method in ("dflash", "dspark") and "kv_cache_dtype" not in block.keys:
            yield Hit(
                f"{path}.method",
                f"the drafter's KV cache will be {quoted(dtype)} too",
                related=(("engine.kv_cache_dtype", "chosen for the target"),),
                help=(
                    "if vLLM finds no attention backend for it, write `kv_cache_dtype: bfloat16` in the block"
                ),
            )


@rule("SD163", "draft-of-another-family", Severity.INFO)
def draft_of_another_family(ctx: Context) -> Iterator[Hit]:
    """The names of target and draft belong to families with different tokenizers.

    vLLM gives the draft the target's token ids. If they mean other words to the draft, nearly every draft token is
    rejected. Names alone are no proof: `specserve check` compares the tokenizers.
    Example:
        target: {model: meta-llama/Llama-3.1-8B, revision: 0123456789012345678901234567890123456789}
        speculation:
          method: draft_model
          model: Qwen/Qwen2.5-0.5B
          revision: 0123456789012345678901234567890123456789
          num_speculative_tokens: 3
    Instead:
        speculation:
          method: draft_model
          model: meta-llama/Llama-3.2-1B
          revision: 0123456789012345678901234567890123456789
          num_speculative_tokens: 3
    Source: vllm/config/speculative.py, `use_heterogeneous_vocab: bool = False`
    """
    target = ctx.profile.target.model
    compared = {arm.path for arm in ctx.arms if arm.tokenizer is not None}
    for path, block in ctx.blocks:
        draft = block.model
        if block.method != "draft_model" or draft is None or path in compared:
            continue
        if block.keys.get("use_heterogeneous_vocab") is True or not (is_hub_id(target) and is_hub_id(draft)):
            continue
        families = tokenizer_family(target), tokenizer_family(draft)
        if None not in families and families[0] != families[1]:
            yield Hit(
                f"{path}.model",
                f"the tokenizers probably differ: the target is a {families[0]} model, the draft is {families[1]}",
                related=(("target.model", "the target"),),
                help="run `specserve check` to compare them, or use a draft of the target's family",
            )


def tokenizer_family(model: str) -> str | None:
    """The family whose tokenizer a model of the Hub has, judged by its name; None if it names none, or two."""
    name = model.rpartition("/")[2]
    found = [
        family
        for family, names in _FAMILIES.items()
        if re.search(rf"(?:^|[-_.])(?:meta-)?(?:{names})", name, re.I)
    ]
    return found[0] if len(found) == 1 else None


@rule("SD166", "inherited-tensors", Severity.ERROR)
def inherited_tensors(ctx: Context) -> Iterator[Hit]:
    """The draft is loaded from the target's tensor file.

    The draft is loaded in the same way as the target, unless `draft_load_config` says otherwise. With `tensorizer`,
    vLLM reads the draft from the target's own file, and loading fails at the first tensor that differs
    (vllm-project/vllm#12725).
    Example:
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
        engine: {load_format: tensorizer}
    Instead:
        speculation:
          {method: draft_model, model: ./draft, num_speculative_tokens: 3, draft_load_config: {load_format: auto}}
    Source: vllm/model_executor/model_loader/utils.py (from 0.31), `return speculative_config.draft_load_config`
    """
    for path, block in ctx.blocks if ctx.profile.engine.get("load_format") == "tensorizer" else ():
        if block.model is not None and block.keys.get("draft_load_config") is None:
            yield Hit(
                f"{path}.model",
                "the draft is loaded with `tensorizer` too, from the target's tensors",
                related=(("engine.load_format", "asked for here"),),
                help="write `draft_load_config: {load_format: auto}`",
            )


@rule("SD167", "unshared-overrides", Severity.WARNING)
def unshared_overrides(ctx: Context) -> Iterator[Hit]:
    """The target's positions are changed by `hf_overrides`, which do not reach its prediction layers.

    If `hf_overrides` is a mapping, vLLM applies it to the target only. The layers that draft for `mtp` read config.json
    without the overrides. Beyond the context in config.json, their positions differ from the target's, and their draft
    tokens are rejected (vllm-project/vllm#58080).
    Example:
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {hf_overrides: {rope_parameters: {rope_type: yarn, factor: 4.0, rope_theta: 1000000}}}
    Use instead:
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Source: vllm/config/speculative.py, `Dict overrides are target-specific key patches and are not applied`
    """
    overrides = ctx.profile.engine.get("hf_overrides")
    if not isinstance(overrides, Mapping):
        return
    inner = overrides.get("text_config")
    places = (overrides, inner if isinstance(inner, Mapping) else {})
    found = [key for place in places for key in _POSITIONS if key in place]
    for path, block in ctx.blocks if found else ():
        if block.method == "mtp" and block.model in (None, ctx.profile.target.model):
            yield Hit(
                "engine.hf_overrides",
                f"`{found[0]}` does not reach the layers that draft for `mtp`",
                related=((f"{path}.method", "drafts with the target's own layers"),),
                help="change config.json in a copy of the checkpoint instead",
            )
