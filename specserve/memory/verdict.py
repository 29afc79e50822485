"""FIT, TIGHT or DOES NOT FIT, from what is left for the KV cache; and which knob to turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specserve.errors import FactError
from specserve.memory.bounds import FRAGMENTATION
from specserve.memory.estimate import VERDICTS, Bounds, Knob, MemoryVerdict, StateBlocks
from specserve.memory.reckoning import Reckoning, reckon, without_speculation
from specserve.memory.situation import MemorySituation, PromisedLoad

_BLACKWELL = (10, 0)


def judge_states(s: MemorySituation, r: Reckoning) -> MemoryVerdict:
    """FIT if every request that may run has a block at the lower bound, or if vLLM does not ask for one."""
    if not _is_asked(s, r) or _has_blocks(s, r, r.low):
        return "fit"
    return "tight" if _has_blocks(s, r, r.high) else "does_not_fit"


def lacks_blocks(s: MemorySituation, r: Reckoning, kv_bytes: Sequence[int]) -> bool:
    """Whether vLLM surely aborts with this much memory for the KV cache, in bytes by stage.

    With drafts, Blackwell's default attention backend may rule out the graphs that the check is for.
    """
    capability = s.machine.accelerator.compute_capability or (0, 0)
    is_doubtful = s.num_speculative_tokens > 0 and capability >= _BLACKWELL
    return _is_asked(s, r) and not is_doubtful and not _has_blocks(s, r, kv_bytes)


def state_blocks(s: MemorySituation, r: Reckoning) -> StateBlocks | None:
    """The blocks that there are for states; None if vLLM does not compare them with `max_num_seqs`."""
    if not _is_asked(s, r):
        return None
    blocks = Bounds(r.demand.blocks(r.low), r.demand.blocks(r.high))
    return StateBlocks(blocks, s.settings.max_num_seqs, largest_max_num_seqs(s, r))


def largest_max_num_seqs(s: MemorySituation, r: Reckoning) -> int:
    """The largest `max_num_seqs` up to the present one that surely boots; 0 if none does.

    Fewer requests also need less memory beside the KV cache, so this may be more than the blocks there are now.
    """
    low, high = min(r.demand.blocks(r.low), s.settings.max_num_seqs), s.settings.max_num_seqs
    while low < high:
        middle = (low + high + 1) // 2
        turned = replace(s, settings=replace(s.settings, max_num_seqs=middle))
        try:
            fits = _has_blocks(turned, found := reckon(turned), found.low)
        except FactError:  # vLLM itself was asked for the demand, which has no formula
            return low
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _is_asked(s: MemorySituation, r: Reckoning) -> bool:
    return s.has_full_graphs and any(group.fixed_blocks for group in r.demand.groups)


def _has_blocks(s: MemorySituation, r: Reckoning, kv_bytes: Sequence[int]) -> bool:
    return r.demand.blocks(kv_bytes) >= s.settings.max_num_seqs


_GIB = 2**30
_SAFE = 1.10
"""A promised concurrency fits where this much more would."""
_FREE_MARGIN = 0.5 * _GIB
_DOUBT = 0.02
"""Share of the memory by which the upper bound must fall short before nothing is left to doubt."""


def verdict_of(s: MemorySituation, r: Reckoning) -> MemoryVerdict:
    """FIT: starts and serves what is promised at the lower bound; DOES NOT FIT: does not start at the upper one."""
    return max(verdict_without_states(s, r), judge_states(s, r), key=VERDICTS.index)


def verdict_without_states(s: MemorySituation, r: Reckoning) -> MemoryVerdict:
    """The same without vLLM's comparison of recurrent states with the blocks of the KV cache."""
    if not _starts(s, r, r.high) or _overfull(s, r):
        return "does_not_fit"
    is_all_known = r.demand.is_kv_known and s.unknown_draft is None
    return "fit" if is_all_known and not _shortage(s, r) else "tight"


