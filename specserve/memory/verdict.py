"""FIT, TIGHT or DOES NOT FIT, from what is left for the KV cache; and which knob to turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.memory.breakdown import FRAGMENTATION, Breakdown, break_down, without_speculation
from specserve.memory.constants import GIB, Bounds
from specserve.memory.situation import MemorySituation, PromisedLoad

MemoryVerdict = Literal["fit", "tight", "does_not_fit"]
VERDICTS: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
"""From best to worst."""
_BLACKWELL = (10, 0)
_SAFE = 1.10
"""A promised concurrency fits if this much more would."""
_FREE_MARGIN = 0.5 * GIB
_DOUBT = 0.02
"""Share of the memory by which the upper bound must fall short before nothing is left to doubt."""


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


def is_certain(r: Breakdown) -> bool:
    """Whether not even the upper bound, and a little more, serves one request; nothing is with unknown arguments."""
    s = r.situation
    is_divided = s.settings.tensor_parallel_size * s.settings.pipeline_parallel_size > 1
    if s.not_modelled or (is_divided and not r.demand.is_kv_known):  # how, only vLLM knows
        return False
    if s.speculative.unknown and s.speculative.method == "draft_model":  # its context may lower max_model_len
        return False
    more = [high + int(_DOUBT * r.budget) for high in r.high]
    most = r.high if s.kv_cache_memory_bytes is not None else more
    # With drafts, Blackwell's default attention backend may rule out the graphs that need a block for each state.
    is_doubtful = s.speculative.tokens > 0 and s.capability >= _BLACKWELL
    lacks_blocks = _asks_for_blocks(r) and not is_doubtful and not _has_blocks(r, most)
    return not _starts(r, most) or lacks_blocks or _is_overfull(r)


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
"""Share of the memory below which a knob that changes no verdict is not worth a line."""
_FP8 = (8, 9)
_STEP = 2**28
_MOST = 5
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


Positions = tuple[str, Sequence[Any], Callable[[Any], MemorySituation]]
"""A knob's path, its values from the least change on, and the situation that each gives."""


def knobs(r: Breakdown, *, verdict: MemoryVerdict, path: str) -> tuple[Knob, ...]:
    """What would help, best first: by the verdict it gives, then by how little it costs the server's users.

    Of each knob the first position that fits; else the one that frees the most.
    """
    found = [best for positions in _positions(r, path) if (best := _best(positions, r, verdict))]
    better = [knob for knob in found if VERDICTS.index(knob.verdict) < VERDICTS.index(verdict)]
    chosen = better or sorted(found, key=lambda knob: -knob.frees_bytes)[:_ALONE]
    return tuple(sorted(chosen, key=lambda knob: VERDICTS.index(knob.verdict))[:_MOST])


def _best(positions: Positions, before: Breakdown, verdict: MemoryVerdict) -> Knob | None:
    path, values, turned = positions
    helpful = []
    for value in values:
        try:
            after = break_down(turned(value))
        except FactError:
            continue
        knob = Knob(path, value, _freed(before, after), verdict_of(after))
        if knob.verdict == "fit":
            return knob
        gain = VERDICTS.index(verdict) - VERDICTS.index(knob.verdict)
        if gain > 0 or (gain == 0 and knob.frees_bytes > _LITTLE * before.budget):
            helpful.append(knob)
    return min(helpful, key=lambda knob: (VERDICTS.index(knob.verdict), -knob.frees_bytes), default=None)


def _freed(before: Breakdown, after: Breakdown) -> int:
    """More for the KV cache on the poorest stage, and less that one request needs of it."""
    more = after.kv_cache[after.poorest].low - before.kv_cache[before.poorest].low
    need = [r.demand.bytes_for(1, r.demand.max_model_len) for r in (before, after)]
    return int(more + need[0] - need[1] + before.excess - after.excess)


def _with(s: MemorySituation, **settings: Any) -> MemorySituation:
    return replace(s, settings=replace(s.settings, **settings))


def _smaller(value: int, *steps: int) -> list[int]:
    return [step for step in steps if step < value]


