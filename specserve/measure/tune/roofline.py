"""Seconds of an engine step from bytes and operations, without a machine: an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specserve.errors import FactError, UsageError
from specserve.hardware.accelerators import Machine
from specserve.measure.bench.result import Interval
from specserve.memory.demand import demand
from specserve.memory.kv import served_bytes
from specserve.memory.pool import PipelineStage
from specserve.memory.reckoning import sizes_of
from specserve.memory.situation import HEADS, MemorySituation, Settings
from specserve.memory.weights import tallied, weigh
from specserve.models.architecture import read_shape
from specserve.models.config import language_part
from specserve.models.facts import ModelFacts
from specserve.models.shape import Shape
from specserve.models.tensors import expected_tensors
from specserve.vllm.speculation import BLOCK_DRAFTS

WITHOUT_MODEL = frozenset({"ngram", "ngram_gpu", "suffix"})


@dataclass(frozen=True, slots=True)
class Work:
    """What one model asks of each of its accelerators."""

    dense_bytes: float
    """Weights that every step reads."""
    expert_bytes: float = 0.0
    """Weights of all experts; a step reads those that its tokens go to."""
    experts: int = 0
    experts_per_token: int = 0
    operations_per_token: float = 0.0
    kv_bytes_per_token: float = 0.0
    """Of context, for each request."""
    layers: int = 1
    gpus: int = 1
    """Over which each layer is divided."""

    def bytes_read(self, tokens: float) -> float:
        """Of weights, in a step of so many tokens; each takes experts of its own accord."""
        if not self.experts:
            return self.dense_bytes
        missed: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.dense_bytes + self.expert_bytes * (1 - missed)


@dataclass(frozen=True, slots=True)
class Rates:
    """What an accelerator does, and how much of that an engine reaches."""

    bandwidth_bytes_per_s: float
    operations_per_s: float
    bandwidth_share: float = 0.76
    operations_share: float = 0.72
    host_s: float = 1.2e-3
    """Of a step, outside of the models."""
    draft_layer_s: float = 25e-6
    """Of a draft step, for each layer: starting its kernels."""
    all_reduce_s: float = 12e-6
    """For each of two in a layer that is divided over several accelerators."""

    def worse(self) -> Rates:
        """Where an engine reaches less."""
        return Rates(self.bandwidth_bytes_per_s, self.operations_per_s, 0.55, 0.5, 2.5e-3, 60e-6, 25e-6)

    def better(self) -> Rates:
        """Where an engine reaches more."""
        return Rates(self.bandwidth_bytes_per_s, self.operations_per_s, 0.9, 0.85, 0.5e-3, 10e-6, 8e-6)

    @property
    def free_tokens(self) -> float:
        """Tokens in a step from which computing takes longer than reading 16-bit weights: the roofline's ridge."""
        return self.operations_per_s / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and draft as they run."""

    target: Work
    draft: Work | None
    method: str
    context_tokens: float
    """Of each request, on average."""
    is_parallel: bool = False
    """Whether one step of the draft makes all draft tokens."""


def geometric(alpha: float, *, tokens: int) -> float:
    """Tokens a step if each draft token is accepted with the same probability (Leviathan et al. 2023)."""
    return float(tokens + 1) if alpha >= 1 else (1 - alpha ** (tokens + 1)) / (1 - alpha)


def geometric_rate(mean_length: float, *, tokens: int) -> float:
    """The probability of `geometric` that gives this mean acceptance length, 0 to 1. For estimates only.

    What it says of another K errs by -8 to +17 % over public measurements.
    """
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if geometric(middle, tokens=tokens) < mean_length else (low, middle)
    return (low + high) / 2


def rates_of(machine: Machine) -> Rates:
    """What the machine's accelerators do. Raises UsageError if nobody knows."""
    known = machine.accelerator
    if known.bandwidth_bytes_per_s is None or known.flops is None:
        raise UsageError(
            f"nothing can be estimated: the bandwidth and FLOP/s of `{known.name}` are not known",
            hint=(
                "`specserve gpus` shows which are known; if you have this accelerator, leave `--estimate` out "
                "and measure"
            ),
        )
    return Rates(known.bandwidth_bytes_per_s, known.flops)


def model_s(work: Work, *, tokens: float, context: float, rates: Rates) -> float:
    """One pass of a model over so many tokens, with so many tokens of context over all requests."""
    memory = work.bytes_read(tokens) + work.kv_bytes_per_token * context
    seconds = memory / (rates.bandwidth_bytes_per_s * rates.bandwidth_share)
    seconds += work.operations_per_token * tokens / (rates.operations_per_s * rates.operations_share)
    return seconds + (2 * work.layers * rates.all_reduce_s if work.gpus > 1 else 0.0)


def step_s(pair: Pair, *, batch: int, tokens: int, rates: Rates) -> float:
    """A whole step: so many requests, each with so many draft tokens; 0: without speculation."""
    context = pair.context_tokens * batch
    verify = model_s(pair.target, tokens=batch * (tokens + 1), context=context, rates=rates)
    return rates.host_s + verify + draft_s(pair, batch=batch, tokens=tokens, rates=rates)


