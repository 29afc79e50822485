"""SD138, SD164: the tokens of one step, and the requests that share them; CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.checks.rule import (
    ERROR,
    INFO,
    WARNING,
    Context,
    Variant,
    Violation,
    Violations,
    count,
    variant_rule,
)
from specserve.errors import UsageError
from specserve.hardware.accelerators import Accelerator, accelerator
from specserve.models.config import section
from specserve.vllm.limits import LEAST_SEQUENCES, batch_defaults, capture_sizes

TOKENS, SEQUENCES = "engine.max_num_batched_tokens", "engine.max_num_seqs"
_LARGEST = "max_cudagraph_capture_size"
_USUAL = 8192
"""Below it, vLLM warns that a step is small for speculation."""


def _gpu_kind(ctx: Context) -> Accelerator | None:
    """The accelerators of the launch, if they are GPUs of a known kind."""
    if ctx.machine is not None:
        return None if ctx.machine.is_cpu else ctx.machine.accelerator
    try:
        named = ctx.profile.hardware.accelerator if ctx.on_gpu and ctx.profile.hardware else None
        return accelerator(named) if named else None
    except UsageError:
        return None  # SD006 reports it


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
    if k is None:
        return
    if budget is None:
        help_ = f"write `max_num_batched_tokens: {_USUAL}`"
        if text := _default_step(variant):
            yield variant.violation("num_speculative_tokens", text, help=help_, severity=INFO)
        return
    if requests is None:  # vLLM's default on a GPU is never above the tokens of a step
        requests = min(LEAST_SEQUENCES, budget) if ctx.on_gpu else 1
    needed = requests * (k + 1)
    if budget < needed:
        is_refused = budget < requests or ctx.engine.get("enable_lora") is True
        text = f"a decode step of {requests} requests needs {needed} tokens; a step has {budget}"
        help_ = f"write `max_num_batched_tokens: {max(needed, _USUAL)}`, or lower one of the others"
        severity = ERROR if is_refused else WARNING
        yield Violation(
            TOKENS, text, related=_beside(variant, requests), help=help_, severity=severity
        )
    elif budget < _USUAL and not ctx.on_cpu and variant.path == "speculation":
        text = f"a step of {budget} tokens is small for speculation: vLLM warns below {_USUAL}"
        help_ = f"write `max_num_batched_tokens: {_USUAL}`, if the memory allows it"
        yield Violation(TOKENS, text, help=help_, severity=INFO)


def _default_step(variant: Variant) -> str | None:
    """What is wrong with the step that vLLM takes by itself, if all drafts overfill it."""
    kind, version = _gpu_kind(variant.ctx), variant.ctx.target_versions[-1]
    if kind is None or kind.vendor != "nvidia":
        return None
    least, requests = batch_defaults(
        version,
        gpu=kind.name,
        gpu_bytes=kind.total_bytes,
        compute_capability=kind.compute_capability,
    )
    requests = variant.ctx.count("max_num_seqs") or requests
    step = max(least, requests)
    if least >= 8192 or requests * ((variant.k or 0) + 1) <= step:
        return None
    return f"a step holds {step} tokens by default on `{kind.name}`; {requests} requests need more"


@variant_rule("SD164", WARNING)
def uncaptured_decode(variant: Variant) -> Violations:
    """The largest CUDA graph is smaller than a decode step of all requests."""
    path, largest = _largest(variant.ctx.engine)
    requests = variant.ctx.count("max_num_seqs")
    is_eager = variant.ctx.engine.get("enforce_eager") is True
    if largest is None or requests is None or not variant.k or is_eager:
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
        yield Violation(path, text, related=_beside(variant, requests), help=help_)


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
