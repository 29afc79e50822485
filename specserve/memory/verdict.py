"""FIT, TIGHT or DOES NOT FIT, from what is left for the KV cache; and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.memory.breakdown import FRAGMENTATION, Breakdown, break_down, without_speculation
from specserve.memory.constants import GIB, Bounds
from specserve.memory.situation import MemorySituation, PromisedLoad
from specserve.models.config import quantization_of

MemoryVerdict = Literal["fit", "tight", "does_not_fit"]
VERDICTS: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
"""From best to worst."""
_BLACKWELL = (10, 0)
_SAFE = 1.10
"""A promised concurrency fits if this much more would."""
_FREE_MARGIN = 0.5 * GIB
_MAKES_ROOM = frozenset({
    "cpu_offload_gb", "offload_config", "num_gpu_blocks_override", "hf_overrides",
    "decode_context_parallel_size", "prefill_context_parallel_size", "enable_dbo", "kv_sharing_fast_prefill",
})  # fmt: skip
"""Arguments that are not modelled and may make a launch fit: the others only take more. `num_gpu_blocks_override` takes
the place of the memory that vLLM compares: v1/core/kv_cache_utils.py 0.32, `get_kv_cache_configs`."""


@dataclass(frozen=True, slots=True)
class StateBlocks:
    """Blocks of the KV cache, each of which can hold the recurrent state of a request."""

    blocks: Bounds
    max_num_seqs: int
    """Requests that may run: vLLM aborts if there are more of them than blocks."""
    largest_max_num_seqs: int
    """What surely boots."""


def judge_states(r: Breakdown) -> MemoryVerdict:
    """FIT if every request that may run has a block at the lower bound, or if vLLM does not ask for one."""
    if not _asks_for_blocks(r) or _has_blocks(r, r.low):
        return "fit"
    return "tight" if _has_blocks(r, r.high) else "does_not_fit"


def state_blocks(r: Breakdown) -> StateBlocks | None:
    """The blocks that there are for states; None if vLLM does not compare them with `max_num_seqs`."""
    if not _asks_for_blocks(r):
        return None
    blocks = Bounds(r.demand.blocks(r.low), r.demand.blocks(r.high))
    return StateBlocks(blocks, r.situation.settings.max_num_seqs, largest_max_num_seqs(r))


def largest_max_num_seqs(r: Breakdown) -> int:
    """The largest `max_num_seqs` up to the present one that surely boots; 0 if none does.

    Fewer requests also need less memory beside the KV cache, so this may be more than the blocks there are now.
    """
    high = r.situation.settings.max_num_seqs
    low = min(r.demand.blocks(r.low), high)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            found = break_down(_with(r.situation, max_num_seqs=middle))
        except FactError:  # vLLM itself was asked for the demand, which has no formula
            return low
        low, high = (middle, high) if _has_blocks(found, found.low) else (low, middle - 1)
    return low


def _asks_for_blocks(r: Breakdown) -> bool:
    return r.situation.has_full_graphs and any(group.fixed_blocks for group in r.demand.groups)


def _has_blocks(r: Breakdown, kv_bytes: Sequence[int]) -> bool:
    return r.demand.blocks(kv_bytes) >= r.situation.settings.max_num_seqs


def verdict_of(r: Breakdown) -> MemoryVerdict:
    """FIT: starts and serves what is promised at the lower bound; DOES NOT FIT: does not start at the upper one."""
    return max(verdict_without_states(r), judge_states(r), key=VERDICTS.index)


def verdict_without_states(r: Breakdown) -> MemoryVerdict:
    """The same without vLLM's comparison of recurrent states with the blocks of the KV cache."""
    if not _starts(r, r.high) or _is_overfull(r):
        return "does_not_fit"
    is_all_known = r.demand.is_kv_known and r.situation.speculative.unknown is None
    return "fit" if is_all_known and not _shortage(r) else "tight"


def is_only_in_doubt(r: Breakdown, found: MemoryVerdict) -> bool:
    """Whether nothing is short of what is known, and the launch is tight because a model is not."""
    if found != "tight" or not r.demand.is_kv_known:
        return found == "tight"
    is_unknown = r.situation.speculative.unknown is not None
    return is_unknown and not _shortage(r) and judge_states(r) == "fit"


def reason(r: Breakdown) -> str:
    """Why a launch that may start is not sure to, in a few words: the first of what is short."""
    if not r.demand.is_kv_known:
        return "the KV cache of an unknown architecture is not computed"
    unknown = r.situation.speculative.unknown
    return _shortage(r) or (
        f"the size of `{unknown}` is unknown, so the estimate leaves it out" if unknown else ""
    )


