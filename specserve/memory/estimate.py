"""Whether a launch fits: about, from sizes and one band; or by what vLLM's own planner answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from specserve.errors import FactError
from specserve.memory.inputs import MemoryInputs
from specserve.memory.kv import kv_cache
from specserve.memory.reserve import GIB, Bounds, context_bytes, reserve, unseen_bytes
from specserve.memory.weights import draft_bytes, per_gpu, target_weights
from specserve.models.config import quantization_of, text_config
from specserve.models.layers import is_rough

Basis = Literal["vllm", "headers", "published"]
MemoryVerdict = Literal["fit", "tight", "does_not_fit"]
VERDICTS: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
"""From best to worst."""
_SERVER = 1.0 * GIB
"""The CPU engine's other processes: API server and engine core, half a GiB each."""
_MARLIN = (8, 0)
"""The first compute capability that takes FP8 weights."""


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
    """What a draft takes of the KV cache: tokens, and requests at once; 0 where not known."""

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
    """Why it is tight, in a few words."""
    is_only_in_doubt: bool
    """Whether it is tight only because a model is not known."""
    certain: bool
    """Whether nothing that is left out can make room for a launch that does not fit."""
    basis: Basis
    per_gpu_bytes: PerGpu
    target_kv_bytes_per_token: int
    draft_kv_bytes_per_token: int
    max_model_len: int
    max_num_seqs: int
    kv_cache_tokens: Bounds
    max_concurrency: Bounds
    state_blocks: Bounds | None
    ranks: int
    """Worker processes on each node. On the CPU they share the memory; the figures are of one."""
    unknown_draft: str | None
    """The name of a second model that could not be read, and is not counted."""
    is_kv_known: bool
    notes: tuple[str, ...]
    draft_cost: DraftCost | None = None
    fixes: tuple[Fix, ...] = ()

    @property
    def is_short_of_states(self) -> bool:
        """Whether there may be fewer blocks for recurrent states than requests."""
        return self.state_blocks is not None and self.state_blocks.low < self.max_num_seqs


def estimate(inputs: MemoryInputs) -> MemoryEstimate:
    """By the sizes of the models. Raises FactError if that of a model is not known without vLLM."""
    found, cost = _by_sizes(inputs), None
    if inputs.method and inputs.unknown_draft is None and found.is_kv_known:
        plain = _by_sizes(replace(inputs, method=None, num_speculative_tokens=0, draft=None))
        now, before = found.max_concurrency.high, plain.max_concurrency.high
        tokens = int(found.kv_cache_tokens.high), int(plain.kv_cache_tokens.high)
        cost = DraftCost(*tokens, now, before)
    fixes = () if found.verdict == "fit" else tuple(_fixes(inputs, found))
    return replace(found, draft_cost=cost, fixes=fixes)


def by_vllm(
    inputs: MemoryInputs, built: Mapping[str, Any], alone: Mapping[str, Any] | None = None
) -> MemoryEstimate:
    """By what vLLM answered for this launch, and for the same without speculation (`alone`).

    `built` has bytes of the weights by stage, and its planner's plans for the lowest and the
    highest budget. What helps is estimated, where the estimate comes to the same verdict.
    Raises FactError, KeyError, TypeError and ValueError for an answer of another form.
    """
    layers, per_token = [layer for stage in built["stages"] for layer in stage["kv"]], [0, 0]
    needs_states = not inputs.enforce_eager and any(each["kind"] == "MambaSpec" for each in layers)
    for each in (each for each in layers if each["kind"] != "MambaSpec"):
        per_token[bool(each["draft"])] += int(each["page_bytes"]) // int(each["block_size"])
    sizes = [
        (int(stage["target"]["parameters"]), int(stage["draft"]["parameters"]))
        for stage in built["stages"]
    ]
    low, high = (_planned(plan, needs_states=needs_states) for plan in built["plans"])
    found = _conclude(inputs, max(sizes, key=sum), (low, high), per_token, basis="vllm")
    if inputs.method and alone:
        before = _planned(alone["plans"][-1])
        cost = DraftCost(high.tokens, before.tokens, high.concurrency, before.concurrency)
        found = replace(found, draft_cost=cost)
    with suppress(FactError):
        about = found if found.verdict == "fit" else estimate(inputs)
        found = replace(found, fixes=about.fixes if about.verdict == found.verdict else ())
    return found


