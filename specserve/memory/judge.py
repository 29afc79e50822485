"""The memory verdict of one arm on one machine: what it needs and has, and what to turn."""

from __future__ import annotations

from dataclasses import replace

from specserve.errors import FactError
from specserve.hardware.accelerators import Machine
from specserve.memory.estimate import Bounds, Demand, Knob, MemoryEstimate, MemoryVerdict, PerGpu
from specserve.memory.reckoning import Reckoning, reckon, without_speculation
from specserve.memory.situation import MemorySituation, situation
from specserve.memory.verdict import (
    certain,
    is_only_in_doubt,
    knobs,
    reason,
    state_blocks,
    verdict_of,
    verdict_without_states,
)
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile, Speculation


def estimate(
    profile: Profile,
    *,
    target: ModelFacts,
    machine: Machine,
    version: str,
    speculation: Speculation | None = None,
    draft: ModelFacts | None = None,
    path: str = "speculation",
    needed: Demand | None = None,
) -> MemoryEstimate:
    """What a profile with one way to speculate (None: none) needs of every GPU of a machine, by one vLLM version.

    `draft`: the facts of `speculation.model`, where the method has a second model; `path`: where the block stands
    in the profile, for the knobs; `needed`: weights and KV cache, where vLLM itself was asked for them. Raises
    FactError where a model's facts do not say enough.
    """
    arm = situation(
        profile, target=target, machine=machine, version=version, speculation=speculation, draft=draft
    )
    return assess(arm, path=path, needed=needed)


def assess(s: MemorySituation, *, path: str = "speculation", needed: Demand | None = None) -> MemoryEstimate:
    """The same for a situation that is worked out already."""
    r = reckon(s, needed=needed)
    s, r, notes = _fitted_length(s, r)
    found = verdict_of(s, r)
    at = r.poorest
    stage, demand = r.demand.stages[at], r.demand
    is_all_known = demand.is_kv_known and s.unknown_draft is None
    if s.unknown_draft:
        notes.append(f"`{s.unknown_draft}` is not known: its weights and KV cache are not counted")
    if s.not_modelled:
        notes.append(f"not modelled, and not counted: {', '.join(f'`{name}`' for name in s.not_modelled)}")
    return MemoryEstimate(
        verdict=found,
        rank=stage.rank,
        per_gpu_bytes=_per_gpu(s, r, at),
        target_kv_bytes_per_token=stage.target_kv_bytes_per_token,
        draft_kv_bytes_per_token=stage.draft_kv_bytes_per_token,
        target_kv_bytes_fixed=stage.target_kv_bytes_fixed,
        draft_kv_bytes_fixed=stage.draft_kv_bytes_fixed,
        max_model_len=s.settings.max_model_len,
        kv_cache_tokens=Bounds(demand.tokens(r.low), demand.tokens(r.high), r.logs),
        max_concurrency=Bounds(_concurrency(s, r, r.low), _concurrency(s, r, r.high), r.logs),
        largest_max_model_len=_longest(s, r),
        without_speculation_kv_cache_tokens=_baseline(s) if s.method and is_all_known else None,
        basis=demand.basis,
        calibration=_calibration(r, at),
        certain=found == "does_not_fit" and certain(s, r),
        knobs=_knobs(s, r, found, path=path),
        notes=(*demand.notes, *notes),
        reason=reason(s, r) if found == "tight" else "",
        draft_logits_bytes=r.draft_logits,
        ranks=s.ranks,
        is_kv_cache_default=s.is_kv_cache_default,
        states=state_blocks(s, r),
        unknown_draft=s.unknown_draft,
        is_only_in_doubt=is_only_in_doubt(s, r, found),
        is_kv_known=demand.is_kv_known,
        is_short_of_states_only=found != verdict_without_states(s, r),
    )


def _knobs(s: MemorySituation, r: Reckoning, found: MemoryVerdict, *, path: str) -> tuple[Knob, ...]:
    """None if it fits, nor if it is tight only because a model is not known, which no knob changes."""
    is_in_doubt = is_only_in_doubt(s, r, found)
    return () if found == "fit" or is_in_doubt else knobs(s, r, verdict=found, path=path)


def _fitted_length(s: MemorySituation, r: Reckoning) -> tuple[MemorySituation, Reckoning, list[str]]:
    """With `max_model_len: auto`, the length that vLLM will surely come down to."""
    if not s.is_auto_length:
        return s, r, []
    limit = s.settings.max_model_len
    low, high = (r.demand.largest_max_model_len(kv, limit=limit) for kv in (r.low, r.high))
    if low in (0, limit):
        return s, r, []
    s = replace(s, settings=replace(s.settings, max_model_len=low))
    r = replace(r, demand=replace(r.demand, max_model_len=low))
    return s, r, [f"`max_model_len: auto` gives {low:,} to {high:,} tokens here"]


def _per_gpu(s: MemorySituation, r: Reckoning, at: int) -> PerGpu:
    stage, kv = r.demand.stages[at], r.kv_cache[at]
    return PerGpu(
        total=s.machine.accelerator.total_bytes,
        budget=r.budget,
        target_weights=stage.target_weights_bytes,
        draft_weights=stage.draft_weights_bytes,
        activation=r.activation[at],
        other=r.other[at],
        kv_cache=Bounds(max(0.0, kv.low), max(0.0, kv.high), kv.logs),
    )


def _concurrency(s: MemorySituation, r: Reckoning, kv_bytes: list[int]) -> float:
    if not r.demand.is_kv_known:
        return 0.0
    return r.demand.concurrency(kv_bytes) if r.demand.groups else float(s.settings.max_num_seqs)


def _longest(s: MemorySituation, r: Reckoning) -> Bounds:
    """The largest max_model_len that fits, up to what the model is made for."""
    limit = max(s.longest, s.settings.max_model_len) if r.demand.is_kv_known else 0
    low, high = (r.demand.largest_max_model_len(kv, limit=limit) for kv in (r.low, r.high))
    return Bounds(low, high, r.logs)


def _baseline(s: MemorySituation) -> Bounds | None:
    """The same without speculation; None where only vLLM knows the model's shape."""
    try:
        alone = reckon(without_speculation(s))
    except FactError:
        return None
    return Bounds(alone.demand.tokens(alone.low), alone.demand.tokens(alone.high), alone.logs)


def _calibration(r: Reckoning, at: int) -> str:
    rules = r.regime
    name = "CPU engine" if rules.runner == "cpu" else f"model runner {rules.runner.upper()}"
    parts = (("activations", r.activation[at]), ("other", r.other[at]), ("KV cache", r.kv_cache[at]))
    support = ", ".join(f"{what} {part.support}" for what, part in parts if part.support)
    return f"{name}, vLLM {rules.since} and later: {support}; {rules.source}"
