"""Whether a launch fits: about, from sizes and one band; or by what vLLM's own planner answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from specserve.errors import FactError, gib
from specserve.memory.gpu import draft_bytes, kv_cache, per_gpu, target_weights
from specserve.memory.inputs import MemoryInputs
from specserve.memory.reserve import GIB, Bounds, context_bytes, reserve, unseen_bytes
from specserve.memory.starts import Start
from specserve.models.config import text_config
from specserve.models.sizes import is_rough

Basis = Literal["measured", "vllm", "headers", "published"]
MemoryVerdict = Literal["fit", "tight", "unknown", "does_not_fit"]
"""unknown: only because the size of a draft, or the KV cache of an architecture, is not known."""
_SERVER = 1.0 * GIB
"""The CPU engine's other processes: API server and engine core, half a GiB each."""


@dataclass(frozen=True, slots=True)
class PerGpu:
    """Bytes on the fullest GPU."""

    total: int
    budget: int
    """What vLLM may take: its share of the memory; all of it if the KV cache has a fixed size."""
    target_weights: int
    draft_weights: int
    reserve: Bounds
    """Activations, libraries, communication, CUDA graphs."""
    kv_cache: Bounds


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What a draft takes of the KV cache: tokens and concurrency; 0 where not known."""

    tokens: int
    tokens_without: int
    requests: float = 0.0
    requests_without: float = 0.0

    @property
    def share(self) -> float:
        """Of the tokens."""
        return max(0.0, 1 - self.tokens / self.tokens_without) if self.tokens_without else 0.0

    @property
    def is_little(self) -> bool:
        """Whether it rounds to nothing."""
        return self.share < 0.005

    def __str__(self) -> str:
        words = f"{self.tokens:,} tokens instead of {self.tokens_without:,}"
        if self.requests_without:
            both = (self.requests, self.requests_without)
            now, before = (f"{int(n):,}" if n >= 10 else f"{n:.1f}" for n in both)
            words += f", concurrency {now} instead of {before}"
        return f"{100 * self.share:.0f} % of the KV cache: {words}"


class _Room(NamedTuple):
    """What one end of the band leaves for the KV cache."""

    kv_bytes: float
    starts: bool
    tokens: int = 0
    concurrency: float = 0.0
    """Requests of `max_model_len`."""
    states: int | None = None
    """Blocks that can hold a state; None where vLLM does not want one for each request."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one variant needs and has."""

    verdict: MemoryVerdict
    reason: str
    """Why it is no fit, in a few words."""
    basis: Basis
    per_gpu_bytes: PerGpu
    needed_bytes: int
    """What must be free when it starts; on the CPU, for all ranks."""
    max_model_len: int
    kv_cache_tokens: Bounds
    """0 where the KV cache is not known."""
    max_concurrency: Bounds
    state_blocks: int | None
    """At least so many requests have a block for their states; None: nobody needs one."""
    notes: tuple[str, ...]
    draft_cost: DraftCost | None = None
    fixes: Mapping[str, int] = field(default_factory=dict)
    """Settings of the profile with which it fits, or may fit, by dotted path: each alone."""
    measured_on: str = ""
    """The day of the start that it is measured by."""

    @property
    def predicted(self) -> dict[str, Any]:
        """The figures that vLLM will log, as `starts.LOGGED` names them; none that is not known."""
        room, tokens = self.per_gpu_bytes.kv_cache, self.kv_cache_tokens
        weights = (self.per_gpu_bytes.target_weights + self.per_gpu_bytes.draft_weights) / GIB
        said: dict[str, Any] = {"verdict": self.verdict, "weights_gib": [weights, weights]}
        if self.verdict != "unknown" and tokens.high:
            said["kv_tokens"] = [tokens.low, tokens.high]
            if room.low != room.high:  # else its size was asked for
                said["kv_gib"] = [room.low / GIB, room.high / GIB]
        return said


def estimate(inputs: MemoryInputs) -> MemoryEstimate:
    """By the sizes of the models. Raises FactError if that of a model is not known without vLLM."""
    found, cost = _by_sizes(inputs), None
    if inputs.method and inputs.unknown_draft is None and found.kv_cache_tokens.high:
        plain = _by_sizes(replace(inputs, method=None, num_speculative_tokens=0, draft=None))
        now, before = found.max_concurrency.high, plain.max_concurrency.high
        tokens = int(found.kv_cache_tokens.high), int(plain.kv_cache_tokens.high)
        cost = DraftCost(*tokens, now, before)
    fixes = _fixes(inputs, found) if found.verdict in ("tight", "does_not_fit") else {}
    return replace(found, draft_cost=cost, fixes=fixes)


