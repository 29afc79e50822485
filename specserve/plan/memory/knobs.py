"""Which knob to turn, by how much, and the verdict that it would give. Turns none itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specserve.errors import FactError
from specserve.plan.memory.estimate import Knob, MemoryVerdict
from specserve.plan.memory.reckoning import Reckoning, reckon, without_speculation
from specserve.plan.memory.situation import Situation
from specserve.plan.memory.verdict import verdict as verdict_of

_GIB = 2**30
_ORDER: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
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
    situation: Situation


def knobs(s: Situation, r: Reckoning, *, verdict: MemoryVerdict, path: str) -> tuple[Knob, ...]:
    """What would help, best first: by the verdict it gives, then by how little it costs the server's users.

    Of each knob the first position that fits; else the one that frees the most.
    """
    found = []
    positions = (
        _seqs(s), _tokens(s), _length(s, r), _share(s), _pool(s, r), _greedy(s, path), _k(s, path), _fp8(s),
        _graphs(s), _parallel(s), _none(s, path),
    )  # fmt: skip
    for turns in positions:
        best = _best(turns, r, verdict)
        if best:
            found.append(best)
    better = [knob for knob in found if _ORDER.index(knob.verdict) < _ORDER.index(verdict)]
    chosen = better or sorted(found, key=lambda knob: -knob.frees_bytes)[:_ALONE]
    return tuple(sorted(chosen, key=lambda knob: _ORDER.index(knob.verdict))[:_MOST])


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
        helps = _ORDER.index(knob.verdict) < _ORDER.index(verdict) or (
            knob.verdict == verdict and knob.frees_bytes > _LITTLE * before.budget
        )
        if helps and (best is None or _rank(knob) < _rank(best)):
            best = knob
    return best


def _rank(knob: Knob) -> tuple[int, int]:
    return _ORDER.index(knob.verdict), -knob.frees_bytes


def _freed(before: Reckoning, after: Reckoning) -> int:
    """More for the KV cache on the poorest stage, and less that one request needs of it."""
    more = after.kv_cache[after.poorest].low - before.kv_cache[before.poorest].low
    need = [r.demand.bytes_for(1, r.demand.max_model_len) for r in (before, after)]
    return int(more + need[0] - need[1] + before.excess - after.excess)


def _smaller(value: int, steps: tuple[int, ...]) -> list[int]:
    return [step for step in steps if step < value]


def _with(s: Situation, **settings: int | str) -> Situation:
    return replace(s, settings=replace(s.settings, **settings))  # type: ignore[arg-type]


def _seqs(s: Situation) -> Iterator[_Turn]:
    for value in _smaller(s.settings.max_num_seqs, (512, 256, 128, 64, 32, 16)):
        if value >= max((promise.concurrency for promise in s.promises), default=0):
            yield _Turn("engine.max_num_seqs", value, _with(s, max_num_seqs=value))


def _tokens(s: Situation) -> Iterator[_Turn]:
    for value in _smaller(s.settings.max_num_batched_tokens, (8192, 4096, 2048)):
        if value >= s.settings.max_num_seqs * (1 + s.num_speculative_tokens):
            yield _Turn("engine.max_num_batched_tokens", value, _with(s, max_num_batched_tokens=value))


def _length(s: Situation, r: Reckoning) -> Iterator[_Turn]:
    """The largest length that surely fits, rounded down; a promise must still have room in it."""
    limit = min(s.settings.max_model_len, s.longest or s.settings.max_model_len)  # vLLM refuses more
    largest = r.demand.largest_max_model_len(r.low, limit=limit)
    step = 1024 if largest >= 4096 else 256
    value = largest // step * step
    if 0 < value < s.settings.max_model_len and value >= max((p.tokens for p in s.promises), default=0):
        yield _Turn("target.max_model_len", value, _with(s, max_model_len=value))


def _share(s: Situation) -> Iterator[_Turn]:
    """A larger share of the memory, as far as it is free and leaves room for the CUDA context."""
    if s.kv_cache_memory_bytes is not None:
        return
    total = s.machine.accelerator.total_bytes
    free = total if s.least_free_bytes is None else s.least_free_bytes
    most = int(min(0.97, (free - 0.5 * _GIB) / total) * 100) / 100
    for value in (0.94, 0.95, 0.96, 0.97):
        if s.gpu_memory_utilization < value <= most:
            yield _Turn("engine.gpu_memory_utilization", value, replace(s, gpu_memory_utilization=value))
    if 0.1 < most < s.gpu_memory_utilization:
        yield _Turn("engine.gpu_memory_utilization", most, replace(s, gpu_memory_utilization=most))


def _pool(s: Situation, r: Reckoning) -> Iterator[_Turn]:
    """A smaller KV cache where it is told outright and there is too little memory for it; one that is enough."""
    told = s.kv_cache_memory_bytes
    if told is None or r.slack >= r.excess:
        return
    value = int((told + r.slack - r.excess) // _STEP * _STEP)
    if 0 < value < told:
        yield _Turn("engine.kv_cache_memory_bytes", value, replace(s, kv_cache_memory_bytes=value))


def _greedy(s: Situation, path: str) -> Iterator[_Turn]:
    if s.is_probabilistic:
        yield _Turn(f"{path}.draft_sample_method", "greedy", replace(s, is_probabilistic=False))


def _k(s: Situation, path: str) -> Iterator[_Turn]:
    for value in _smaller(s.num_speculative_tokens, (5, 3, 2, 1)):
        yield _Turn(f"{path}.num_speculative_tokens", value, replace(s, num_speculative_tokens=value))


def _fp8(s: Situation) -> Iterator[_Turn]:
    capability = s.machine.accelerator.compute_capability
    if capability and capability >= _FP8 and s.settings.kv_cache_dtype in ("auto", "bfloat16", "float16"):
        yield _Turn("engine.kv_cache_dtype", "fp8", _with(s, kv_cache_dtype="fp8"))


def _graphs(s: Situation) -> Iterator[_Turn]:
    if not s.enforce_eager and s.runner != "cpu":
        yield _Turn("engine.enforce_eager", True, replace(s, enforce_eager=True))


def _parallel(s: Situation) -> Iterator[_Turn]:
    """More GPUs of this machine; what vLLM cannot divide is no position."""
    size = s.settings.tensor_parallel_size
    while s.runner != "cpu" and 2 * size * s.settings.pipeline_parallel_size <= s.machine.count:
        size *= 2
        if _divides(s, size):
            yield _Turn("target.tensor_parallel_size", size, _with(s, tensor_parallel_size=size))


def _divides(s: Situation, size: int) -> bool:
    for facts in filter(None, (s.target, s.draft)):
        config = facts.config.get("text_config") or facts.config
        heads = config.get("num_attention_heads") if isinstance(config, dict) else None
        if type(heads) is not int or heads % size:
            return False
    return True


def _none(s: Situation, path: str) -> Iterator[_Turn]:
    if s.method and path == "speculation":
        yield _Turn("speculation", "null", without_speculation(s))