def _planned(plan: Mapping[str, Any], *, needs_states: bool = False) -> _Room:
    left = float(plan["kv_bytes"])
    if "error" in plan:
        return _Room(left, starts=False)
    states = int(plan["blocks"]) if needs_states else None
    return _Room(left, True, int(plan["tokens"]), float(plan["concurrency"]), states)


def _by_sizes(inputs: MemoryInputs) -> MemoryEstimate:
    """The estimate without its fixes, and without what the draft costs."""
    kv, rooms, notes, per_token = None, list[_Room](), tuple[str, ...](), [0, 0]
    stages, config, band = inputs.pipeline_parallel_size, inputs.target.config, reserve(inputs)
    mine = per_gpu(target_weights(inputs), inputs, config, stages=stages)
    drafted = draft_bytes(inputs)
    models = [facts for facts in (inputs.target, inputs.draft) if facts]
    try:
        kv = kv_cache(inputs)
        per_token = [kv.per_token(), kv.per_token(draft=True)]
        if any(map(is_rough, models)):
            notes = ("rough: nobody compared this model type with vLLM's own figures",)
    except FactError as error:
        notes = (error.message,)
    for beside in (band.high, band.low):
        left = inputs.kv_cache_memory_bytes
        if left is None:
            left = int(inputs.total_bytes * inputs.gpu_memory_utilization - mine - drafted - beside)
        if kv is None or not kv.layers:
            rooms.append(_Room(left, left > 0, concurrency=inputs.max_num_seqs if kv else 0.0))
            continue
        each = kv.request_bytes(inputs.max_model_len)
        most, states = max(left, 0) / each, kv.state_blocks(left)
        states = None if inputs.enforce_eager else states
        starts = left >= (kv.request_bytes(16) if inputs.is_auto_length else each)
        rooms.append(_Room(left, starts, int(most * inputs.max_model_len), most, states))
    weights, is_published = (int(mine), int(drafted)), any(each.tensors is None for each in models)
    basis: Basis = "published" if is_published else "headers"
    is_known = kv is not None
    return _conclude(
        inputs, weights, rooms, per_token, basis=basis, is_kv_known=is_known, notes=notes
    )


def _conclude(
    inputs: MemoryInputs,
    weights: tuple[int, int],
    rooms: Iterable[_Room],
    per_token: list[int],
    *,
    basis: Basis,
    is_kv_known: bool = True,
    notes: tuple[str, ...] = (),
) -> MemoryEstimate:
    total, fixed = inputs.total_bytes, inputs.kv_cache_memory_bytes
    low, high = rooms
    is_overfull = fixed is not None and sum(weights) + fixed > total
    is_refused = high.states is not None and high.states < inputs.max_num_seqs
    verdict: MemoryVerdict = "does_not_fit"
    reason = doubt = ""
    if high.starts and not is_overfull and not is_refused:
        reason = _shortage(inputs, sum(weights), low, high)
        if not is_kv_known:
            doubt = "the KV cache of this architecture is not known"
        elif inputs.unknown_draft:
            doubt = f"the size of `{inputs.unknown_draft}` is not known"
        verdict = "tight" if reason or doubt else "fit"
    others = [*inputs.uncounted, *filter(None, [inputs.unknown_draft])]
    if others:
        notes += (f"not counted: {', '.join(f'`{name}`' for name in others)}",)
    if inputs.may_make_room and verdict == "does_not_fit":
        notes += ("a warning and no error, because what is not counted may make room",)
    budget = total if fixed is not None else int(total * inputs.gpu_memory_utilization)
    cache = Bounds(max(0.0, low.kv_bytes), max(0.0, high.kv_bytes))
    states = None
    if low.states is not None and high.states is not None:
        states = Bounds(low.states, high.states)
    return MemoryEstimate(
        verdict,
        reason or doubt,
        is_only_in_doubt=bool(doubt and not reason),
        certain=verdict == "does_not_fit" and not inputs.may_make_room,
        basis=basis,
        per_gpu_bytes=PerGpu(total, budget, *weights, reserve(inputs), cache),
        target_kv_bytes_per_token=per_token[0],
        draft_kv_bytes_per_token=per_token[1],
        max_model_len=inputs.max_model_len,
        max_num_seqs=inputs.max_num_seqs,
        kv_cache_tokens=Bounds(low.tokens, high.tokens),
        max_concurrency=Bounds(low.concurrency, high.concurrency),
        state_blocks=states,
        ranks=inputs.ranks,
        unknown_draft=inputs.unknown_draft,
        is_kv_known=is_kv_known,
        notes=notes,
    )


