"""Figures of a memory estimate in words: GiB, the parts of a GPU, what to turn. Judges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import Interval, Knob, MemoryEstimate, MemoryVerdict

_GIB = 2**30
_VERDICTS: dict[MemoryVerdict, str] = {"fit": "FIT", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}


def gib(size: float) -> str:
    """Bytes for a reader: `15.3 GiB`, or `8.4 MiB` where it is little."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 or not size else f"{size / 2**20:.1f} MiB"


def span(interval: Interval) -> str:
    """Bounds for a reader: `0.6-2.9 GiB`."""
    low, high = f"{interval.low / _GIB:.1f}", f"{interval.high / _GIB:.1f}"
    return f"{low} GiB" if low == high else f"{low}-{high} GiB"


def machine_words(machine: Machine) -> str:
    """`2 nodes with 8 x H100-80GB each`, `1 x L4-24GB`, or `this machine's memory`."""
    if machine.is_cpu:
        return f"{gib(machine.accelerator.total_bytes)} of memory"
    each = f"{machine.count} x {machine.accelerator.name}"
    return f"{machine.nodes} nodes with {each} each" if machine.nodes > 1 else each


def is_fixed(memory: MemoryEstimate) -> bool:
    """Whether the KV cache has the size that the profile gives, so that vLLM takes no share of what there is."""
    per_gpu = memory.per_gpu_bytes
    return per_gpu.budget == per_gpu.total and per_gpu.kv_cache.low == per_gpu.kv_cache.high > 0


def parts(memory: MemoryEstimate, machine: Machine) -> str:
    """The parts of the fullest GPU, or of the host's memory where the CPU serves."""
    per_gpu = memory.per_gpu_bytes
    weights = gib(per_gpu.target_weights)
    if per_gpu.draft_weights:
        weights += f" + {gib(per_gpu.draft_weights)} of the draft"
    if memory.unknown_draft:
        weights += " without the draft"
    where, total = "per GPU", gib(per_gpu.total)
    if machine.is_cpu:
        where = f"each of {memory.ranks} ranks on this host" if memory.ranks > 1 else "on this host"
    if is_fixed(memory):
        head = f"{where} of {total}, estimated: "
    else:
        head = f"{where}, estimated: {gib(per_gpu.budget)} of {total}; "
    return (
        f"{head}weights {weights}, activations {_supported(per_gpu.activation)}, "
        f"other {_supported(per_gpu.other)}, KV cache {_supported(per_gpu.kv_cache)}"
    )


def _supported(interval: Interval) -> str:
    """A span, and how many logs it comes from."""
    return span(interval) + (f" ({interval.support})" if interval.support else "")


def capacity(memory: MemoryEstimate) -> str:
    """What the KV cache holds."""
    tokens = _range(memory.kv_cache_tokens)
    return f"the KV cache holds {tokens} tokens; one request may take {memory.max_model_len:,}"


def _range(interval: Interval) -> str:
    low, high = f"{interval.low:,.0f}", f"{interval.high:,.0f}"
    return low if low == high else f"{low}-{high}"


def advice(memory: MemoryEstimate) -> str | None:
    """The knobs that change the verdict, or the best of those that do not."""
    if not memory.knobs:
        return None
    better = [knob for knob in memory.knobs if knob.verdict != memory.verdict]
    turns = [f"{_turn(knob)} would {'give' if knob in better else 'free'} {_gain(knob, better)}" for knob in
             (better or memory.knobs)[:3]]  # fmt: skip
    return "; ".join(turns) + ("" if better else ", and none of them is enough alone")


def _turn(knob: Knob) -> str:
    value = str(knob.value).lower() if isinstance(knob.value, bool) else knob.value
    return f"`{knob.path}: {value}`"


def _gain(knob: Knob, better: list[Knob]) -> str:
    return _VERDICTS[knob.verdict] if knob in better else gib(knob.frees_bytes)