def is_only_in_doubt(s: MemorySituation, r: Reckoning, found: MemoryVerdict) -> bool:
    """Whether nothing is short of what is known, and the launch is tight because a model is not."""
    if not r.demand.is_kv_known:
        return found == "tight"
    return (
        found == "tight"
        and s.unknown_draft is not None
        and not _shortage(s, r)
        and judge_states(s, r) == "fit"
    )


def reason(s: MemorySituation, r: Reckoning) -> str:
    """Why a launch that may start is not sure to, in a few words: the first of what is short."""
    if not r.demand.is_kv_known:
        return "the KV cache of an unknown architecture is not computed"
    return _shortage(s, r) or (
        f"`{s.unknown_draft}` is not known, and not counted" if s.unknown_draft else ""
    )


def _shortage(s: MemorySituation, r: Reckoning) -> str:
    """The first thing that may be short at the lower bound, in a few words; empty if nothing is."""
    if not _starts(s, r, r.low):
        low, high = r.demand.tokens(r.low), r.demand.tokens(r.high)
        request = f"one request may take {r.demand.max_model_len:,}"
        return f"the KV cache holds {low:,} to {high:,} tokens, but {request}"
    for promise in s.promises:
        if not keeps(r, promise, r.low):
            many = f"{promise.concurrency} requests of {promise.tokens:,} tokens"
            return f"the KV cache may be too small for the promised {many}"
    if r.slack < r.excess and s.runner == "cpu":
        total = s.machine.accelerator.total_bytes
        who = f"its {s.ranks} ranks together" if s.ranks > 1 else "the server"
        return f"{who} may take {(total - r.slack + r.excess) / _GIB:.1f} GiB"
    if r.slack < r.excess:
        spare = max(0.0, r.slack) / _GIB
        what = "fragmentation" if r.excess <= FRAGMENTATION else "sampling or a long prefill"
        what = "drafts being verified" if s.num_speculative_tokens else what
        return f"{spare:.1f} GiB are left unclaimed, but {what} may take {r.excess / _GIB:.1f} GiB"
    if not _is_free(s, r):
        return (
            f"{(s.least_free_bytes or 0) / _GIB:.1f} GiB are free, but vLLM takes {r.budget / _GIB:.1f} GiB"
        )
    return ""


def certain(s: MemorySituation, r: Reckoning) -> bool:
    """Whether not even the upper bound, and a little more, serves one request; nothing is with unknown arguments."""
    is_divided = s.settings.tensor_parallel_size * s.settings.pipeline_parallel_size > 1
    if s.not_modelled or (is_divided and not r.demand.is_kv_known):  # how, only vLLM knows
        return False
    if s.unknown_draft and s.method == "draft_model":  # its context may lower max_model_len
        return False
    more = [high + int(_DOUBT * r.budget) for high in r.high]
    most = r.high if s.kv_cache_memory_bytes is not None else more
    return not _starts(s, r, most) or lacks_blocks(s, r, most) or _overfull(s, r)


def keeps(r: Reckoning, promise: PromisedLoad, kv_bytes: list[int]) -> bool:
    """Whether so many requests of these lengths run at one time, with a margin."""
    per_request = r.demand.blocks_per_request(promise.tokens + r.demand.lookahead_tokens)
    return (
        r.demand.blocks(kv_bytes) - 1 >= _SAFE * promise.concurrency * per_request
        if r.demand.groups
        else True
    )


def _starts(s: MemorySituation, r: Reckoning, kv_bytes: list[int]) -> bool:
    """Whether one request of max_model_len fits; with `auto`, one of any length."""
    if not r.demand.groups:
        return all(left >= 0 for left in kv_bytes)
    if s.is_auto_length:
        return r.demand.largest_max_model_len(kv_bytes, limit=s.settings.max_model_len) > 0
    return r.demand.is_enough(kv_bytes)


def _overfull(s: MemorySituation, r: Reckoning) -> bool:
    """Whether weights and a KV cache that is told outright are more than the memory."""
    told = s.kv_cache_memory_bytes
    weights = max(stage.weights_bytes for stage in r.demand.stages)
    return told is not None and weights * (1 - r.weights_margin) + told > s.machine.accelerator.total_bytes


