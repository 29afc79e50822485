"""SD301, SD302, SD312: whether weights, draft and KV cache fit the machine, and do so now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule
from specserve.errors import gib
from specserve.profile.schema import world_size

if TYPE_CHECKING:
    from specserve.memory.estimate import MemoryEstimate
    from specserve.memory.reserve import Bounds


def estimates(ctx: Context) -> Iterator[tuple[str, MemoryEstimate]]:
    """Each variant's memory with the place that stands for it."""
    if "target" in ctx.memory:
        yield "target.model", ctx.memory["target"]
    for variant in ctx.variants:
        if memory := ctx.memory.get(variant.path):
            yield "target.model" if variant.path == "speculation" else variant.path, memory


def _misfit(ctx: Context, memory: MemoryEstimate, verb: str) -> str:
    """That the launch is too large for the accelerators that one copy of the model uses."""
    assert ctx.machine is not None
    target, machine = ctx.profile.target, str(ctx.machine)
    if not ctx.machine.is_cpu:
        used = target.tensor_parallel_size * target.pipeline_parallel_size
        machine = f"{used} x {ctx.machine.accelerator.name}"
    return f"the launch {verb} too large for {machine}: {memory.reason}"


def _notes(memory: MemoryEstimate) -> tuple[str, ...]:
    """The parts of the fullest GPU or rank, then what is to be known of the figures."""
    per_gpu = memory.per_gpu_bytes
    weights = gib(per_gpu.target_weights)
    if per_gpu.draft_weights:
        weights += f" + {gib(per_gpu.draft_weights)} of the draft"
    by = "vLLM's own" if memory.basis == "vllm" else "estimated"
    parts = (
        f"per GPU or rank: vLLM may use {gib(per_gpu.budget)} of {gib(per_gpu.total)}; {by}: "
        f"weights {weights}; activations, graphs and libraries about {_span(per_gpu.reserve)}; "
        f"KV cache {_span(per_gpu.kv_cache)}"
    )
    return (parts, *memory.notes)


def _span(bounds: Bounds) -> str:
    """`0.6-2.9 GiB`."""
    low, high = f"{bounds.low / 2**30:.1f}", f"{bounds.high / 2**30:.1f}"
    return f"{low} GiB" if low == high else f"{low}-{high} GiB"


def _advice(memory: MemoryEstimate) -> str | None:
    """The settings with which it fits, or may fit."""
    ways = [f"`{path}: {value}`" for path, value in memory.fixes.items()]
    return f"it may fit with {', or '.join(ways)}" if ways else None


@rule("SD301", ERROR, needs="hardware")
def insufficient_memory(ctx: Context) -> Violations:
    """The weights, or one request of `max_model_len` tokens, do not fit on the accelerator."""
    for path, memory in estimates(ctx):
        if memory.verdict == "does_not_fit":
            text = _misfit(ctx, memory, "is")
            yield Violation(path, text, notes=_notes(memory), help=_advice(memory))


@rule("SD302", WARNING, needs="hardware")
def tight_memory(ctx: Context) -> Violations:
    """The launch may not fit: within the bounds of the estimate, it may start or fail."""
    for path, memory in estimates(ctx):
        if memory.verdict == "tight":
            text = _misfit(ctx, memory, "may be")
            yield Violation(path, text, notes=_notes(memory), help=_advice(memory))
        elif memory.verdict == "unknown":
            text = f"it is not known whether the launch fits: {memory.reason}"
            help_ = "`specserve check` asks vLLM if it is installed"
            yield Violation(path, text, notes=_notes(memory), help=help_, severity=INFO)


@rule("SD312", ERROR, needs="hardware")
def occupied_memory(ctx: Context) -> Violations:
    """Less memory is free on this machine now than the launch needs."""
    machine = ctx.machine
    assert machine is not None
    # the launch takes the first ones, as CUDA counts
    free = min(machine.free_bytes[: world_size(ctx.profile)]) if machine.free_bytes else None
    for _, memory in estimates(ctx) if free is not None and machine.basis == "found" else ():
        if memory.verdict != "does_not_fit" and free is not None and free < memory.needed_bytes:
            total, need = gib(memory.per_gpu_bytes.total), gib(memory.needed_bytes)
            yield Violation(
                "engine.gpu_memory_utilization",
                f"{gib(free)} of {total} are free, and the launch takes {need}",
                help="end what holds the rest, which `specserve doctor` names, or lower the share",
            )
            return