def draft_s(pair: Pair, *, batch: int, tokens: int, rates: Rates) -> float:
    """Of a step, what drafting takes."""
    if not tokens or pair.draft is None or pair.method in WITHOUT_MODEL:
        return 0.0
    passes, width = (1, tokens + 1) if pair.is_parallel else (tokens, 1)
    context = pair.context_tokens * batch
    each = model_s(pair.draft, tokens=batch * width, context=context, rates=rates)
    return passes * (each + pair.draft.layers * rates.draft_layer_s)


def speedup(pair: Pair, *, acceptance: float, batch: int, tokens: int, rates: Rates) -> Interval:
    """Of decoding with so many draft tokens, by the range of what engines reach; no interval of a measurement."""
    worse, value, better = (
        geometric(acceptance, tokens=tokens)
        * step_s(pair, batch=batch, tokens=0, rates=by)
        / step_s(pair, batch=batch, tokens=tokens, rates=by)
        for by in (rates.worse(), rates, rates.better())
    )
    return Interval(value, min(worse, value, better), max(worse, value, better))


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


_LOOKUPS = ("embed_tokens", "wte", "word_embeddings", "embed_in")
"""Names of tables of which a step reads a few rows."""


def pair_of(s: MemorySituation, *, context_tokens: float) -> Pair:
    """Target and draft of one arm on its machine. Raises FactError if a model's facts do not say enough."""
    method = s.speculative.method
    if method is None:
        raise FactError("the profile does not speculate", hint="add a `speculation` section to it")
    made = demand(s.target, s.speculative, settings=s.settings)
    if not made.is_kv_known:
        raise FactError(made.notes[0])
    draft = None if method in WITHOUT_MODEL else _draft(s, made.stages[-1], method=method)
    target = _target(s.target, made.stages, settings=s.settings)
    is_parallel = s.speculative.is_parallel or method in BLOCK_DRAFTS
    return Pair(target, draft, method, context_tokens, is_parallel=is_parallel)


def _target(facts: ModelFacts, stages: tuple[PipelineStage, ...], *, settings: Settings) -> Work:
    """A request passes all pipeline stages one after another, so that their weights add up."""
    layout = read_shape(facts.model, facts.config)
    weight_bytes = served_bytes(settings.dtype, given=layout.dtype)
    whole = float(sum(stage.target_weights_bytes for stage in stages))
    count = language_part(facts).optional(*_EXPERTS, least=0) or 0
    chosen = sizes_of(facts).experts_per_token if count else 0
    routed = tallied(facts, online=settings.quantization) if chosen else {}
    routed = {kind: number for kind, number in routed.items() if kind.role.division == "expert"}
    experts = float(sum(weigh(routed, layout, settings=settings, weight_bytes=weight_bytes).stages))
    met = _weights_met(facts, layout, share=chosen / count if chosen else 1.0)
    return Work(
        dense_bytes=max(0.0, whole - experts - (0.0 if layout.is_tied else _table_bytes(facts, settings))),
        expert_bytes=experts,
        experts=count if chosen else 0,
        experts_per_token=chosen,
        operations_per_token=2 * met / settings.tensor_parallel_size or 2 * whole / weight_bytes,
        kv_bytes_per_token=float(sum(stage.target_kv_bytes_per_token for stage in stages)),
        layers=len(layout.layers),
        gpus=settings.tensor_parallel_size,
    )


def _draft(s: MemorySituation, last: PipelineStage, *, method: str) -> Work:
    """A head also computes the target's output table, wherever that lies, if it brings none."""
    weights, layers, draft = float(last.draft_weights_bytes), 1, s.speculative.draft
    if method not in HEADS and draft is not None:
        layout = read_shape(draft.model, draft.config)
        layers = len(layout.layers)
        weights -= 0.0 if layout.is_tied else _table_bytes(draft, s.settings)
    elif method in HEADS and not any("lm_head" in name for name in (draft and draft.tensors) or ()):
        weights += _table_bytes(s.target, s.settings)
    return Work(
        dense_bytes=max(weights, 0.0),
        operations_per_token=2 * weights / served_bytes(s.settings.dtype, given=None),
        kv_bytes_per_token=float(last.draft_kv_bytes_per_token),
        layers=layers,
        gpus=s.settings.tensor_parallel_size,
    )


def _table_bytes(facts: ModelFacts, settings: Settings) -> float:
    """Of one table of the vocabulary, on each GPU."""
    layout = read_shape(facts.model, facts.config)
    weight_bytes = served_bytes(settings.dtype, given=layout.dtype)
    return layout.vocab_size * layout.hidden_size * weight_bytes / settings.tensor_parallel_size


def _weights_met(facts: ModelFacts, layout: Shape, *, share: float) -> float:
    """Weights that a token meets, of routed experts that `share`; 0 if no formula has the model type."""
    sizes = (expected_tensors(facts.model, facts.config) or {}).items()
    met = [
        math.prod(size) * (share if ".experts." in name else 1.0)
        for name, size in sizes
        if len(size) > 1 and (layout.is_tied or not any(part in name for part in _LOOKUPS))
    ]
    return math.fsum(met)