def _positions(r: Breakdown, path: str) -> tuple[Positions, ...]:
    """Every knob. `path`: where the block that speculates stands in the profile."""
    s, settings, speculative = r.situation, r.situation.settings, r.situation.speculative
    promised = max((promise.concurrency for promise in s.promises), default=1)
    drafted = settings.max_num_seqs * speculative.decode_tokens
    states = [largest_max_num_seqs(r)] if judge_states(r) != "fit" else []
    seqs = [*states, *_smaller(settings.max_num_seqs, 512, 256, 128, 64, 32, 16)]
    tokens = _smaller(settings.max_num_batched_tokens, 8192, 4096, 2048)
    takes_fp8 = s.capability >= _FP8 and settings.kv_cache_dtype in ("auto", "bfloat16", "float16")
    has_graphs = not s.enforce_eager and s.runner != "cpu"
    has_block = speculative.method is not None and path == "speculation"

    def setting(name: str) -> Callable[[Any], MemorySituation]:
        return lambda value: _with(s, **{name: value})

    def own(name: str) -> Callable[[Any], MemorySituation]:
        return lambda value: replace(s, **{name: value})

    def drafts(**changes: Any) -> MemorySituation:
        return replace(s, speculative=replace(speculative, **changes))

    return (
        ("engine.max_num_seqs", [n for n in seqs if n >= promised], setting("max_num_seqs")),
        (
            "engine.max_num_batched_tokens",
            [n for n in tokens if n >= drafted],
            setting("max_num_batched_tokens"),
        ),
        ("target.max_model_len", _lengths(r), setting("max_model_len")),
        ("engine.gpu_memory_utilization", _shares(s), own("gpu_memory_utilization")),
        ("engine.kv_cache_memory_bytes", _pools(r), own("kv_cache_memory_bytes")),
        (
            f"{path}.draft_sample_method",
            ["greedy"] * speculative.is_probabilistic,
            lambda _: drafts(is_probabilistic=False),
        ),
        (
            f"{path}.num_speculative_tokens",
            _smaller(speculative.tokens, 5, 3, 2, 1),
            lambda k: drafts(tokens=k),
        ),
        ("engine.kv_cache_dtype", ["fp8"] * takes_fp8, setting("kv_cache_dtype")),
        ("engine.enforce_eager", [True] * has_graphs, own("enforce_eager")),
        ("target.tensor_parallel_size", _parallel_sizes(s), setting("tensor_parallel_size")),
        ("speculation", ["null"] * has_block, lambda _: without_speculation(s)),
    )


def _lengths(r: Breakdown) -> list[int]:
    """The largest length that surely fits, rounded down; a promise must still have room in it."""
    s, now = r.situation, r.situation.settings.max_model_len
    limit = min(now, s.longest or now)  # vLLM refuses more
    largest = r.demand.largest_max_model_len(r.low, limit=limit)
    step = 1024 if largest >= 4096 else 256
    value, promised = largest // step * step, max((promise.tokens for promise in s.promises), default=0)
    return [value] if 0 < value < now and value >= promised else []


def _shares(s: MemorySituation) -> list[float]:
    """A larger share of the memory, as far as it is free and leaves room for the CUDA context."""
    if s.kv_cache_memory_bytes is not None or (s.runner == "cpu" and s.machine.memory_nodes > 1):
        return []
    total, now = s.machine.accelerator.total_bytes, s.gpu_memory_utilization
    free = total if s.least_free_bytes is None or s.runner == "cpu" else s.least_free_bytes
    most = int(min(0.97, (free - 0.5 * GIB) / total) * 100) / 100
    return [value for value in (0.94, 0.95, 0.96, 0.97) if now < value <= most] + [most] * (0.1 < most < now)


def _pools(r: Breakdown) -> list[int]:
    """A smaller KV cache if it is set explicitly and there is too little memory for it; one that is enough."""
    fixed = r.situation.kv_cache_memory_bytes
    if fixed is None or r.slack >= r.excess:
        return []
    value = int((fixed + r.slack - r.excess) // _STEP * _STEP)
    return [value] if 0 < value < fixed else []


def _parallel_sizes(s: MemorySituation) -> list[int]:
    """More GPUs of this machine; what vLLM cannot divide is no position."""
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
