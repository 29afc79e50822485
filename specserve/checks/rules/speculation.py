"""SD007, SD104, SD109, SD116, SD127, SD138, SD139, SD164, SD167: how much is drafted, by what."""

from __future__ import annotations

from specserve.checks.rule import (
    ERROR,
    WARNING,
    Variant,
    Violation,
    Violations,
    count,
    variant_rule,
)
from specserve.models.config import section

_MOST_TOKENS = 128
_NGRAM = ("ngram", "ngram_gpu")
_POSITIONS = ("rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings")
TOKENS, SEQUENCES = "engine.max_num_batched_tokens", "engine.max_num_seqs"
_LEAST_SEQUENCES = 256
"""The smallest default of `max_num_seqs` on a GPU."""


@variant_rule("SD007", ERROR, needs="models", in_lint=True)
def missing_key(variant: Variant) -> Violations:
    """Neither the block nor its head's config.json says how many tokens are drafted."""
    text, head = f"`{variant.method}` needs `num_speculative_tokens`", variant.draft
    if variant.k is not None:
        return
    if variant.method == "mtp" or (variant.method == "dspark" and variant.model is None):
        yield variant.violation("method", text, help="for `mtp`, 1 is a good value to start with")
    elif variant.method in ("eagle", "eagle3", "dflash"):
        if head is None:
            text += ", unless the config.json of its head has `n_predict`"
        if head is None or "n_predict" not in head.config:
            severity = None if head else WARNING
            yield variant.violation(
                "method", text, help="most heads are used with 3", severity=severity
            )


@variant_rule("SD104", ERROR)
def split_draft(variant: Variant) -> Violations:
    """The draft's tensor parallelism is not the target's."""
    place, target = "draft_tensor_parallel_size", variant.ctx.profile.target
    draft, is_head = variant.get(place), variant.method != "draft_model"
    if draft in (None, target.tensor_parallel_size) or (draft == 1 and is_head):  # ignored
        return
    yield variant.violation(
        place,
        "draft tensor parallelism is not the target's",
        label=f"draft asks for {draft}",
        related={"target.tensor_parallel_size": f"target runs on {target.tensor_parallel_size}"},
        notes=("the V2 model runner ignores 1, and V1 fails after loading",) * (draft == 1),
        help=f"write `{place}: {target.tensor_parallel_size}`, or leave it out",
        severity=WARNING if draft == 1 else None,
    )


@variant_rule("SD109", WARNING)
def too_many_speculative_tokens(variant: Variant) -> Violations:
    """More tokens are drafted per step than a server can use."""
    if variant.k is not None and variant.k > _MOST_TOKENS:
        text = f"no server gains from more than {_MOST_TOKENS} draft tokens; found {variant.k}"
        note = "V2 verifies them all, and the V1 model runner ends at the first request"
        help_ = "usual values are 3 to 8, and up to 32 for `ngram` and `suffix`"
        yield variant.violation("num_speculative_tokens", text, notes=(note,), help=help_)


@variant_rule("SD116", WARNING)
def surprising_ngram_window(variant: Variant) -> Violations:
    """The n-gram window has only one size."""
    low, high = variant.get("prompt_lookup_min"), variant.get("prompt_lookup_max")
    size = high or low or 5
    # a window of one size as short as 2 finds matches all the same
    if variant.method in _NGRAM and None in (low, high) and size > 2:
        text = f"only matches of exactly {size} tokens will be looked up"
        help_ = f"write both: `prompt_lookup_min: 2`, `prompt_lookup_max: {size}`"
        yield variant.violation("method", text, help=help_)


@variant_rule("SD127", ERROR, policy=True)
def synthetic_acceptance(variant: Variant) -> Violations:
    """Drafts are accepted whether the target agrees or not."""
    method = variant.get("rejection_sample_method")
    if method == "synthetic":
        text = "`synthetic` accepts drafts at a fixed rate: the server's text is made up"
        help_ = "leave it out, or write `# specserve: ignore[SD127] reason` if it tests the engine"
        yield variant.violation("rejection_sample_method", text, help=help_)
    elif method == "fly":
        text = "`fly` is lossy: the text is no longer the target's own"
        help_ = "leave it out for lossless verification"
        yield variant.violation("rejection_sample_method", text, help=help_, severity=WARNING)


