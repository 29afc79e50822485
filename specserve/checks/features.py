"""SD1xx about features of vLLM that refuse a way to speculate, or need another runner for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.versions import judged, only_in
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.facts import WATERMARKED_METHODS

_HEADS = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
_LM_HEADS = frozenset({"eagle", "eagle3", "mtp"})
_NO_FULL_GRAPHS = frozenset({"NONE", "PIECEWISE"})


@rule("SD133", "refused-adaptive-verification", Severity.ERROR)
def refused_adaptive_verification(ctx: Context) -> Iterator[Hit]:
    """Adaptive verification beside something it does not work with.

    ## Why is this bad?
    It decides on the GPU how many drafts of which request are verified. vLLM refuses it with LoRA, with pipeline
    parallelism, without full CUDA graphs, and, except for `dspark`, with local argmax.

    ## Example
        vllm: ">=0.32"
        speculation: {method: dspark, model: ./drafter, num_speculative_tokens: 7, enable_adaptive_verification: true}
        engine: {enforce_eager: true}

    ## Use instead
        vllm: ">=0.32"
        speculation: {method: dspark, model: ./drafter, num_speculative_tokens: 7}
        engine: {enforce_eager: true}

    ## Source
    vllm/config/vllm.py, `Adaptive verification requires full CUDA graphs. Use cudagraph `
    """
    for path, block in blocks(ctx):
        if block.keys.get("enable_adaptive_verification") is True:
            for place, what in _against_adaptive(ctx.profile, block, path):
                yield Hit(
                    f"{path}.enable_adaptive_verification",
                    f"vLLM refuses adaptive verification {what}",
                    related=((place, "which stands here"),),
                    help="leave one of the two out",
                )


def _against_adaptive(profile: Profile, block: Speculation, path: str) -> Iterator[tuple[str, str]]:
    engine = profile.engine
    compilation = engine.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    if engine.get("enable_lora") is True:
        yield "engine.enable_lora", "with LoRA"
    if engine.get("enforce_eager") is True:
        yield "engine.enforce_eager", "without CUDA graphs"
    elif isinstance(mode, str) and mode.upper() in _NO_FULL_GRAPHS:
        yield "engine.compilation_config.cudagraph_mode", "without full CUDA graphs"
    if profile.target.pipeline_parallel_size > 1:
        yield "target.pipeline_parallel_size", "with pipeline parallelism"
    for name in ("enable_return_routed_experts", "return_sampling_mask"):
        if engine.get(name) is True:
            yield f"engine.{name}", f"with `{name}`"
    if block.method != "dspark" and block.keys.get("use_local_argmax_reduction") is True:
        yield f"{path}.use_local_argmax_reduction", "with local argmax, which has no draft logits"


@rule("SD134", "refused-combination", Severity.ERROR)
def refused_combination(ctx: Context) -> Iterator[Hit]:
    """A feature of vLLM that this way to speculate cannot be combined with.

    ## Why is this bad?
    vLLM refuses to start: fast prefill over shared KV caches with heads, watermarks with greedy drafts or with
    methods that cannot carry them, a quantized copy of the output layer for drafts that share none, the index
    option of `mtp` with other methods.

    ## Example
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {kv_sharing_fast_prefill: true}

    ## Use instead
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {kv_sharing_fast_prefill: false}

    ## Source
    vllm/config/vllm.py, `compatible with EAGLE as EAGLE requires correct logits `
    """
    for path, block in blocks(ctx):
        if ctx.profile.engine.get("kv_sharing_fast_prefill") is True and block.method in _HEADS:
            yield Hit(
                "engine.kv_sharing_fast_prefill",
                f"fast prefill gives wrong logits for prompts, which `{block.method}` drafts from",
                related=((f"{path}.method", "needs them"),),
                help="leave it out",
            )
        if block.keys.get("index_share_for_mtp_iteration") is not None and block.method != "mtp":
            text = f"`index_share_for_mtp_iteration` belongs to `mtp`; this is `{block.method}`"
            yield Hit(f"{path}.index_share_for_mtp_iteration", text, help="leave it out")
        if block.keys.get("draft_lm_head_quantization") is not None and block.method not in _LM_HEADS:
            text = f"`{block.method}` shares no output layer that could be quantized for drafting"
            yield Hit(f"{path}.draft_lm_head_quantization", text, help="leave it out")
        yield from _watermarks(ctx, block, path)


def _watermarks(ctx: Context, block: Speculation, path: str) -> Iterator[Hit]:
    if not isinstance(ctx.profile.engine.get("watermark_config"), Mapping):
        return
    found: dict[tuple[str, str], list[str]] = {}
    for version in judged(ctx):
        methods = WATERMARKED_METHODS.at(version)
        if methods is None:
            continue
        if block.keys.get("draft_sample_method") != "probabilistic":
            problem = (f"{path}.draft_sample_method", "watermarks need `draft_sample_method: probabilistic`")
        elif block.keys.get("rejection_sample_method", "standard") != "standard":
            problem = (f"{path}.rejection_sample_method", "watermarks need `standard` verification")
        elif block.method not in methods:
            problem = (f"{path}.method", f"watermarks cannot be drafted with `{block.method}`")
        else:
            continue
        found.setdefault(problem, []).append(version)
    for (place, message), versions in found.items():
        related = (("engine.watermark_config", "watermarks are asked for"),)
        yield Hit(place, message, related=related, notes=only_in(ctx, versions))