def by_vllm(
    inputs: MemoryInputs, built: Mapping[str, Any], alone: Mapping[str, Any] | None = None
) -> MemoryEstimate:
    """By what vLLM answered for this launch, and for the same without speculation (`alone`).

    `built` has bytes of the weights, and its planner's plans for the lowest and the highest
    budget. What helps is estimated, where the estimate comes to the same verdict.
    Raises FactError, KeyError, TypeError and ValueError for an answer of another form.
    """
    needs_states = not inputs.enforce_eager and "MambaSpec" in built["kv"]
    sizes = int(built["target"]), int(built["draft"])
    low, high = (_planned(plan, needs_states=needs_states) for plan in built["plans"])
    found = _conclude(inputs, sizes, (low, high), basis="vllm")
    if inputs.method and alone:
        before = _planned(alone["plans"][-1])
        cost = DraftCost(high.tokens, before.tokens, high.concurrency, before.concurrency)
        found = replace(found, draft_cost=cost)
    with suppress(FactError):
        if found.verdict != "fit" and (about := estimate(inputs)).verdict == found.verdict:
            found = replace(found, fixes=about.fixes)
    return found


def as_started(inputs: MemoryInputs, found: MemoryEstimate, start: Start) -> MemoryEstimate:
    """The same, but with the KV cache that vLLM logged at a start of exactly this launch."""
    logged, sizes = start.logged, found.per_gpu_bytes
    room = _Room(logged["kv_gib"] * GIB, True, int(logged["kv_tokens"]), logged["concurrency"])
    weights = (sizes.target_weights, sizes.draft_weights)
    judged = _conclude(inputs, weights, (room, room), basis="measured", notes=found.notes)
    if judged.verdict == "does_not_fit":  # it did
        judged = replace(judged, verdict="fit", reason="")
    if cost := found.draft_cost:  # its share of the KV cache stays
        times = room.tokens / max(cost.tokens, 1)
        without = int(times * cost.tokens_without), times * cost.requests_without
        cost = DraftCost(room.tokens, without[0], room.concurrency, without[1])
    return replace(judged, measured_on=start.at[:10], draft_cost=cost)


def _planned(plan: Mapping[str, Any], *, needs_states: bool = False) -> _Room:
    left = float(plan["kv_bytes"])
    if "error" in plan:
        return _Room(left, starts=False)
    states = int(plan["blocks"]) if needs_states else None
    return _Room(left, True, int(plan["tokens"]), float(plan["concurrency"]), states)


def _by_sizes(inputs: MemoryInputs) -> MemoryEstimate:
    """The estimate without its fixes, and without what the draft costs."""
    kv, rooms, notes, doubt = None, list[_Room](), tuple[str, ...](), ""
    stages, config, band = inputs.pipeline_parallel_size, inputs.target.config, reserve(inputs)
    budget = inputs.machine.accelerator.total_bytes * inputs.gpu_memory_utilization
    mine = int(per_gpu(target_weights(inputs), inputs, config, stages=stages))
    drafted = int(draft_bytes(inputs))
    models = [facts for facts in (inputs.target, inputs.draft) if facts]
    if inputs.unknown_draft:
        doubt = f"the size of `{inputs.unknown_draft}` is not known"
    try:
        kv = kv_cache(inputs)
        if any(map(is_rough, models)):
            notes = ("rough: nobody compared this model type with vLLM's own figures",)
    except FactError as error:
        notes, doubt = (error.message,), "the KV cache of this architecture is not known"
    for beside in (band.high, band.low):
        left = inputs.kv_cache_memory_bytes or int(budget - mine - drafted - beside)
        if kv is None or not kv.layers:
            rooms.append(_Room(left, left > 0, concurrency=inputs.max_num_seqs if kv else 0.0))
            continue
        each = kv.request_bytes(inputs.max_model_len)
        most, states = max(left, 0) / each, kv.state_blocks(left)
        states = None if inputs.enforce_eager else states
        starts = left >= (kv.request_bytes(16) if inputs.is_auto_length else each)
        rooms.append(_Room(left, starts, int(most * inputs.max_model_len), most, states))
    basis: Basis = "published" if any(each.tensors is None for each in models) else "headers"
    return _conclude(inputs, (mine, drafted), rooms, basis=basis, doubt=doubt, notes=notes)