def _shortage(r: Breakdown) -> str:
    """The first thing that may be short at the lower bound, in a few words; empty if nothing is."""
    s = r.situation
    if not _starts(r, r.low):
        low, high = r.demand.tokens(r.low), r.demand.tokens(r.high)
        holds = f"the KV cache holds {low:,} to {high:,}"
        return f"one request may need {r.demand.max_model_len:,} tokens, and {holds}"
    for promise in s.promises:
        if not _keeps(r, promise):
            many = f"{promise.concurrency} requests of {promise.tokens:,} tokens"
            return f"the KV cache may be too small for the promised {many}"
    if r.slack < r.excess and s.runner == "cpu":
        total = s.machine.accelerator.total_bytes
        who = f"its {s.ranks} ranks together" if s.ranks > 1 else "the server"
        return f"{who} may take {(total - r.slack + r.excess) / GIB:.1f} GiB"
    if r.slack < r.excess:
        spare = max(0.0, r.slack) / GIB
        what = "fragmentation" if r.excess <= FRAGMENTATION else "sampling or a long prefill"
        what = "drafts being verified" if s.speculative.tokens else what
        return f"{spare:.1f} GiB are left unclaimed, but {what} may take {r.excess / GIB:.1f} GiB"
    if not _is_free(r):
        return f"{(s.least_free_bytes or 0) / GIB:.1f} GiB are free, but vLLM takes {r.budget / GIB:.1f} GiB"
    return ""


def doubt(r: Breakdown) -> str:
    """Why a launch that does not fit may start all the same; empty if nothing speaks for it.

    Engine arguments that are not modelled count if they can make room: the others only take more.
    """
    s, unknown = r.situation, r.situation.speculative.unknown
    if freeing := [f"`{name}`" for name in s.not_modelled if name in _MAKES_ROOM]:
        return f"the estimate leaves out {', '.join(freeing)}, which may make room"
    if s.settings.tensor_parallel_size * s.settings.pipeline_parallel_size > 1 and not r.demand.is_kv_known:
        return "only vLLM knows how it divides the weights of this architecture"
    if unknown and s.speculative.method == "draft_model" and _starts_at_any_length(r):
        return f"the context of `{unknown}` may lower `max_model_len`"
    is_short_of_states = verdict_without_states(r) != "does_not_fit"
    if is_short_of_states and s.speculative.tokens and s.capability >= _BLACKWELL:
        return "Blackwell's attention backend may rule out the graphs that need a block for each state"
    return ""


def _starts_at_any_length(r: Breakdown) -> bool:
    return not _is_overfull(r) and r.demand.largest_max_model_len(r.high, limit=r.demand.max_model_len) > 0


def _keeps(r: Breakdown, promise: PromisedLoad) -> bool:
    """Whether so many requests of these lengths surely run concurrently, with a margin."""
    if not r.demand.groups:
        return True
    per_request = r.demand.blocks_per_request(promise.tokens + r.demand.lookahead_tokens)
    return r.demand.blocks(r.low) - 1 >= _SAFE * promise.concurrency * per_request


def _starts(r: Breakdown, kv_bytes: list[int]) -> bool:
    """Whether one request of max_model_len fits; with `auto`, one of any length."""
    if not r.demand.groups:
        return all(left >= 0 for left in kv_bytes)
    if r.situation.is_auto_length:
        limit = r.situation.settings.max_model_len
        return r.demand.largest_max_model_len(kv_bytes, limit=limit) > 0
    return r.demand.is_enough(kv_bytes)


def _is_overfull(r: Breakdown) -> bool:
    """Whether weights and a KV cache that is set explicitly are more than the memory."""
    fixed, total = r.situation.kv_cache_memory_bytes, r.situation.machine.accelerator.total_bytes
    weights = max(stage.weights_bytes for stage in r.demand.stages)
    return fixed is not None and weights * (1 - r.weights_margin) + fixed > total


def _is_free(r: Breakdown) -> bool:
    """Whether every GPU that was found has the share free that vLLM asks for.

    A host's memory is judged by its capacity: what is free of it at the moment has a rule of its own.
    """
    free = r.situation.least_free_bytes
    if free is None or r.situation.kv_cache_memory_bytes is not None or r.situation.runner == "cpu":
        return True
    return free >= r.budget + _FREE_MARGIN


