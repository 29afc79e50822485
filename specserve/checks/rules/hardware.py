"""SD301, SD302, SD306, SD312, SD405: whether accelerators, memory and disk suffice, now too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule
from specserve.errors import gib
from specserve.profile.schema import Profile, count_of, world_size

if TYPE_CHECKING:
    from specserve.memory.estimate import MemoryEstimate
    from specserve.memory.reserve import Bounds
    from specserve.models.facts import ModelFacts


@rule("SD306", ERROR)
def too_few_accelerators(ctx: Context) -> Violations:
    """The model is split over more accelerators than there are."""
    machine, hardware, ranks = ctx.machine, ctx.profile.hardware, _ranks_started(ctx.profile)
    backend = ctx.engine.get("distributed_executor_backend", "mp")
    is_said = hardware and (hardware.accelerator or "hardware.count" in ctx.profile.nodes)
    if machine is not None:
        nodes, there, is_cpu = machine.nodes, machine.count * machine.nodes, machine.is_cpu
    elif hardware and is_said and backend in ("mp", "uni"):  # Ray may look elsewhere
        nodes = max(hardware.nodes, ctx.count("nnodes") or 1)
        there, is_cpu = hardware.count * nodes, ctx.platform == "cpu"
    else:
        return
    devices = hardware.devices if hardware else None
    if is_cpu:
        return
    if devices and ranks > len(devices) * nodes:
        words = f"the launch takes {ranks} accelerators, and `devices` names {len(devices)}"
        yield Violation("hardware.devices", words + (" per node" if nodes > 1 else ""))
    elif ranks > there:
        verb = "is" if there == 1 else "are"
        yield Violation(
            "target.tensor_parallel_size",
            f"the launch takes {ranks} accelerators, and there {verb} {there}",
            label=f"the machine has {machine}" if machine else "",
            help="split the model over fewer accelerators, or use a machine with more",
        )


def _ranks_started(profile: Profile) -> int:
    """The ranks that this launch starts itself: others may hold the rest of data parallelism.

    Source: vllm/engine/arg_utils.py, `data_parallel_size_local` and `data_parallel_rank`.
    """
    engine, ranks = profile.engine, world_size(profile)
    local = engine.get("data_parallel_size_local")
    if engine.get("data_parallel_rank") is not None or engine.get("data_parallel_backend") == "ray":
        local = 1
    if local is None:
        return ranks
    return ranks // count_of(engine.get("data_parallel_size")) * count_of(local)


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


@rule("SD405", ERROR, needs="models")
def full_disk(ctx: Context) -> Violations:
    """The weights to download do not fit on the disk of the cache."""
    if ctx.machine is None or ctx.machine.basis != "found":
        return
    from specserve.models.hub import hub_cache

    cache = hub_cache({**os.environ, **ctx.profile.env})
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    total, models = 0, [("target.model", ctx.target)]
    for variant in ctx.variants:
        if variant.path == "speculation" and variant.model:
            models.append((variant.at("model"), variant.draft))
    for path, facts in models:
        total += (missing := missing_bytes(facts) if facts else 0)
        if missing and total > free:
            text = f"{gib(total)} must be downloaded, and `{cache}` has {gib(free)} free"
            help_ = "free some space, or set `HF_HOME` to a folder on a larger disk"
            yield Violation(path, text, help=help_)


def missing_bytes(facts: ModelFacts) -> int:
    """The weights of a model of the Hub that do not lie on this machine."""
    if facts.origin != "hub":
        return 0
    weights: tuple[str, ...] = (".safetensors",)  # vLLM takes these alone, if there are any
    if not any(name.endswith(weights) for name in facts.files):
        weights = (".bin", ".pt", ".gguf")
    files = (file for name, file in facts.files.items() if name.endswith(weights))
    return sum(file.size_bytes or 0 for file in files if file.path is None)