def _conclude(
    inputs: MemoryInputs,
    weights: tuple[int, int],
    rooms: Iterable[_Room],
    *,
    basis: Basis,
    doubt: str = "",
    notes: tuple[str, ...] = (),
) -> MemoryEstimate:
    total, fixed = inputs.machine.accelerator.total_bytes, inputs.kv_cache_memory_bytes
    low, high = rooms
    verdict, reason = _verdict(inputs, sum(weights), low, high)
    if verdict == "fit" and doubt:
        verdict, reason = "unknown", doubt
    if verdict == "does_not_fit" and inputs.uncounted:
        names = ", ".join(f"`{name}`" for name in inputs.uncounted)
        verdict, reason = "tight", f"{reason}; {names} may make room, and is not counted"
    budget = total if fixed is not None else int(total * inputs.gpu_memory_utilization)
    copies = inputs.ranks if inputs.machine.is_cpu else 1
    return MemoryEstimate(
        verdict,
        reason,
        basis,
        PerGpu(
            *(total, budget, *weights, reserve(inputs)),
            Bounds(max(0.0, low.kv_bytes), max(0.0, high.kv_bytes)),
        ),
        needed_bytes=budget if fixed is None else copies * sum(weights) + fixed,
        max_model_len=inputs.max_model_len,
        kv_cache_tokens=Bounds(low.tokens, high.tokens),
        max_concurrency=Bounds(low.concurrency, high.concurrency),
        state_blocks=low.states,
        notes=notes,
    )


def _verdict(
    inputs: MemoryInputs, weights: int, low: _Room, high: _Room
) -> tuple[MemoryVerdict, str]:
    """What both ends of the band say, and why it is no fit."""
    total, fixed = inputs.machine.accelerator.total_bytes, inputs.kv_cache_memory_bytes
    share = total * inputs.gpu_memory_utilization
    if fixed is not None and weights + fixed > total:
        return "does_not_fit", f"weights of {gib(weights)} and a KV cache of {gib(fixed)} exceed it"
    if fixed is None and weights >= share:
        return "does_not_fit", f"the weights take {gib(weights)}, and vLLM may use {gib(share)}"
    if low.states is not None and high.states is not None and low.states < inputs.max_num_seqs:
        many = f"{inputs.max_num_seqs:,} requests need a block each for their states"
        held = f"the KV cache has about {_between(low.states, high.states)}"
        is_refused = high.states < inputs.max_num_seqs
        return "does_not_fit" if is_refused else "tight", f"{many}, and {held}"
    if not low.starts:
        needed = f"one request may need {inputs.max_model_len:,} tokens"
        held = f"the KV cache holds about {_between(low.tokens, high.tokens)}"
        return "tight" if high.starts else "does_not_fit", f"{needed}, and {held}"
    used = weights + reserve(inputs).high + (fixed or 0)
    if inputs.machine.is_cpu:
        used = (share if fixed is None else inputs.ranks * used) + _SERVER
        text = f"the server may take about {gib(used)}"
        return ("tight", text) if used > total else ("fit", "")
    spare = total - (share if fixed is None else used) - context_bytes(inputs)
    unseen = unseen_bytes(inputs)
    if spare >= unseen:
        return "fit", ""
    what = "drafts being verified" if inputs.num_speculative_tokens else "sampling or a prefill"
    left = f"{gib(max(0.0, spare))} are left unclaimed"
    return "tight", f"{left}, but {what} may take about {gib(unseen)}"


def _between(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _fixes(inputs: MemoryInputs, found: MemoryEstimate) -> dict[str, int]:
    """A shorter context, fewer requests or more GPUs of this machine, each estimated anew."""
    heads = text_config(inputs.target.config).get("num_attention_heads")
    tp, seqs = 2 * inputs.tensor_parallel_size, found.state_blocks or inputs.max_num_seqs // 4
    divides = isinstance(heads, int) and heads % tp == 0
    is_there = tp * inputs.pipeline_parallel_size <= inputs.machine.count
    length = int(found.kv_cache_tokens.low or found.kv_cache_tokens.high) // 256 * 256
    tried = {
        "target.max_model_len": length * (length < inputs.max_model_len),
        "engine.max_num_seqs": seqs * (seqs < inputs.max_num_seqs),
        "target.tensor_parallel_size": tp * (divides and is_there),
    }
    fixes = {}
    for path, value in tried.items():
        with suppress(FactError):
            changed: dict[str, Any] = {path.partition(".")[2]: value}
            verdict = _by_sizes(replace(inputs, **changed)).verdict if value > 0 else "unknown"
            if verdict in ("fit", "tight") and verdict != found.verdict:
                fixes[path] = value
    return fixes