def _is_free(s: MemorySituation, r: Reckoning) -> bool:
    """Whether every GPU that was found has the share free that vLLM asks for.

    A host's memory is judged by its capacity: what is free of it at the moment has a rule of its own.
    """
    free = s.least_free_bytes
    if free is None or s.kv_cache_memory_bytes is not None or s.runner == "cpu":
        return True
    return free >= r.budget + _FREE_MARGIN


_LITTLE = 0.005
"""Share of the memory below which a knob that changes no verdict is not worth a line."""
_FP8 = (8, 9)
_STEP = 2**28
_MOST = 5
_ALONE = 3
"""How many are shown where none is enough alone."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One knob at one position."""

    path: str
    value: int | float | str | bool
    situation: MemorySituation


def knobs(s: MemorySituation, r: Reckoning, *, verdict: MemoryVerdict, path: str) -> tuple[Knob, ...]:
    """What would help, best first: by the verdict it gives, then by how little it costs the server's users.

    Of each knob the first position that fits; else the one that frees the most.
    """
    found = []
    positions = (
        _seqs(s, r), _tokens(s), _length(s, r), _share(s), _pool(s, r), _greedy(s, path), _k(s, path), _fp8(s),
        _graphs(s), _parallel(s), _none(s, path),
    )  # fmt: skip
    for turns in positions:
        best = _best(turns, r, verdict)
        if best:
            found.append(best)
    better = [knob for knob in found if VERDICTS.index(knob.verdict) < VERDICTS.index(verdict)]
    chosen = better or sorted(found, key=lambda knob: -knob.frees_bytes)[:_ALONE]
    return tuple(sorted(chosen, key=lambda knob: VERDICTS.index(knob.verdict))[:_MOST])


def _best(positions: Iterator[_Turn], before: Reckoning, verdict: MemoryVerdict) -> Knob | None:
    best: Knob | None = None
    for turn in positions:
        try:
            after = reckon(turn.situation)
        except FactError:
            continue
        knob = Knob(turn.path, turn.value, _freed(before, after), verdict_of(turn.situation, after))
        if knob.verdict == "fit":
            return knob
        helps = VERDICTS.index(knob.verdict) < VERDICTS.index(verdict) or (
            knob.verdict == verdict and knob.frees_bytes > _LITTLE * before.budget
        )
        if helps and (best is None or _rank(knob) < _rank(best)):
            best = knob
    return best


def _rank(knob: Knob) -> tuple[int, int]:
    return VERDICTS.index(knob.verdict), -knob.frees_bytes


def _freed(before: Reckoning, after: Reckoning) -> int:
    """More for the KV cache on the poorest stage, and less that one request needs of it."""
    more = after.kv_cache[after.poorest].low - before.kv_cache[before.poorest].low
    need = [r.demand.bytes_for(1, r.demand.max_model_len) for r in (before, after)]
    return int(more + need[0] - need[1] + before.excess - after.excess)


def _smaller(value: int, steps: tuple[int, ...]) -> list[int]:
    return [step for step in steps if step < value]


def _with(s: MemorySituation, **settings: int | str) -> MemorySituation:
    return replace(s, settings=replace(s.settings, **settings))  # type: ignore[arg-type]


def _seqs(s: MemorySituation, r: Reckoning) -> Iterator[_Turn]:
    """As many requests as there surely are blocks for their states, if these are short; then fewer and fewer."""
    most = [largest_max_num_seqs(s, r)] if judge_states(s, r) != "fit" else []
    for value in [*most, *_smaller(s.settings.max_num_seqs, (512, 256, 128, 64, 32, 16))]:
        if value >= max((promise.concurrency for promise in s.promises), default=1):
            yield _Turn("engine.max_num_seqs", value, _with(s, max_num_seqs=value))


def _tokens(s: MemorySituation) -> Iterator[_Turn]:
    for value in _smaller(s.settings.max_num_batched_tokens, (8192, 4096, 2048)):
        if value >= s.settings.max_num_seqs * (1 + s.num_speculative_tokens):
            yield _Turn("engine.max_num_batched_tokens", value, _with(s, max_num_batched_tokens=value))


