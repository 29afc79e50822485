"""Seconds of an engine step from bytes and operations, without a machine: an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from specserve.errors import FactError, UsageError
from specserve.hardware.accelerators import Machine
from specserve.measure.bench.result import Interval
from specserve.memory.demand import demand
from specserve.memory.kv import served_bytes
from specserve.memory.pool import PipelineStage
from specserve.memory.reckoning import sizes_of
from specserve.memory.situation import HEADS, MemorySituation, Settings
from specserve.memory.weights import tallied, weigh
from specserve.models.config import language_part
from specserve.models.facts import ModelFacts
from specserve.models.shape import Shape, read_shape
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


class Reach(NamedTuple):
    """How much of an accelerator's peaks an engine reaches, and what a step takes beside the models."""

    bandwidth_share: float = 0.76
    operations_share: float = 0.72
    host_s: float = 1.2e-3
    """Of a step, outside of the models."""
    draft_layer_s: float = 25e-6
    """Of a draft step, for each layer: starting its kernels."""
    all_reduce_s: float = 12e-6
    """For each of two in a layer that is divided over several accelerators."""


USUAL = Reach()
WORSE, BETTER = Reach(0.55, 0.5, 2.5e-3, 60e-6, 25e-6), Reach(0.9, 0.85, 0.5e-3, 10e-6, 8e-6)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Target and draft as they run on an accelerator."""

    target: Work
    draft: Work | None
    method: str
    context_tokens: float
    """Of each request, on average."""
    bandwidth_bytes_per_s: float
    operations_per_s: float
    is_parallel: bool = False
    """Whether one step of the draft makes all draft tokens."""

    @property
    def free_tokens(self) -> float:
        """Tokens in a step from which computing takes longer than reading 16-bit weights: the roofline's ridge."""
        return self.operations_per_s / self.bandwidth_bytes_per_s

    def model_s(self, work: Work, *, tokens: float, batch: int, reach: Reach = USUAL) -> float:
        """Seconds of one pass of a model over so many tokens, for so many requests."""
        memory = work.bytes_read(tokens) + work.kv_bytes_per_token * self.context_tokens * batch
        seconds = memory / (self.bandwidth_bytes_per_s * reach.bandwidth_share)
        seconds += work.operations_per_token * tokens / (self.operations_per_s * reach.operations_share)
        return seconds + (2 * work.layers * reach.all_reduce_s if work.gpus > 1 else 0.0)

    def draft_s(self, batch: int, tokens: int, reach: Reach = USUAL) -> float:
        """Seconds of a step that drafting takes."""
        if not tokens or self.draft is None or self.method in WITHOUT_MODEL:
            return 0.0
        passes, width = (1, tokens + 1) if self.is_parallel else (tokens, 1)
        each = self.model_s(self.draft, tokens=batch * width, batch=batch, reach=reach)
        return passes * (each + self.draft.layers * reach.draft_layer_s)

    def step_s(self, batch: int, tokens: int, reach: Reach = USUAL) -> float:
        """Seconds of a whole step: so many requests, each with so many draft tokens; 0: without speculation."""
        verify = self.model_s(self.target, tokens=batch * (tokens + 1), batch=batch, reach=reach)
        return reach.host_s + verify + self.draft_s(batch, tokens, reach)

    def speedup(self, acceptance: float, batch: int, tokens: int) -> Interval:
        """Of decoding with so many draft tokens, by the range of what engines reach; no interval of a measurement."""
        length = geometric(acceptance, tokens=tokens)
        worse, value, better = (
            length * self.step_s(batch, 0, reach) / self.step_s(batch, tokens, reach)
            for reach in (WORSE, USUAL, BETTER)
        )
        return Interval(value, min(worse, value, better), max(worse, value, better))


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


_LOOKUPS = ("embed_tokens", "wte", "word_embeddings", "embed_in")
"""Names of tables of which a step reads a few rows."""


def rates_of(machine: Machine) -> tuple[float, float]:
    """Bytes/s and operations/s of the machine's accelerators. Raises UsageError if nobody knows."""
    known = machine.accelerator
    if known.bandwidth_bytes_per_s is None or known.flops is None:
        raise UsageError(
            f"nothing can be estimated: the bandwidth and FLOP/s of `{known.name}` are not known",
            hint=(
                "`specserve gpus` shows which are known; if you have this accelerator, leave `--estimate` out "
                "and measure"
            ),
        )
    return known.bandwidth_bytes_per_s, known.flops


def roofline_of(s: MemorySituation, *, context_tokens: float) -> Roofline:
    """Target and draft of one arm on its machine.

    Raises UsageError if the machine's rates are not known, FactError if a model's facts do not say enough.
    """
    method = s.speculative.method
    bandwidth, operations = rates_of(s.machine)
    if method is None:
        raise FactError("the profile does not speculate", hint="add a `speculation` section to it")
    made = demand(s.target, s.speculative, settings=s.settings)
    if not made.is_kv_known:
        raise FactError(made.notes[0])
    return Roofline(
        _target(s.target, made.stages, settings=s.settings),
        None if method in WITHOUT_MODEL else _draft(s, made.stages[-1], method=method),
        method,
        context_tokens,
        bandwidth,
        operations,
        is_parallel=s.speculative.is_parallel or method in BLOCK_DRAFTS,
    )


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
