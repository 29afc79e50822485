"""SD1xx about slots: the tokens of one step, the requests that share them, what drafting adds; CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.checks.config import section
from specserve.checks.rule import ERROR, INFO, WARNING, Context, Hit, Hits, Variant, count, rule, variant_rule
from specserve.errors import UsageError
from specserve.hardware.accelerators import Accelerator, accelerator
from specserve.vllm.facts import BLOCK_DRAFTS_CAP_REQUESTS, SLOTS
from specserve.vllm.limits import LEAST_SEQUENCES, batch_defaults, capture_sizes
from specserve.vllm.speculation import BLOCK_DRAFTS
from specserve.vllm.speculation import needed_slots as slots

TOKENS, SEQUENCES = "engine.max_num_batched_tokens", "engine.max_num_seqs"
_LARGEST = "max_cudagraph_capture_size"
_DEFAULT_TOKENS_PER_SEQUENCE = 8
"""Of the default step on GPUs: 2048 tokens for 256 requests, 8192 for 1024 (`get_batch_defaults` of 0.26 and 0.27)."""


def gpu_kind(ctx: Context) -> Accelerator | None:
    """The accelerators of the launch, if they are GPUs of a known kind."""
    if ctx.machine is not None:
        return None if ctx.machine.is_cpu else ctx.machine.accelerator
    try:
        return (
            accelerator(ctx.profile.hardware.accelerator or "")
            if ctx.on_gpu and ctx.profile.hardware
            else None
        )
    except UsageError:
        return None  # SD314 reports it


def _beside(variant: Variant, requests: int) -> dict[str, str]:
    """The two places that a number of tokens is the product of."""
    return {
        SEQUENCES: f"{requests} requests",
        variant.at("num_speculative_tokens"): f"{variant.k} + 1 tokens per request",
    }


@variant_rule("SD164", WARNING)
def uncaptured_decode(variant: Variant) -> Hits:
    """The largest CUDA graph is smaller than a decode step of all requests.

    With speculation, a decode step has K + 1 tokens of each request, and the size of a graph counts tokens. A step with
    more tokens than the largest graph runs without a graph, which is slower, and vLLM does not say so. vLLM also rounds
    the largest size down to one of its sizes: 1, 2, 4, multiples of 8 up to 256, then multiples of 16
    (vllm-project/vllm#54933).
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {max_num_seqs: 64, max_cudagraph_capture_size: 64}
    Instead: engine: {max_num_seqs: 64, max_cudagraph_capture_size: 256}
    Source: vllm/config/vllm.py, `"Truncating max_cudagraph_capture_size to %d",`
    """
    path, largest = _largest(variant.ctx.engine)
    requests = variant.ctx.count("max_num_seqs")
    if (
        largest is None
        or requests is None
        or not variant.k
        or variant.ctx.engine.get("enforce_eager") is True
    ):
        return
    captured = largest
    if path.endswith(_LARGEST):
        captured = largest // 16 * 16 if largest >= 256 else capture_sizes(largest)[-1]
    needed = requests * (variant.k + 1)
    if captured < needed:
        step = 8 if needed <= 256 else 16
        words = f"{requests} request{'s' if requests > 1 else ''}"
        text = f"a decode step of {words} has {needed} tokens; CUDA graphs end at {captured} tokens"
        help_ = f"leave it out, or raise it to {-(-needed // step) * step}"
        yield Hit(path, text, related=_beside(variant, requests), help=help_)


def _largest(engine: Mapping[str, Any]) -> tuple[str, int | None]:
    """The largest size that the profile lets vLLM capture, in tokens, and where it says so."""
    inner = section(engine, "compilation_config")
    for place, said in (("engine", engine), ("engine.compilation_config", inner)):
        sizes = said.get("cudagraph_capture_sizes")
        numbers = [count(size) or 0 for size in sizes] if isinstance(sizes, list | tuple) else []
        if numbers and min(numbers) > 0:
            return f"{place}.cudagraph_capture_sizes", max(numbers)
        if (largest := count(said.get(_LARGEST)) or 0) > 0:
            return f"{place}.{_LARGEST}", largest
    return "engine", None


def needed_slots(variant: Variant, version: str, *, sequences: int | None) -> int:
    """How many of a step's tokens drafting takes at least; one more must be left, or vLLM refuses to start."""
    return slots(
        version,
        method=variant.method,
        num_speculative_tokens=variant.k or 0,
        parallel=variant.get("parallel_drafting") is True,
        sequences=sequences,
    )


@variant_rule("SD135", ERROR)
def small_step_with_lora(variant: Variant) -> Hits:
    """With LoRA, a step has no room for the draft tokens of every request.

    vLLM refuses to start unless `max_num_batched_tokens` has room for K + 1 tokens of each of `max_num_seqs` requests.
    Example:
        speculation: {method: ngram, num_speculative_tokens: 15, prompt_lookup_min: 2, prompt_lookup_max: 4}
        engine: {enable_lora: true, max_num_seqs: 1024, max_num_batched_tokens: 8192}
    Instead: engine: {enable_lora: true, max_num_seqs: 512, max_num_batched_tokens: 8192}
    Source: vllm/engine/arg_utils.py, `Consider increasing max_num_batched_tokens or `
    """
    ctx, budget, requests = (
        variant.ctx,
        variant.ctx.count("max_num_batched_tokens"),
        variant.ctx.count("max_num_seqs"),
    )
    if requests is None and budget is not None and ctx.on_gpu:
        requests = min(LEAST_SEQUENCES, budget)  # vLLM's default is never above the tokens of a step
    if ctx.engine.get("enable_lora") is not True or None in (budget, requests, variant.k):
        return
    assert budget is not None and requests is not None and variant.k is not None
    needed = requests * (variant.k + 1)
    if budget < needed:
        text = f"LoRA with speculation needs {needed} tokens in a step; found {budget}"
        help_ = f"write `max_num_batched_tokens: {needed}`, or lower one of the other two values"
        yield Hit(TOKENS, text, related=_beside(variant, requests), help=help_)


@rule("SD136", ERROR)
def too_few_slots(ctx: Context) -> Hits:
    """The token budget of a step (`max_num_batched_tokens`) is too small to serve or to draft.

    vLLM refuses to start. `max_num_batched_tokens` must be at least `max_num_seqs`, which is one token for each
    request. Without chunked prefill, a whole prompt must fit, too. Drafting reserves a part of the step, and the rest
    must have room for the requests. Before 0.28, parallel drafting reserves K - 1 tokens for every request: with the
    default of 256 requests, K = 9 takes all 2048 tokens of the default step (vllm-project/vllm#50708).
    Example:
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5}
        engine: {max_num_seqs: 1, max_num_batched_tokens: 4}
        hardware: {accelerator: cpu}
    Instead: engine: {max_num_seqs: 1, max_num_batched_tokens: 2048}
    Source: vllm/config/vllm.py (from 0.28), `VllmConfig does not have enough slots to schedule a token and`
    """
    budget, given = ctx.count("max_num_batched_tokens"), ctx.count("max_num_seqs")
    if budget is None:
        yield from _overfilled_default(ctx)
        return
    if small := _small_step(ctx, budget, given):
        yield small
        return
    for variant in ctx.variants:
        needs = {version: needed_slots(variant, version, sequences=given) for version in ctx.judged}
        if ctx.engine.get("max_num_scheduled_tokens") is not None:
            # a version that keeps slots for every request then asks another question
            needs = {version: needed for version, needed in needs.items() if SLOTS.at(version) != "requests"}
        found = [version for version, needed in needs.items() if needed and budget <= needed]
        if found:
            least = max(needs[version] for version in found) + 1
            text = f"drafting takes all tokens of a step: at least {least} are needed; found {budget}"
            related = {variant.at("num_speculative_tokens"): f"{variant.k} are drafted"}
            help_ = "8192 is a good value for speculation"
            yield Hit(TOKENS, text, related=related, versions=found, help=help_)


def _overfilled_default(ctx: Context) -> Hits:
    """The blocks whose drafts leave nothing of the step that vLLM takes by itself on any GPU, 8 tokens per request."""
    said = any(ctx.engine.get(key) for key in ("max_num_seqs", "max_num_scheduled_tokens"))
    on_other = ctx.on_cpu or (ctx.machine is not None and ctx.machine.is_cpu)
    if said or on_other or ctx.engine.get("enable_chunked_prefill") is False:
        return
    for variant in ctx.variants:
        found = [
            version
            for version in ctx.judged
            if SLOTS.at(version) == "requests"
            and needed_slots(variant, version, sequences=1) >= _DEFAULT_TOKENS_PER_SEQUENCE
        ]
        if found:
            text = f"drafts of {variant.k} tokens take all tokens of vLLM's default step"
            help_ = "set `max_num_batched_tokens`, and a smaller `max_num_seqs`"
            yield variant.hit("num_speculative_tokens", text, versions=found, help=help_)


def _small_step(ctx: Context, budget: int, requests: int | None) -> Hit | None:
    """What a step cannot hold, drafts or not: a token of each request, or a prompt that is read in one piece."""
    longest = ctx.profile.target.max_model_len or 0
    if requests is not None and budget < requests:
        text = f"a step of {budget} tokens cannot hold one token of each request"
        help_ = "lower `max_num_seqs`, or raise `max_num_batched_tokens`"
        return Hit(TOKENS, text, related={SEQUENCES: f"{requests} requests"}, help=help_)
    if ctx.engine.get("enable_chunked_prefill") is False and budget < longest:
        text = f"without chunked prefill a step must hold a whole prompt; found {budget} tokens"
        related = {"target.max_model_len": f"{longest} tokens", "engine.enable_chunked_prefill": "off"}
        help_ = f"write `max_num_batched_tokens: {longest}`, or leave `enable_chunked_prefill` to vLLM"
        return Hit(TOKENS, text, related=related, help=help_)
    return None


@variant_rule("SD137", WARNING)
def fewer_active_requests(variant: Variant) -> Hits:
    """The drafter's own pass has no room for as many requests as the profile allows.

    `dflash` and `dspark` draft in a separate pass, whose tokens must fit into `max_num_batched_tokens`: K + 1 per
    request for `dflash`, K for `dspark`. If they do not fit, vLLM 0.33 runs fewer requests in parallel than
    `max_num_seqs` says.
    Example:
        vllm: ">=0.32"
        speculation: {method: dflash, model: ./drafter, num_speculative_tokens: 63}
        engine: {max_num_seqs: 256, max_num_batched_tokens: 8192}
    Instead: engine: {max_num_seqs: 128, max_num_batched_tokens: 8192}
    Source: vllm/config/vllm.py (from 0.33), `query tokens per request within `
    """
    budget, given = variant.ctx.count("max_num_batched_tokens"), variant.ctx.count("max_num_seqs")
    capped = variant.ctx.during(BLOCK_DRAFTS_CAP_REQUESTS)
    if budget is None or given is None or not capped or variant.method not in BLOCK_DRAFTS:
        return
    active = variant.ctx.count("max_num_active_seqs") or given
    needed = needed_slots(variant, capped[-1], sequences=given)
    if needed < budget and budget // needed < active:
        yield Hit(
            TOKENS,
            f"at most {budget // needed} of {active} requests will run in parallel: the drafter has room for no more",
            related={
                SEQUENCES: f"{active} are allowed",
                variant.at("method"): f"takes {needed} tokens for each request",
            },
            versions=capped,
            help=f"write `max_num_batched_tokens: {needed * active}`, or lower `max_num_seqs`",
        )


@rule("SD138", INFO)
def small_steps(ctx: Context) -> Hits:
    """A step has room for fewer than 8192 tokens, which vLLM calls too few for speculation.

    Drafts take a part of each step, so prompts are read in more pieces and the time to first token grows. vLLM warns
    about it at the start. On GPUs with less than 70 GiB and on the A100, the default is 2048 tokens
    (vllm-project/vllm#44815). If the profile sets `max_num_batched_tokens`, a step with fewer than 8192 tokens is
    always reported; if vLLM's default applies, only if a decode step of all requests, with K + 1 tokens each, does not
    fit.
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {max_num_batched_tokens: 2048, max_num_seqs: 64}
    Instead: engine: {max_num_batched_tokens: 8192, max_num_seqs: 64}
    Source: vllm/config/vllm.py, `if self.scheduler_config.max_num_scheduled_tokens < 8192:`
    """
    budget = ctx.count("max_num_batched_tokens")
    if ctx.profile.speculation is None or ctx.on_cpu:
        return
    for variant in ctx.variants if budget is None else ():
        if text := _default_step(variant):
            yield variant.hit("num_speculative_tokens", text, help="write `max_num_batched_tokens: 8192`")
    if budget is not None and budget < 8192:
        text = f"a step of {budget} tokens is small for speculation: vLLM warns below 8192"
        yield Hit(TOKENS, text, help="write `max_num_batched_tokens: 8192`, if the memory allows it")


def _default_step(variant: Variant) -> str | None:
    """What is wrong with the step that vLLM takes by itself, if the drafts of all requests overfill it."""
    kind, version = gpu_kind(variant.ctx), variant.ctx.judged[-1]
    if kind is None or kind.vendor != "nvidia":
        return None
    least, requests = batch_defaults(
        version, gpu=kind.name, gpu_bytes=kind.total_bytes, compute_capability=kind.compute_capability
    )
    requests = variant.ctx.count("max_num_seqs") or requests
    step = max(least, requests)
    if least >= 8192 or requests * ((variant.k or 0) + 1) <= step:
        return None
    return f"a step holds {step} tokens by default on `{kind.name}`; {requests} requests need more"
