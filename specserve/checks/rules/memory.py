"""SD301, SD302, SD312: whether weights, draft and KV cache fit the machine, and do so now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule
from specserve.errors import gib
from specserve.profile.schema import world_size

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.memory.reserve import Bounds

_GIB = 2**30
_BETTER = {"fit": "make it fit", "tight": "make it a tight fit"}
_SHARE = "gpu_memory_utilization"


def _misfit(ctx: Context, verb: str) -> str:
    """That the launch is too large for the machine, or for what one copy of the model uses."""
    assert ctx.machine is not None
    machine, target = ctx.machine, ctx.profile.target
    each = target.tensor_parallel_size * target.pipeline_parallel_size
    words = str(machine)
    if machine.is_cpu or each >= machine.count * machine.nodes:
        return f"the launch {verb} too large for {words}"
    used = f"{each} of the {machine.count * machine.nodes} {machine.accelerator.name}"
    return f"the launch uses {used} and {verb} too large for {'it' if each == 1 else 'them'}"


def is_fixed(memory: MemoryEstimate) -> bool:
    """Whether the profile gives the size of the KV cache, so that vLLM takes no share."""
    per_gpu = memory.per_gpu_bytes
    return per_gpu.budget == per_gpu.total and per_gpu.kv_cache.low == per_gpu.kv_cache.high > 0


def _parts(memory: MemoryEstimate, machine: Machine) -> str:
    """The parts of the fullest GPU, or of the host's memory if the CPU serves."""
    per_gpu = memory.per_gpu_bytes
    weights = gib(per_gpu.target_weights)
    if per_gpu.draft_weights:
        weights += f" + {gib(per_gpu.draft_weights)} of the draft"
    if memory.unknown_draft:
        weights += " without the draft"
    where, total, rest = "per GPU", gib(per_gpu.total), ""
    if machine.is_cpu:
        where = f"each of {memory.ranks} ranks on this host" if memory.ranks > 1 else "on this host"
    head = f" of {total}"
    if not is_fixed(memory):
        head, rest = f": vLLM may use {gib(per_gpu.budget)} of {total}", " (the rest)"
    shown = f"activations, graphs and libraries about {_span(per_gpu.reserve)}"
    by = "vLLM's own" if memory.basis == "vllm" else "estimated"
    cache = f"KV cache {_span(per_gpu.kv_cache)}{rest}"
    return f"{where}{head}; {by}: weights {weights}; {shown}; {cache}"


def _span(bounds: Bounds) -> str:
    """`0.6-2.9 GiB`."""
    low, high = f"{bounds.low / _GIB:.1f}", f"{bounds.high / _GIB:.1f}"
    return f"{low} GiB" if low == high else f"{low}-{high} GiB"


def capacity(memory: MemoryEstimate) -> str:
    """What the KV cache holds, at most."""
    states = memory.state_blocks
    if states and states.high < memory.max_num_seqs:
        many = f"{memory.max_num_seqs:,} requests need a block each for their recurrent states"
        return f"{many}, and the KV cache has at most about {int(states.high):,}"
    one = f"one request may need {memory.max_model_len:,} tokens"
    return f"{one}, and the KV cache holds at most about {int(memory.kv_cache_tokens.high):,}"


def _advice(memory: MemoryEstimate) -> str | None:
    """The settings that make the verdict better."""
    return "; ".join(f"{fix.setting} would {_BETTER[fix.verdict]}" for fix in memory.fixes) or None


def estimates(ctx: Context) -> Iterator[tuple[str, MemoryEstimate]]:
    """Each variant's memory with the place that stands for it; else the target's."""
    if ctx.is_for_other_platform:  # SD309 says so
        return
    if "target" in ctx.memory:
        yield "target.model", ctx.memory["target"]
    for variant in ctx.variants:
        if variant.memory:
            yield variant.at("model") if variant.model else variant.path, variant.memory


def _largest_part(path: str, memory: MemoryEstimate) -> str:
    """Where the profile says what takes the most of a GPU. `path`: the place of the estimate."""
    per_gpu, tokens = memory.per_gpu_bytes, memory.kv_cache_tokens.high
    per_token = per_gpu.kv_cache.high / tokens if tokens else memory.target_kv_bytes_per_token
    parts = {
        "target.model": per_gpu.target_weights,
        "target.max_model_len": memory.max_model_len * per_token,
    }
    if memory.is_short_of_states:
        return "engine.max_num_seqs"
    if is_fixed(memory):
        parts = {
            "target.model": per_gpu.target_weights,
            "engine.kv_cache_memory_bytes": per_gpu.kv_cache.high,
        }
    if path.endswith(".model"):
        parts.setdefault(path, per_gpu.draft_weights)
    return max(parts, key=lambda place: parts[place])


def _of_alternative(path: str) -> str:
    variant = path.removesuffix(".model")
    return f" (with `{variant}`)" if variant.startswith("alternatives.") else ""


