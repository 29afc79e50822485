"""SD1xx about speculation: how much is drafted, how drafts are sampled and verified, what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping

from specserve.checks.config import section, whole
from specserve.checks.rule import ERROR, INFO, WARNING, Context, Hit, Hits, Variant, rule, variant_rule
from specserve.vllm.speculation import retyped

MAX_K = 128
_FEW_TOKENS = 8
"""The heads of the catalogue are used with 1 to 7."""
_NGRAM = ("ngram", "ngram_gpu")


@variant_rule("SD101", ERROR)
def retyped_draft(variant: Variant) -> Hits:
    """vLLM changes the method because of the draft's name.

    vLLM looks for `eagle-`, `eagle3`, `dflash` and `dspark` in the draft's whole path, parent directories included, in
    upper or lower case. If it finds one, it runs that method instead of yours. Loading fails, or every draft token is
    rejected.
    Example: speculation: {method: draft_model, model: ./eagle3-tests/llama-1b, num_speculative_tokens: 4}
    Use instead: speculation: {method: draft_model, model: ./drafts/llama-1b, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py, `"eagle3" in self.draft_model_config.model.lower()`
    """
    model = variant.model or (variant.ctx.profile.target.model if variant.method == "mtp" else None)
    change = retyped(variant.method, model) if model else None
    if change:
        yield Hit(
            variant.at("model") if variant.model else "target.model",
            f"vLLM would run this draft as `{change[0]}`: its name contains `{change[1]}`",
            related={variant.at("method"): f"the profile says `{variant.method}`"},
            help=f"write `method: {change[0]}` if it is such a head; if not, keep it in a directory whose path does "
            f"not contain `{change[1]}`",
        )


@variant_rule("SD104", ERROR)
def split_draft(variant: Variant) -> Hits:
    """The draft's tensor parallelism is not the target's.

    vLLM accepts only 1 and the target's `tensor_parallel_size`. With 1 and `method: draft_model`, the V1 runner fails
    after the weights are loaded. The V2 runner ignores the 1 and splits the draft over the target's ranks
    (vllm-project/vllm#31886), so the finding is then only a warning. Other methods ignore the 1, too; SD157 reports
    that.
    Example:
        target: {model: ./target, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5, draft_tensor_parallel_size: 1}
    Instead:
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5, draft_tensor_parallel_size: 4}
    Source: vllm/v1/spec_decode/draft_model.py, `must be the same. Got {draft_tp} and {tgt_tp}`
    """
    size, draft = variant.ctx.profile.target.tensor_parallel_size, variant.get("draft_tensor_parallel_size")
    if draft in (None, size) or (draft == 1 and variant.method != "draft_model"):
        return
    is_dropped = draft == 1 and _runs_on_v2(variant)
    yield variant.hit(
        "draft_tensor_parallel_size",
        "draft tensor parallelism is not the target's",
        label=f"draft asks for {draft}",
        related={"target.tensor_parallel_size": f"target runs on {size}"},
        notes=("the V2 runner ignores it: the draft runs on the target's ranks",) * is_dropped,
        help=f"write `draft_tensor_parallel_size: {size}`, or leave it out",
        severity=WARNING if is_dropped else None,
    )


def _runs_on_v2(variant: Variant) -> bool:
    """Whether every judged version serves this launch with the V2 model runner."""
    return variant.ctx.on_gpu and variant.on("V2") == list(variant.ctx.judged)


@variant_rule("SD109", ERROR)
def too_many_speculative_tokens(variant: Variant) -> Hits:
    """More tokens are drafted per step than the server or the head can use.

    With more than 128 tokens, the server starts, but at the first request the V1 runner's rejection sampler asserts
    that K is at most 128, and the server dies. The V2 runner has no such limit, so there it is a warning: that many
    draft tokens never pay off, because all of them are verified in every step. The same holds for an `eagle` or
    `eagle3` head that drafts more than twice as many tokens as it was published for (by its config.json, or by
    `specserve drafts`): it is a warning, or above 8 tokens an info if nothing is known of the head.
    Example: speculation: {method: ngram, num_speculative_tokens: 300, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/v1/sample/rejection_sampler.py, `MAX_SPEC_LEN = 128`
    """
    if variant.k is None:
        return
    if variant.k > MAX_K:
        text, severity = f"vLLM drafts at most {MAX_K} tokens per step; found {variant.k}", None
        if _runs_on_v2(variant):
            text, severity = f"{variant.k} tokens are drafted and verified in every step", WARNING
        help_ = "usual values are 3 to 8, and up to 32 for `ngram` and `suffix`"
        yield variant.hit("num_speculative_tokens", text, help=help_, severity=severity)
    elif variant.method in ("eagle", "eagle3"):
        trained, help_ = _trained_tokens(variant), "measure several K (`specserve tune`), and use the fastest"
        if trained is not None and variant.k > 2 * trained:
            text = f"the head was published for {trained} draft token{'s' * (trained > 1)}; found {variant.k}"
            yield variant.hit("num_speculative_tokens", text, help=help_, severity=WARNING)
        elif trained is None and variant.k > _FEW_TOKENS:
            text = f"few heads gain from more than {_FEW_TOKENS} draft tokens per step; found {variant.k}"
            yield variant.hit("num_speculative_tokens", text, help=help_, severity=INFO)


def _trained_tokens(variant: Variant) -> int | None:
    """The most draft tokens that a source says of a head: the catalogue, or its config.json if it was read."""
    from specserve.models.drafts import heads_named

    rows, config = heads_named(variant.model or ""), variant.draft.config if variant.draft else {}
    methods = section(config, "speculators_config").get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    own = whole(first, "speculative_tokens") if isinstance(first, Mapping) else None
    said = [own, whole(config, "n_predict", "num_lookahead_tokens")]
    said += [k for row in rows for k in (row.num_speculative_tokens, *(each.k for each in row.reported))]
    return max((k for k in said if k), default=None)


@variant_rule("SD115", ERROR)
def missing_speculative_tokens(variant: Variant) -> Hits:
    """Speculation is asked for without a number of draft tokens.

    vLLM refuses `mtp` and `dspark` without `num_speculative_tokens`. If `speculation.model` is given with `mtp`, the
    start ends with a TypeError instead (vllm-project/vllm#55323). With `eagle`, `eagle3` and the like, the head's
    config.json may set it (`n_predict`). `lint` does not read that file, so for these methods it only warns.
    Example:
        target: {model: ./model}
        speculation: {method: mtp}
    Instead: speculation: {method: mtp, num_speculative_tokens: 1}
    Source:
        vllm/config/speculative.py, `num_speculative_tokens must be provided with `
        vllm/config/speculative.py, `self.num_speculative_tokens > 1`
    """
    needs, head = f"`{variant.method}` needs `num_speculative_tokens`", variant.draft
    if variant.k is not None:
        return
    if variant.method == "mtp" or (variant.method == "dspark" and variant.model is None):
        unless = "" if variant.method == "mtp" else " if it has no `model` of its own"
        yield variant.hit("method", needs + unless, help="for `mtp`, 1 is a good value to start with")
    elif variant.method in ("eagle", "eagle3", "dflash") and variant.model:
        if head is None or "n_predict" not in head.config:
            why = (
                ", which its head does not give"
                if head
                else ", unless the config.json of its head has `n_predict`"
            )
            severity, help_ = None if head else WARNING, "most heads are used with 3"
            yield variant.hit("method", needs + why, help=help_, severity=severity)


@variant_rule("SD116", WARNING)
def surprising_ngram_window(variant: Variant) -> Hits:
    """The n-gram window has only one size, because one or both of its bounds are left out.

    If one bound is missing, vLLM sets it to the other; if both are missing, both are 5, whatever vLLM's documentation
    says. Then only matches of exactly that length count, and hardly anything is drafted.
    Example: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 4}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/config/speculative.py, `self.prompt_lookup_min = self.prompt_lookup_max`
    """
    low, high = variant.get("prompt_lookup_min"), variant.get("prompt_lookup_max")
    size = high or low or 5
    # a window of one size as short as 2 finds matches all the same
    if variant.method in _NGRAM and None in (low, high) and size > 2:
        yield variant.hit(
            "prompt_lookup_max" if high else "prompt_lookup_min" if low else "method",
            f"only matches of exactly {size} tokens will be looked up",
            notes=("if one bound is missing, vLLM sets it to the other; if both are missing, both are 5",),
            help=f"write both: `prompt_lookup_min: 2`, `prompt_lookup_max: {size}`",
        )


@variant_rule("SD117", ERROR)
def empty_ngram_window(variant: Variant) -> Hits:
    """The shortest n-gram is longer than the longest.

    vLLM refuses to start.
    Example: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 5, prompt_lookup_max: 4}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/config/speculative.py, `be <= prompt_lookup_max=`
    """
    low, high = variant.get("prompt_lookup_min"), variant.get("prompt_lookup_max")
    if variant.method in _NGRAM and low and high and low > high:
        text = f"`prompt_lookup_min` is {low}, above `prompt_lookup_max`"
        yield variant.hit(
            "prompt_lookup_min", text, related={variant.at("prompt_lookup_max"): f"which is {high}"}
        )


@variant_rule("SD139", WARNING)
def unadapted_draft(variant: Variant) -> Hits:
    """Adapters change the target, but not the draft.

    vLLM applies LoRA adapters to the target only. The output stays right, but the draft predicts what the base model
    would write. Acceptance falls for each adapter that differs much from the base model.
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {enable_lora: true}
    Instead: speculation: {method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source:
        vllm/v1/worker/gpu/spec_decode/eagle/utils.py (from 0.30), `The drafter does not use the target's LoRA adapter.`
    """
    if variant.ctx.engine.get("enable_lora") is True and variant.method not in (
        *_NGRAM,
        "suffix",
        "custom_class",
    ):
        text = f"adapters are not applied to the drafts of `{variant.method}`"
        help_ = "watch each adapter's acceptance rate, or use `ngram` or `suffix`, which draft from the text itself"
        yield variant.hit("method", text, related={"engine.enable_lora": "adapters are served"}, help=help_)


@rule("SD169", WARNING)
def interleaved_drafts(ctx: Context) -> Hits:
    """The profile speculates, and interleaves the KV cache over context-parallel ranks by more than one token.

    Only a few sparse MLA kernels can verify draft tokens over such a cache. With any other kernel, the start ends with
    an assertion after the model is loaded (vllm-project/vllm#28407).
    Example:
        target: {model: ./model, tensor_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {decode_context_parallel_size: 2, cp_kv_cache_interleave_size: 16}
    Instead: engine: {decode_context_parallel_size: 2}
    Source: vllm/v1/worker/cp_utils.py, `"MTP with cp_kv_cache_interleave_size > 1 is not "`
    """
    if all((ctx.count(f"{part}_context_parallel_size") or 1) == 1 for part in ("decode", "prefill")):
        return
    names = ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size")
    name = next((name for name in names if (ctx.count(name) or 1) > 1), None)
    for variant in ctx.variants if name else ():
        text = (
            "most attention kernels cannot verify draft tokens if each rank stores several consecutive tokens"
        )
        yield Hit(
            f"engine.{name}", text, related={variant.at("method"): "speculation"}, help=f"leave `{name}` out"
        )


@variant_rule("SD127", ERROR, policy=True)
def synthetic_acceptance(variant: Variant) -> Hits:
    """Draft tokens are accepted at a rate that the profile sets, whether the target agrees or not.

    This is a tool for benchmarks of the engine. The server's answers are wrong, because the target did not choose their
    tokens.
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
    if variant.get("rejection_sample_method") == "synthetic":
        text = "`synthetic` accepts drafts at a fixed rate: the server's text is made up"
        help_ = "leave it out, or write `# specserve: ignore[SD127] reason` if this is a test of the engine"
        yield variant.hit("rejection_sample_method", text, help=help_)


@variant_rule("SD128", WARNING)
def lossy_verification(variant: Variant) -> Hits:
    """Verification may keep tokens that the target would not have chosen.

    `fly` also accepts a draft token that the target disagrees with, if the target is unsure there and agrees with the
    next few tokens. The output no longer has the target's distribution: measure its quality before you serve it.
    Example:
        vllm: ">=0.33"
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 4, rejection_sample_method: fly}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py (from 0.33), `FLy verification is a lossy speculative decoding method`
    """
    if variant.get("rejection_sample_method") == "fly":
        text = "`fly` is lossy: the text is no longer the target's own"
        yield variant.hit("rejection_sample_method", text, help="leave it out for lossless verification")
