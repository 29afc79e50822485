"""SD1xx about how drafts are sampled and verified, and features that refuse a way to speculate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.facts import ARGMAX_NEEDS_ONE_VOCABULARY, WATERMARKED_METHODS

_RATES, _LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
_LM_HEADS = ("eagle", "eagle3", "mtp")
_HEADS = (*_LM_HEADS, "dflash", "dspark")
_SAMPLED = ("draft_model", *_HEADS)
"""Methods whose drafts are drawn from a distribution of their own, with an arm `probabilistic`."""


@rule("SD127", "synthetic-acceptance", Severity.ERROR, policy=True)
def synthetic_acceptance(ctx: Context) -> Iterator[Hit]:
    """Draft tokens are accepted at a rate that the profile sets, whether the target agrees or not.

    This is a tool for benchmarks of the engine. The text is wrong, because it is not the target's.
    Example:
        speculation:
          method: eagle3
          model: ./head
          num_speculative_tokens: 3
          rejection_sample_method: synthetic
          synthetic_acceptance_length: 2.5
    Use instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/config/speculative.py, `'synthetic' accepts draft tokens with a decaying`
    """
    for path, block in ctx.blocks:
        if block.keys.get("rejection_sample_method") == "synthetic":
            yield Hit(
                f"{path}.rejection_sample_method",
                "`synthetic` accepts drafts at a fixed rate: the server's text is made up",
                help=(
                    "leave it out, or write `# specserve: ignore[SD127] reason` if this is a test of the engine"
                ),
            )


@rule("SD128", "lossy-verification", Severity.WARNING)
def lossy_verification(ctx: Context) -> Iterator[Hit]:
    """Verification may keep tokens that the target would not have chosen.

    `fly` also accepts a draft token that the target disagrees with, if the target is unsure there and agrees with the
    next few tokens. The output no longer has the target's distribution: measure its quality before you serve it.
    Example:
        vllm: ">=0.33"
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 4, rejection_sample_method: fly}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py (from 0.33), `FLy verification is a lossy speculative decoding method`
    """
    for path, block in ctx.blocks:
        if block.keys.get("rejection_sample_method") == "fly":
            text = "`fly` is lossy: the text is no longer the target's own"
            yield Hit(f"{path}.rejection_sample_method", text, help="leave it out for lossless verification")


@rule("SD129", "contradictory-verification", Severity.ERROR)
def contradictory_verification(ctx: Context) -> Iterator[Hit]:
    """Settings of the verification that vLLM refuses together.

    If `rejection_sample_method` is `synthetic`, vLLM needs either K synthetic rates, none of them above the rate before
    it, or a synthetic length from 1 to K + 1. With any other method, it refuses both. `fly` needs a K of at least 2 and
    a window smaller than K.
    Example: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3, synthetic_acceptance_length: 2.5}
    Use instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/config/speculative.py, `are only valid with rejection_sample_method='synthetic'.`
    """
    for path, block in ctx.blocks:
        found = _synthetic(block) or _fly(block)
        if found:
            yield Hit(f"{path}.{found[0]}", found[1])


def _synthetic(block: Speculation) -> tuple[str, str] | None:
    given = [name for name in (_RATES, _LENGTH) if block.keys.get(name) is not None]
    if block.keys.get("rejection_sample_method") != "synthetic":
        return (given[0], f"`{given[0]}` belongs to `rejection_sample_method: synthetic`") if given else None
    if len(given) != 1:
        return "rejection_sample_method", f"`synthetic` needs either `{_RATES}` or `{_LENGTH}`"
    value, k = block.keys[given[0]], block.num_speculative_tokens
    problem = None
    if given[0] == _LENGTH:
        if value < 1 or (k is not None and value > k + 1):
            problem = f"a length of {value:g} is impossible: it must be from 1 to K + 1"
    elif k is not None and len(value) != k:
        problem = f"{len(value)} rates for {k} drafted tokens"
    elif not all(0 <= rate <= 1 for rate in value):
        problem = "a rate lies between 0 and 1"
    elif any(after > before for before, after in pairwise(value)):
        problem = "the rates rise: each is that of a token and all tokens before it, so it cannot rise"
    return (given[0], problem) if problem else None


def _fly(block: Speculation) -> tuple[str, str] | None:
    k, window = block.num_speculative_tokens, block.keys.get("fly_window_size")
    if block.keys.get("rejection_sample_method") != "fly" or k is None:
        return None
    if k < 2:
        return "num_speculative_tokens", "`fly` needs at least 2 drafted tokens"
    if window is not None and window >= k:
        return "fly_window_size", f"the window of `fly` must be smaller than K, which is {k}; found {window}"
    return None


@rule("SD130", "ineffective-block-verification", Severity.WARNING)
def ineffective_block_verification(ctx: Context) -> Iterator[Hit]:
    """Block verification is asked for, but the runner does not have it.

    vLLM uses the V1 runner on CPUs, and elsewhere if the V2 runner lacks a feature that the launch needs. With `block`,
    the V1 runner verifies token by token and drafts greedily, without a message, so `draft_sample_method:
    probabilistic` has no effect.
    Example:
        speculation:
          method: draft_model
          model: ./draft
          num_speculative_tokens: 3
          rejection_sample_method: block
        hardware: {accelerator: cpu}
    Instead: speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `self.speculative_config.rejection_sample_method`
    """
    for path, block in ctx.blocks:
        found = ctx.on("V1", block) if block.keys.get("rejection_sample_method") == "block" else []
        if found:
            text = "the V1 runner, which will serve this, verifies token by token and drafts greedily"
            yield Hit(f"{path}.rejection_sample_method", text, versions=found, help="leave it out")


@rule("SD131", "greedy-drafts", Severity.INFO)
def greedy_drafts(ctx: Context) -> Iterator[Hit]:
    """A promise at a temperature above 0 rests on drafts that ignore the temperature.

    The output is right either way. But a greedy draft is accepted only as often as the target happens to sample the
    draft's first choice. Drafts that are sampled from the draft's distribution are usually accepted more often. In
    return, the logits of all drafts take memory (`max_num_seqs` times K times the vocabulary).
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        expect: [{concurrency: 16, temperature: 0.7, min_mean_acceptance_length: 2}]
    Instead:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3, draft_sample_method: probabilistic}
    Source: vllm/config/speculative.py, `draft_sample_method: DraftSampleMethod = "greedy"`
    """
    index = next((i for i, promise in enumerate(ctx.profile.expect) if (promise.temperature or 0) > 0), None)
    for path, block in ctx.blocks if index is not None else ():
        tied = ("use_heterogeneous_vocab", "use_local_argmax_reduction")  # with these, drafts are greedy
        is_chosen = "draft_sample_method" in block.keys or any(block.keys.get(key) is True for key in tied)
        if block.method in _SAMPLED and not is_chosen:
            yield Hit(
                f"{path}.method",
                f"`{block.method}` will draft greedily, and a temperature above 0 is promised",
                related=((f"expect[{index}].temperature", "promised here"),),
                help="benchmark `draft_sample_method: probabilistic` as an alternative",
            )


@rule("SD132", "contradictory-drafts", Severity.ERROR)
def contradictory_drafts(ctx: Context) -> Iterator[Hit]:
    """Drafting options that vLLM refuses together.

    A draft with another vocabulary must draft greedily, and needs all its logits in one place. Local argmax gives
    neither logits nor samples, so it suits neither such a draft nor probabilistic drafting. vLLM refuses some of these
    combinations only after it has loaded the draft.
    Example:
        speculation:
          method: draft_model
          model: ./draft
          num_speculative_tokens: 3
          use_heterogeneous_vocab: true
          draft_sample_method: probabilistic
    Use instead:
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3, use_heterogeneous_vocab: true}
    Source: vllm/config/speculative.py, `use_heterogeneous_vocab currently only supports greedy draft `
    """
    for path, block in ctx.blocks:
        argmax = block.keys.get("use_local_argmax_reduction") is True
        probabilistic = block.keys.get("draft_sample_method") == "probabilistic"
        if block.keys.get("use_heterogeneous_vocab") is True and (probabilistic or argmax):
            found = list(ctx.judged) if probabilistic else ctx.during(ARGMAX_NEEDS_ONE_VOCABULARY)
            place = "draft_sample_method" if probabilistic else "use_local_argmax_reduction"
            text = "a draft of another vocabulary must draft greedily, from all its logits"
            related, help_ = ((f"{path}.use_heterogeneous_vocab", "another vocabulary"),), "leave it out"
        elif argmax and probabilistic:
            found, place, help_ = ctx.on("V2", block), "use_local_argmax_reduction", None
            text = "local argmax has no probabilities for `draft_sample_method: probabilistic`"
            related = ((f"{path}.draft_sample_method", "asks for probabilities"),)
        else:
            continue
        if found:
            yield Hit(f"{path}.{place}", text, related=related, versions=found, help=help_)


@rule("SD133", "refused-adaptive-verification", Severity.ERROR)
def refused_adaptive_verification(ctx: Context) -> Iterator[Hit]:
    """Adaptive verification is combined with a setting that it does not support.

    Adaptive verification decides on the GPU how many draft tokens of each request are verified. vLLM refuses it with
    LoRA, pipeline parallelism, `enable_return_routed_experts` or `return_sampling_mask`, and if full CUDA graphs are
    off. For methods other than `dspark`, vLLM also refuses it with local argmax.
    Example:
        vllm: ">=0.32"
        speculation: {method: dspark, model: ./drafter, num_speculative_tokens: 7, enable_adaptive_verification: true}
        engine: {enforce_eager: true}
    Instead: speculation: {method: dspark, model: ./drafter, num_speculative_tokens: 7}
    Source: vllm/config/vllm.py (from 0.30), `Adaptive verification requires full CUDA graphs. Use cudagraph `
    """
    for path, block in ctx.blocks:
        if block.keys.get("enable_adaptive_verification") is True:
            for place, what in _against_adaptive(ctx.profile, block, path):
                yield Hit(
                    f"{path}.enable_adaptive_verification",
                    f"vLLM refuses adaptive verification {what}",
                    related=((place, "set here"),),
                    help="leave one of them out",
                )


def _against_adaptive(profile: Profile, block: Speculation, path: str) -> Iterator[tuple[str, str]]:
    engine = profile.engine
    compilation = engine.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    if engine.get("enable_lora") is True:
        yield "engine.enable_lora", "with LoRA"
    if engine.get("enforce_eager") is True:
        yield "engine.enforce_eager", "without CUDA graphs"
    elif isinstance(mode, str) and mode.upper() in ("NONE", "PIECEWISE"):
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
    """A feature of vLLM that cannot be combined with this way to speculate.

    vLLM refuses to start with `kv_sharing_fast_prefill` and a head. Watermarks need `draft_sample_method:
    probabilistic`, `standard` verification and a method that supports them. `draft_lm_head_quantization` needs a draft
    that shares the target's output layer: `eagle`, `eagle3` or `mtp`. `index_share_for_mtp_iteration` needs `mtp`.
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {kv_sharing_fast_prefill: true}
    Instead: engine: {kv_sharing_fast_prefill: false}
    Source: vllm/config/vllm.py, `compatible with EAGLE as EAGLE requires correct logits `
    """
    for path, block in ctx.blocks:
        if ctx.profile.engine.get("kv_sharing_fast_prefill") is True and block.method in _HEADS:
            text = f"fast prefill gives wrong logits for prompts, which `{block.method}` drafts from"
            related = ((f"{path}.method", "needs them"),)
            yield Hit("engine.kv_sharing_fast_prefill", text, related=related, help="leave it out")
        if block.keys.get("index_share_for_mtp_iteration") is not None and block.method != "mtp":
            text = f"`index_share_for_mtp_iteration` belongs to `mtp`; this is `{block.method}`"
            yield Hit(f"{path}.index_share_for_mtp_iteration", text, help="leave it out")
        if block.keys.get("draft_lm_head_quantization") is not None and block.method not in _LM_HEADS:
            text = f"`{block.method}` shares no output layer that could be quantized for drafting"
            yield Hit(f"{path}.draft_lm_head_quantization", text, help="leave it out")
        if isinstance(ctx.profile.engine.get("watermark_config"), Mapping):
            yield from _watermarks(ctx, block, path)


def _watermarks(ctx: Context, block: Speculation, path: str) -> Iterator[Hit]:
    known = {version: WATERMARKED_METHODS.at(version) for version in ctx.judged}
    found = [version for version, methods in known.items() if methods is not None]
    if block.keys.get("draft_sample_method") != "probabilistic":
        place, text = "draft_sample_method", "watermarks need `draft_sample_method: probabilistic`"
    elif block.keys.get("rejection_sample_method", "standard") != "standard":
        place, text = "rejection_sample_method", "watermarks need `standard` verification"
    else:
        place, text = "method", f"watermarks cannot be drafted with `{block.method}`"
        found = [version for version in found if block.method not in (known[version] or ())]
    if found:
        related = (("engine.watermark_config", "watermarks are asked for"),)
        yield Hit(f"{path}.{place}", text, related=related, versions=found)
