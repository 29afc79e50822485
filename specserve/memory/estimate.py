"""The memory verdict of one way to speculate on one machine, with the figures that it rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from specserve.errors import FactError
from specserve.memory.breakdown import Breakdown, break_down, without_speculation
from specserve.memory.constants import Bounds
from specserve.memory.pool import Demand
from specserve.memory.situation import MemorySituation
from specserve.memory.verdict import (
    Knob,
    MemoryVerdict,
    StateBlocks,
    doubt,
    is_only_in_doubt,
    knobs,
    reason,
    state_blocks,
    verdict_of,
    verdict_without_states,
)


@dataclass(frozen=True, slots=True)
class PerGpu:
    """Bytes on the fullest GPU."""

    total: int
    budget: int
    target_weights: int
    draft_weights: int
    activation: Bounds
    other: Bounds
    """CUDA context, communication, graphs, sampler and draft buffers."""
    kv_cache: Bounds


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one variant needs and has. Token counts and concurrency are at the profile's max_model_len."""

    verdict: MemoryVerdict
    rank: int
    per_gpu_bytes: PerGpu
    target_kv_bytes_per_token: int
    draft_kv_bytes_per_token: int
    target_kv_bytes_fixed: int
    draft_kv_bytes_fixed: int
    max_model_len: int
    kv_cache_tokens: Bounds
    max_concurrency: Bounds
    largest_max_model_len: Bounds
    without_speculation_kv_cache_tokens: Bounds | None
    basis: Literal["vllm", "formula", "published"]
    """`published`: the formula, on a configuration that ships with specserve because the Hub did not answer."""
    regime: str
    """Which launches the constants of the bounds hold for."""
    source: str
    """Where these constants come from."""
    calibration: str
    """The same in one sentence, with the logs behind each bound."""
    certain: bool = False
    """Whether nothing that is not modelled can make room for a launch that does not fit."""
    knobs: tuple[Knob, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    """Why it is tight, in a few words."""
    draft_logits_bytes: int = 0
    """What probabilistic drafts keep on every GPU, whether requests sample or not."""
    ranks: int = 1
    """Worker processes on each node. On the CPU they share the memory, and the figures are those of one."""
    is_kv_cache_default: bool = False
    """Whether specserve set the size of the KV cache because the profile sets none."""
    states: StateBlocks | None = None
    """None for a model without recurrent states, or if vLLM does not compare their number with the blocks."""
    is_short_of_states_only: bool = False
    """Whether the verdict would be better but for the states."""
    unknown_draft: str | None = None
    """The name of a second model that could not be read: the figures are those of the target alone."""
    is_only_in_doubt: bool = False
    """Whether it is tight only because a model is not known."""
    is_kv_known: bool = True
    """False for an unknown architecture: the figures of the KV cache's tokens are zeros then, and mean nothing."""

    @property
    def speculation_cost(self) -> float:
        """The share of the KV cache's tokens that speculation costs, at the upper bounds; 0 if it is not known."""
        alone = self.without_speculation_kv_cache_tokens
        return max(0.0, 1 - self.kv_cache_tokens.high / alone.high) if alone and alone.high else 0.0


def assess(s: MemorySituation, *, path: str = "speculation", needed: Demand | None = None) -> MemoryEstimate:
    """What a launch needs of every GPU, and whether it fits.

    `path`: where the block that speculates stands in the profile, for the knobs; `needed`: weights and KV cache, if
    vLLM itself was asked for them. Raises FactError if a model's facts do not say enough.
    """
    r, notes = _at_fitting_length(break_down(s, needed=needed))
    s, demand, at, unknown = r.situation, r.demand, r.poorest, r.situation.speculative.unknown
    found, stage = verdict_of(r), demand.stages[at]
    is_in_doubt = is_only_in_doubt(r, found)
    if unknown:
        notes.append(f"`{unknown}` is not known: its weights and KV cache are not counted")
    why = doubt(r) if found == "does_not_fit" else ""
    if why:
        notes.append(f"a warning and no error, because {why}")
    if s.not_modelled:
        notes.append(f"not modelled, and not counted: {', '.join(f'`{name}`' for name in s.not_modelled)}")
    limit = max(s.longest, s.settings.max_model_len) if demand.is_kv_known else 0
    regime, source = _regime(r), r.regime.source
    shortest, longest = (demand.largest_max_model_len(kv_bytes, limit=limit) for kv_bytes in (r.low, r.high))
    return MemoryEstimate(
        verdict=found,
        rank=stage.rank,
        per_gpu_bytes=_per_gpu(r, at),
        target_kv_bytes_per_token=stage.target_kv_bytes_per_token,
        draft_kv_bytes_per_token=stage.draft_kv_bytes_per_token,
        target_kv_bytes_fixed=stage.target_kv_bytes_fixed,
        draft_kv_bytes_fixed=stage.draft_kv_bytes_fixed,
        max_model_len=s.settings.max_model_len,
        kv_cache_tokens=_tokens(r),
        max_concurrency=Bounds(_concurrency(r, r.low), _concurrency(r, r.high), r.logs),
        largest_max_model_len=Bounds(shortest, longest, r.logs),
        without_speculation_kv_cache_tokens=_baseline(r),
        basis=demand.basis,
        regime=regime,
        source=source,
        calibration=f"{regime}; {_support(r, at)}; the bounds come from {source}",
        certain=found == "does_not_fit" and not why,
        knobs=() if found == "fit" or is_in_doubt else knobs(r, verdict=found, path=path),
        notes=(*demand.notes, *notes),
        reason=reason(r) if found == "tight" else "",
        draft_logits_bytes=r.draft_logits,
        ranks=s.ranks,
        is_kv_cache_default=s.is_kv_cache_default,
        states=state_blocks(r),
        unknown_draft=unknown,
        is_only_in_doubt=is_in_doubt,
        is_kv_known=demand.is_kv_known,
        is_short_of_states_only=found != verdict_without_states(r),
    )


def _at_fitting_length(r: Breakdown) -> tuple[Breakdown, list[str]]:
    """With `max_model_len: auto`, the length that vLLM will surely come down to."""
    s, limit = r.situation, r.situation.settings.max_model_len
    if not s.is_auto_length:
        return r, []
    low, high = (r.demand.largest_max_model_len(kv, limit=limit) for kv in (r.low, r.high))
    if low in (0, limit):
        return r, []
    s = replace(s, settings=replace(s.settings, max_model_len=low))
    r = replace(r, situation=s, demand=replace(r.demand, max_model_len=low))
    return r, [f"`max_model_len: auto` gives {low:,} to {high:,} tokens here"]


def _per_gpu(r: Breakdown, at: int) -> PerGpu:
    stage, kv = r.demand.stages[at], r.kv_cache[at]
    return PerGpu(
        total=r.situation.machine.accelerator.total_bytes,
        budget=r.budget,
        target_weights=stage.target_weights_bytes,
        draft_weights=stage.draft_weights_bytes,
        activation=r.activation[at],
        other=r.other[at],
        kv_cache=Bounds(max(0.0, kv.low), max(0.0, kv.high), kv.logs),
    )


def _tokens(r: Breakdown) -> Bounds:
    return Bounds(r.demand.tokens(r.low), r.demand.tokens(r.high), r.logs)


def _concurrency(r: Breakdown, kv_bytes: list[int]) -> float:
    if not r.demand.is_kv_known:
        return 0.0
    return r.demand.concurrency(kv_bytes) if r.demand.groups else float(r.situation.settings.max_num_seqs)


def _baseline(r: Breakdown) -> Bounds | None:
    """KV cache tokens without speculation; None if nothing speculates, or if only vLLM knows the model's shape."""
    s = r.situation
    if not s.speculative.method or s.speculative.unknown or not r.demand.is_kv_known:
        return None
    try:
        return _tokens(break_down(without_speculation(s)))
    except FactError:
        return None


def _regime(r: Breakdown) -> str:
    engine = "the CPU engine" if r.regime.runner == "cpu" else f"model runner {r.regime.runner.upper()}"
    return f"{engine} of vLLM {r.regime.since} and later"


def _support(r: Breakdown, at: int) -> str:
    parts = (("activations", r.activation[at]), ("other", r.other[at]), ("KV cache", r.kv_cache[at]))
    return ", ".join(f"{what} ({part.support})" for what, part in parts if part.support)
