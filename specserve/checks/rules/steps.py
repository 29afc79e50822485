"""SD138, SD164: the tokens of one step, and the requests that share them; CUDA graphs."""

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

TOKENS, SEQUENCES = "engine.max_num_batched_tokens", "engine.max_num_seqs"
_LEAST_SEQUENCES = 256
"""The smallest default of `max_num_seqs` on a GPU."""


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