@variant_rule("SD139", WARNING)
def unadapted_draft(variant: Variant) -> Violations:
    """Adapters change the target, but not the draft."""
    without = (*_NGRAM, "suffix", "custom_class")
    if variant.ctx.engine.get("enable_lora") is True and variant.method not in without:
        text = f"adapters are not applied to the drafts of `{variant.method}`"
        help_ = "watch each adapter's acceptance rate, or use `ngram` or `suffix`"
        related = {"engine.enable_lora": "adapters are served"}
        yield variant.violation("method", text, related=related, help=help_)


@variant_rule("SD167", WARNING)
def unshared_overrides(variant: Variant) -> Violations:
    """Overrides of positions (RoPE) hold for the target, but not for its prediction layers."""
    overrides = section(variant.ctx.engine, "hf_overrides")
    places = (overrides, section(overrides, "text_config"))
    found = [key for place in places for key in _POSITIONS if key in place]
    is_own = variant.model in (None, variant.ctx.profile.target.model)
    if found and variant.method == "mtp" and is_own:
        text = f"`hf_overrides` changes `{found[0]}` for the target, but not for its `mtp` layers"
        related = {variant.at("method"): "drafts with the target's own layers"}
        help_ = "change config.json in a copy of the checkpoint instead"
        yield Violation("engine.hf_overrides", text, related=related, help=help_)


def _beside(variant: Variant, requests: int) -> dict[str, str]:
    """The two places that a number of tokens is the product of."""
    return {
        SEQUENCES: f"{requests} requests",
        variant.at("num_speculative_tokens"): f"{variant.k} + 1 tokens per request",
    }


@variant_rule("SD138", WARNING)
def small_steps(variant: Variant) -> Violations:
    """A step has no room for the draft tokens of every request."""
    ctx, k = variant.ctx, variant.k
    budget, requests = ctx.count("max_num_batched_tokens"), ctx.count("max_num_seqs")
    if k is None or budget is None:
        return
    if requests is None:  # vLLM's default on a GPU is never above the tokens of a step
        requests = min(_LEAST_SEQUENCES, budget) if ctx.platform == "gpu" else 1
    needed = requests * (k + 1)
    if budget < needed:
        is_refused = budget < requests or ctx.engine.get("enable_lora") is True
        text = f"a decode step of {requests} requests needs {needed} tokens; a step has {budget}"
        help_ = f"write `max_num_batched_tokens: {max(needed, 8192)}`, or lower one of the others"
        severity = ERROR if is_refused else WARNING
        related = _beside(variant, requests)
        yield Violation(TOKENS, text, related=related, help=help_, severity=severity)


@variant_rule("SD164", WARNING)
def uncaptured_decode(variant: Variant) -> Violations:
    """The largest CUDA graph is smaller than a decode step of all requests."""
    engine, k = variant.ctx.engine, variant.k
    requests, name = variant.ctx.count("max_num_seqs"), "max_cudagraph_capture_size"
    inner = section(engine, "compilation_config")
    path = f"engine.{name}" if name in engine else f"engine.compilation_config.{name}"
    largest = count(engine.get(name, inner.get(name))) or 0
    if largest < 1 or requests is None or not k or engine.get("enforce_eager") is True:
        return
    if largest >= 8:  # vLLM's own sizes
        largest -= largest % (16 if largest > 256 else 8)
    needed = requests * (k + 1)
    if largest < needed:
        text = f"{requests} requests need {needed} tokens a step; CUDA graphs end at {largest}"
        help_ = f"leave it out, or raise it to {needed} or more"
        yield Violation(path, text, related=_beside(variant, requests), help=help_)