def lacking_free_bytes(ctx: Context, memory: MemoryEstimate) -> int | None:
    """What is free on the fullest accelerator here, if a launch needs more; SD312 reports it."""
    machine = ctx.machine
    if machine is None or machine.basis != "found":
        return None
    free = machine.least_free_bytes(ranks=world_size(ctx.profile))
    return free if free is not None and free < needed_at_once(memory, machine).high else None


def needed_at_once(memory: MemoryEstimate, machine: Machine) -> Bounds:
    """Bytes that must be free: what vLLM compares, and what all ranks on a CPU fill together."""
    from specserve.memory.reserve import Bounds

    per_gpu = memory.per_gpu_bytes
    if not is_fixed(memory):
        return Bounds(per_gpu.budget, per_gpu.budget)
    weights, kv = per_gpu.target_weights + per_gpu.draft_weights, per_gpu.kv_cache.low
    sharing = memory.ranks if machine.is_cpu else 1
    return Bounds(sharing * weights + kv, sharing * (weights + kv))


@rule("SD301", ERROR, needs="hardware")
def insufficient_memory(ctx: Context) -> Violations:
    """The weights, or one request of `max_model_len` tokens, do not fit on the accelerator."""
    assert ctx.machine is not None
    for path, memory in estimates(ctx):
        if memory.verdict == "does_not_fit":
            why = too_large_because(memory, ctx.machine)
            yield Violation(
                _largest_part(path, memory),
                f"{_misfit(ctx, 'is')}{_of_alternative(path)}: {why}",
                notes=(_parts(memory, ctx.machine), *memory.notes),
                help=_advice(memory),
                severity=None if memory.certain else WARNING,
            )


def too_large_because(memory: MemoryEstimate, machine: Machine) -> str:
    """What of a launch is too large for what there is."""
    per_gpu = memory.per_gpu_bytes
    weights = per_gpu.target_weights + per_gpu.draft_weights
    if is_fixed(memory):
        cache = per_gpu.kv_cache.low
        if weights + cache > per_gpu.total:
            return f"weights of {gib(weights)} and a KV cache of {gib(cache)} exceed it"
    elif weights >= per_gpu.budget:
        each = "" if machine.is_cpu else " per GPU"
        return f"the weights take {gib(weights)}{each}, and vLLM may use {gib(per_gpu.budget)}"
    elif not per_gpu.kv_cache.high:
        return "nothing is left for the KV cache"
    return capacity(memory)


@rule("SD302", WARNING, needs="hardware")
def tight_memory(ctx: Context) -> Violations:
    """The launch may not fit: within the bounds of the estimate, it may start or fail."""
    assert ctx.machine is not None
    for path, memory in estimates(ctx):
        if memory.verdict == "tight" and lacking_free_bytes(ctx, memory) is None:
            text = f"{_misfit(ctx, 'may be')}{_of_alternative(path)}: {memory.reason}"
            if memory.is_only_in_doubt:
                text = f"it is not known whether the launch fits: {memory.reason}"
            unknown = "`specserve check` asks vLLM if it is installed"
            yield Violation(
                path if memory.is_only_in_doubt else _largest_part(path, memory),
                text,
                notes=(_parts(memory, ctx.machine), *memory.notes),
                help=_advice(memory) if memory.is_kv_known else unknown,
                severity=INFO if memory.is_only_in_doubt else None,
            )


@rule("SD312", ERROR, needs="hardware")
def occupied_memory(ctx: Context) -> Violations:
    """Less memory is free on this machine now than the launch needs."""
    machine = ctx.machine
    assert machine is not None
    for _, memory in estimates(ctx):
        free, total = lacking_free_bytes(ctx, memory), memory.per_gpu_bytes.total
        if free is None:
            continue
        need, ways = needed_at_once(memory, machine), []
        weights = memory.per_gpu_bytes.target_weights + memory.per_gpu_bytes.draft_weights
        if max(need.low, weights) <= total:
            ways.append("stop the processes that hold the rest")  # else too small even when empty
        path, words = f"engine.{_SHARE}", f"vLLM asks for {gib(need.high)}"
        share = int(100 * (free - 2**29) / total) / 100
        if is_fixed(memory):
            several = machine.is_cpu and memory.ranks > 1
            who = f"{memory.ranks} ranks take" if several else "the launch takes"
            path, words = "engine.kv_cache_memory_bytes", f"{who} {gib(need.high)}"
        elif share > 0 and _fits_in(memory, share):
            ways.append(f"write `{_SHARE}: {share}`")
        severity = None if free < need.low else WARNING
        text = f"{gib(free)} of {gib(total)} are free, and {words}"
        help_ = ", or ".join(ways) or None
        yield Violation(path, text, notes=machine.holders, help=help_, severity=severity)
        return


def _fits_in(memory: MemoryEstimate, share: float) -> bool:
    """Whether one request may still fit if vLLM takes this share of the memory."""
    per_gpu = memory.per_gpu_bytes
    left = per_gpu.kv_cache.high - (per_gpu.budget - share * per_gpu.total)
    if left <= 0 or not memory.is_kv_known:
        return left > 0
    return memory.kv_cache_tokens.high * left / per_gpu.kv_cache.high >= memory.max_model_len