_LITTLE = 0.005
"""Share of the memory below which a remedy that changes no verdict is not worth a line."""
_MARLIN, _FP8 = (8, 0), (8, 9)
"""The first capabilities that take FP8 weights, and an FP8 KV cache."""
_STEP = 2**28
_ALONE = 3
"""How many are shown if none is enough alone."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn, by how much, and the verdict it would give."""

    path: str
    """Dotted path in the profile, such as `engine.max_num_seqs`."""
    value: int | float | str | bool
    frees_bytes: int
    verdict: MemoryVerdict

    @property
    def setting(self) -> str:
        """As it would stand in the profile, in backticks."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"`{self.path}: {value}`"


def knobs(r: Breakdown, *, verdict: MemoryVerdict, path: str) -> tuple[Knob, ...]:
    """What would help, in the order in which a person tries it, each proven by an estimate of its own.

    `path`: where the block that speculates stands in the profile. If nothing changes the verdict, what frees memory.
    """
    better: dict[str, Knob] = {}
    freeing: dict[str, Knob] = {}
    for place, value, turned in _remedies(r, path):
        if place in better:
            continue
        try:
            after = break_down(turned)
        except FactError:
            continue
        knob = Knob(place, value, _freed(r, after), verdict_of(after))
        if VERDICTS.index(knob.verdict) < VERDICTS.index(verdict):
            better[place] = knob
        elif knob.verdict == verdict and knob.frees_bytes > _LITTLE * r.budget:
            freeing[place] = knob
    return tuple(better.values()) or tuple(freeing.values())[:_ALONE]


def _freed(before: Breakdown, after: Breakdown) -> int:
    """More for the KV cache on the poorest stage, and less that one request needs of it."""
    more = after.kv_cache[after.poorest].low - before.kv_cache[before.poorest].low
    need = [r.demand.bytes_for(1, r.demand.max_model_len) for r in (before, after)]
    return int(more + need[0] - need[1] + before.excess - after.excess)


def _with(s: MemorySituation, **settings: Any) -> MemorySituation:
    return replace(s, settings=replace(s.settings, **settings))


def _remedies(r: Breakdown, path: str) -> Iterator[tuple[str, int | float | str, MemorySituation]]:
    """A shorter context, fewer requests, another precision or more GPUs, the draft last: path, value and the launch.

    Of several values of one path, the first that changes the verdict counts.
    """
    s, settings, config = r.situation, r.situation.settings, r.situation.target.config
    for length in _lengths(r):
        yield "target.max_model_len", length, _with(s, max_model_len=length)
    promised = max((promise.concurrency for promise in s.promises), default=1)
    for seqs in ([largest_max_num_seqs(r)] if judge_states(r) != "fit" else []) + [64, 16]:
        if promised <= seqs < settings.max_num_seqs:
            yield "engine.max_num_seqs", seqs, _with(s, max_num_seqs=seqs)
    fixed, share = s.kv_cache_memory_bytes, _free_share(s)
    if fixed is not None and r.slack < r.excess:
        pool = int((fixed + r.slack - r.excess) // _STEP * _STEP)
        if 0 < pool < fixed:
            yield "engine.kv_cache_memory_bytes", pool, replace(s, kv_cache_memory_bytes=pool)
    if fixed is None and 0.1 < share < s.gpu_memory_utilization:
        yield "engine.gpu_memory_utilization", share, replace(s, gpu_memory_utilization=share)
    if s.capability >= _FP8 and settings.kv_cache_dtype in ("auto", "bfloat16", "float16"):
        yield "engine.kv_cache_dtype", "fp8", _with(s, kv_cache_dtype="fp8")
    if s.capability >= _MARLIN and not settings.quantization and not quantization_of(config):
        yield "target.quantization", "fp8", _with(s, quantization="fp8")
    for size in _parallel_sizes(s):
        yield "target.tensor_parallel_size", size, _with(s, tensor_parallel_size=size)
    if s.speculative.method is not None and path == "speculation":
        yield "speculation", "null", without_speculation(s)


def _lengths(r: Breakdown) -> list[int]:
    """The largest length that surely fits, and a power of two that may fit: first the latter if it is much longer.

    A promise must still have room in it.
    """
    s, now = r.situation, r.situation.settings.max_model_len
    limit = min(now, s.longest or now)  # vLLM refuses more
    low, high = (r.demand.largest_max_model_len(kv, limit=limit) for kv in (r.low, r.high))
    step = 1024 if low >= 4096 else 256
    sure, may = low // step * step, 1 << high.bit_length() - 1 if high else 0
    promised = max((promise.tokens for promise in s.promises), default=0)
    order = (sure, may) if 4 * sure >= may else (may, sure)
    return [value for value in order if 0 < value < now and value >= promised]


def _free_share(s: MemorySituation) -> float:
    """The share of the memory that is free and leaves room for the CUDA context, rounded down."""
    total = s.machine.accelerator.total_bytes
    free = total if s.least_free_bytes is None or s.runner == "cpu" else s.least_free_bytes
    return int(min(0.97, (free - 0.5 * GIB) / total) * 100) / 100


def _parallel_sizes(s: MemorySituation) -> list[int]:
    """More GPUs of this machine; what vLLM cannot divide is left out."""
    found, size = [], 2 * s.settings.tensor_parallel_size
    heads = []
    for facts in filter(None, (s.target, s.speculative.draft)):
        config = facts.config.get("text_config") or facts.config
        heads.append(config.get("num_attention_heads") if isinstance(config, dict) else None)
    while s.runner != "cpu" and size * s.settings.pipeline_parallel_size <= s.machine.count:
        if all(type(count) is int and count % size == 0 for count in heads):
            found.append(size)
        size *= 2
    return found
