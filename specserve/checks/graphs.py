"""SD164 and SD165 about CUDA graphs: decode steps that are too large, or too long, for those that are captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.runners import on_cpu
from specserve.checks.values import count
from specserve.checks.versions import judged, only_in
from specserve.diagnostics import Severity
from specserve.errors import UsageError
from specserve.hardware.accelerators import Accelerator, accelerator
from specserve.vllm.facts import FLASHINFER_WITHOUT_GRAPHS

_LARGEST = "max_cudagraph_capture_size"


def kind_of(ctx: Context) -> Accelerator | None:
    """The accelerators of the launch, where they are GPUs of a known kind."""
    if ctx.machine is not None:
        return None if ctx.machine.is_cpu else ctx.machine.accelerator
    hardware = ctx.profile.hardware
    if hardware is None or hardware.accelerator is None or on_cpu(ctx.profile):
        return None
    try:
        return accelerator(hardware.accelerator)
    except UsageError:
        return None  # SD314 reports it


@rule("SD164", "uncaptured-decode", Severity.WARNING)
def uncaptured_decode(ctx: Context) -> Iterator[Hit]:
    """The largest CUDA graph is smaller than a decode step of all requests.

    ## Why is this bad?
    With speculation a decode step takes K + 1 tokens of each request, and the size of a graph counts tokens. A step
    above the largest graph runs without one, slower, and vLLM does not say so. It also rounds the largest size down
    to the sizes it captures: 1, 2, 4, every 8 up to 256, every 16 beyond (vllm-project/vllm#54933).

    ## Example
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {max_num_seqs: 64, max_cudagraph_capture_size: 64}

    ## Use instead
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {max_num_seqs: 64, max_cudagraph_capture_size: 256}

    ## Source
    vllm/config/vllm.py, `"Truncating max_cudagraph_capture_size to %d",`
    """
    path, largest = _largest(ctx.profile.engine)
    requests, k = count(ctx.profile.engine.get("max_num_seqs")), 0
    if largest is None or requests is None or ctx.profile.engine.get("enforce_eager") is True:
        return
    for place, block in blocks(ctx):
        k = block.num_speculative_tokens or 0
        needed, captured = requests * (k + 1), _captured(largest, path)
        if k and captured < needed:
            yield Hit(
                path,
                f"graphs are captured up to {captured} tokens; a decode step of {requests} requests has {needed}",
                related=(
                    ("engine.max_num_seqs", f"{requests} requests"),
                    (f"{place}.num_speculative_tokens", f"of {k + 1} tokens each"),
                ),
                help=f"leave it out, or raise it to {_rounded_up(needed)}",
            )


def _largest(engine: Mapping[str, Any]) -> tuple[str, int | None]:
    """The largest size that the profile lets vLLM capture, in tokens, and where it says so."""
    config = engine.get("compilation_config")
    inner = config if isinstance(config, Mapping) else {}
    for place, said in (("engine", engine), ("engine.compilation_config", inner)):
        sizes = said.get("cudagraph_capture_sizes")
        if isinstance(sizes, (list, tuple)) and sizes and all(count(size) for size in sizes):
            return f"{place}.cudagraph_capture_sizes", max(sizes)
        if count(said.get(_LARGEST)):
            return f"{place}.{_LARGEST}", count(said.get(_LARGEST))
    return "engine", None


def _captured(largest: int, path: str) -> int:
    """The largest size that is captured: sizes that are listed are taken as they are."""
    if not path.endswith(_LARGEST) or largest in (1, 2, 4):
        return largest
    if largest < 8:
        return 4 if largest > 4 else 2
    return largest - largest % (8 if largest < 256 else 16)


def _rounded_up(tokens: int) -> int:
    step = 8 if tokens <= 256 else 16
    return -(-tokens // step) * step


@rule("SD165", "flashinfer-without-graphs", Severity.WARNING)
def flashinfer_without_graphs(ctx: Context) -> Iterator[Hit]:
    """FlashInfer is asked for on GPUs where it captures no decode step with drafts.

    ## Why is this bad?
    A step that verifies drafts has several tokens per request. On these GPUs FlashInfer's graphs hold one token per
    request only, so every step launches its kernels one by one: speculation loses much of what it gains
    (vllm-project/vllm#54992, vllm-project/vllm#49547).

    ## Example
        vllm: "==0.32.*"
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {attention_backend: FLASHINFER}
        hardware: {accelerator: L4-24GB}

    ## Use instead
        vllm: "==0.32.*"
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        hardware: {accelerator: L4-24GB}

    ## Source
    vllm/v1/attention/backends/flashinfer.py, `return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE`
    """
    engine, kind = ctx.profile.engine, kind_of(ctx)
    config = engine.get("attention_config")
    inner = config.get("backend") if isinstance(config, Mapping) else None
    path = (
        "engine.attention_backend" if engine.get("attention_backend") else "engine.attention_config.backend"
    )
    if str(engine.get("attention_backend") or inner).upper() != "FLASHINFER" or kind is None:
        return
    major = kind.compute_capability[0] if kind.compute_capability else None
    found = [version for version in judged(ctx) if major in FLASHINFER_WITHOUT_GRAPHS.at(version)]
    if not found or engine.get("enforce_eager") is True:
        return
    for place, block in blocks(ctx):
        if block.num_speculative_tokens != 0:
            yield Hit(
                path,
                f"FlashInfer captures no CUDA graph for drafts on `{kind.name}`",
                related=((f"{place}.method", "speculation"),),
                notes=only_in(ctx, found),
                help="leave the choice to vLLM, or write `attention_backend: FLASH_ATTN`",
            )