def _length(s: MemorySituation, r: Reckoning) -> Iterator[_Turn]:
    """The largest length that surely fits, rounded down; a promise must still have room in it."""
    limit = min(s.settings.max_model_len, s.longest or s.settings.max_model_len)  # vLLM refuses more
    largest = r.demand.largest_max_model_len(r.low, limit=limit)
    step = 1024 if largest >= 4096 else 256
    value = largest // step * step
    if 0 < value < s.settings.max_model_len and value >= max((p.tokens for p in s.promises), default=0):
        yield _Turn("target.max_model_len", value, _with(s, max_model_len=value))


def _share(s: MemorySituation) -> Iterator[_Turn]:
    """A larger share of the memory, as far as it is free and leaves room for the CUDA context."""
    if s.kv_cache_memory_bytes is not None or (s.runner == "cpu" and s.machine.memory_nodes > 1):
        return
    total = s.machine.accelerator.total_bytes
    free = total if s.least_free_bytes is None or s.runner == "cpu" else s.least_free_bytes
    most = int(min(0.97, (free - 0.5 * _GIB) / total) * 100) / 100
    for value in (0.94, 0.95, 0.96, 0.97):
        if s.gpu_memory_utilization < value <= most:
            yield _Turn("engine.gpu_memory_utilization", value, replace(s, gpu_memory_utilization=value))
    if 0.1 < most < s.gpu_memory_utilization:
        yield _Turn("engine.gpu_memory_utilization", most, replace(s, gpu_memory_utilization=most))


def _pool(s: MemorySituation, r: Reckoning) -> Iterator[_Turn]:
    """A smaller KV cache where it is told outright and there is too little memory for it; one that is enough."""
    told = s.kv_cache_memory_bytes
    if told is None or r.slack >= r.excess:
        return
    value = int((told + r.slack - r.excess) // _STEP * _STEP)
    if 0 < value < told:
        yield _Turn("engine.kv_cache_memory_bytes", value, replace(s, kv_cache_memory_bytes=value))


def _greedy(s: MemorySituation, path: str) -> Iterator[_Turn]:
    if s.is_probabilistic:
        yield _Turn(f"{path}.draft_sample_method", "greedy", replace(s, is_probabilistic=False))


def _k(s: MemorySituation, path: str) -> Iterator[_Turn]:
    for value in _smaller(s.num_speculative_tokens, (5, 3, 2, 1)):
        yield _Turn(f"{path}.num_speculative_tokens", value, replace(s, num_speculative_tokens=value))


def _fp8(s: MemorySituation) -> Iterator[_Turn]:
    capability = s.machine.accelerator.compute_capability
    if capability and capability >= _FP8 and s.settings.kv_cache_dtype in ("auto", "bfloat16", "float16"):
        yield _Turn("engine.kv_cache_dtype", "fp8", _with(s, kv_cache_dtype="fp8"))


def _graphs(s: MemorySituation) -> Iterator[_Turn]:
    if not s.enforce_eager and s.runner != "cpu":
        yield _Turn("engine.enforce_eager", True, replace(s, enforce_eager=True))


def _parallel(s: MemorySituation) -> Iterator[_Turn]:
    """More GPUs of this machine; what vLLM cannot divide is no position."""
    size = s.settings.tensor_parallel_size
    while s.runner != "cpu" and 2 * size * s.settings.pipeline_parallel_size <= s.machine.count:
        size *= 2
        if _divides(s, size):
            yield _Turn("target.tensor_parallel_size", size, _with(s, tensor_parallel_size=size))


def _divides(s: MemorySituation, size: int) -> bool:
    for facts in filter(None, (s.target, s.draft)):
        config = facts.config.get("text_config") or facts.config
        heads = config.get("num_attention_heads") if isinstance(config, dict) else None
        if type(heads) is not int or heads % size:
            return False
    return True


def _none(s: MemorySituation, path: str) -> Iterator[_Turn]:
    if s.method and path == "speculation":
        yield _Turn("speculation", "null", without_speculation(s))