def _shortage(inputs: MemoryInputs, weights: int, low: _Room, high: _Room) -> str:
    """Why a launch that may start is not sure to, in a few words; empty if nothing is short."""
    total, fixed = inputs.total_bytes, inputs.kv_cache_memory_bytes
    if not low.starts:
        if not high.tokens:
            sizes = f"{max(0.0, low.kv_bytes) / GIB:.1f} to {high.kv_bytes / GIB:.1f} GiB"
            return f"about {sizes} are left for the KV cache"
        held = f"the KV cache holds about {low.tokens:,} to {high.tokens:,}"
        return f"one request may need {inputs.max_model_len:,} tokens, and {held}"
    if low.states is not None and low.states < inputs.max_num_seqs:
        held = f"the KV cache has about {low.states:,} to {high.states:,}"
        return f"{inputs.max_num_seqs:,} requests need a block each for their states, and {held}"
    used = weights + reserve(inputs).high + (fixed or 0)
    share = total * inputs.gpu_memory_utilization
    if inputs.machine.is_cpu:
        used = (share if fixed is None else inputs.ranks * used) + _SERVER
        who = f"its {inputs.ranks} ranks together" if inputs.ranks > 1 else "the server"
        return f"{who} may take about {used / GIB:.1f} GiB" if used > total else ""
    spare, unseen = total - (share if fixed is None else used), unseen_bytes(inputs)
    spare -= context_bytes(inputs)
    if spare >= unseen:
        return ""
    what = "drafts being verified" if inputs.num_speculative_tokens else "sampling or a prefill"
    left = f"{max(0.0, spare) / GIB:.1f} GiB are left unclaimed"
    return f"{left}, but {what} may take about {unseen / GIB:.1f} GiB"


def _fixes(inputs: MemoryInputs, found: MemoryEstimate) -> Iterator[Fix]:
    """A shorter context, fewer requests, more GPUs of this machine or FP8, each estimated anew."""
    heads, tp = (
        text_config(inputs.target.config).get("num_attention_heads"),
        2 * inputs.tensor_parallel_size,
    )
    can_divide = isinstance(heads, int) and heads % tp == 0 and not inputs.machine.is_cpu
    most = inputs.machine.count // inputs.pipeline_parallel_size
    is_plain = not (inputs.quantization or quantization_of(inputs.target.config))
    capability = inputs.machine.accelerator.compute_capability or (0, 0)
    blocks = [int(found.state_blocks.low)] if found.state_blocks else []
    held = (found.kv_cache_tokens.low, found.kv_cache_tokens.high)
    values: dict[str, list[Any]] = {
        "target.max_model_len": [int(tokens) // 256 * 256 for tokens in held],
        "engine.max_num_seqs": [*blocks, inputs.max_num_seqs // 4],
        "target.tensor_parallel_size": [tp] if can_divide and tp <= most else [],
        "target.quantization": ["fp8"] if is_plain and capability >= _MARLIN else [],
    }
    for path, tried in values.items():
        name = path.partition(".")[2]
        is_limit = name.startswith("max_")
        for value in (v for v in tried if not is_limit or 0 < v < getattr(inputs, name)):
            try:
                verdict = _by_sizes(replace(inputs, **{name: value})).verdict
            except FactError:
                continue
            if VERDICTS.index(verdict) < VERDICTS.index(found.verdict):
                yield Fix(path, value, verdict)
                break
