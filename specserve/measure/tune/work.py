"""What target and draft ask of each accelerator, from their facts: the input of an estimate. Times nothing."""

from __future__ import annotations

import math
from dataclasses import replace

from specserve.errors import FactError
from specserve.facts.architecture.read import read_shape
from specserve.facts.architecture.tensors import expected_tensors
from specserve.facts.model import ModelFacts
from specserve.measure.tune.roofline import WITHOUT_MODEL, Pair, Work
from specserve.plan.memory.compose import compose
from specserve.plan.memory.dtypes import served_bytes
from specserve.plan.memory.parts import tallied
from specserve.plan.memory.pool import Stage
from specserve.plan.memory.settings import Settings
from specserve.plan.memory.shape import language_part
from specserve.plan.memory.shape import shape as sizes
from specserve.plan.memory.situation import Situation
from specserve.plan.memory.speculative import HEADS, Speculative
from specserve.plan.memory.weights import weigh

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def pair(s: Situation, *, context_tokens: float) -> Pair:
    """Target and draft of one arm on its machine. Raises FactError where a model's facts do not say enough."""
    if s.method is None:
        raise FactError("the profile does not speculate", hint="give it a `speculation` section")
    speculative = Speculative(s.method, s.num_speculative_tokens, s.draft, s.draft_kv_cache_dtype)
    made = compose(s.target, speculative, settings=s.settings)
    if not made.is_kv_known:
        raise FactError(made.notes[0])
    stages = made.stages
    target = _target(s.target, stages, settings=s.settings)
    draft = None if s.method in WITHOUT_MODEL else _draft(s, stages, method=s.method)
    return Pair(target, draft, s.method, context_tokens)


def _target(facts: ModelFacts, stages: tuple[Stage, ...], *, settings: Settings) -> Work:
    """A request passes all pipeline stages one after another, so that their weights add up."""
    whole = float(sum(stage.target_weights_bytes for stage in stages))
    experts = _expert_bytes(facts, settings=settings)
    count, chosen = _experts(facts)
    if not (count and chosen):
        experts, count, chosen = 0.0, 0, 0
    return Work(
        dense_bytes=max(0.0, whole - experts - _lookup_bytes(facts, settings=settings)),
        expert_bytes=experts,
        experts=count,
        experts_per_token=chosen,
        operations_per_token=_operations(facts, whole, settings=settings),
        kv_bytes_per_token=float(sum(stage.target_kv_bytes_per_token for stage in stages)),
        layers=len(read_shape(facts.model, facts.config).layers),
        gpus=settings.tensor_parallel_size,
    )


def _draft(s: Situation, stages: tuple[Stage, ...], *, method: str) -> Work:
    """A head also computes the target's output table, wherever that lies."""
    last, settings = stages[-1], replace(s.settings, pipeline_parallel_size=1)
    weights = float(last.draft_weights_bytes)
    layers = 1
    if s.draft is not None and method not in HEADS:
        layers = len(read_shape(s.draft.model, s.draft.config).layers)
        weights -= _lookup_bytes(s.draft, settings=settings)
    elif method in HEADS:
        weights += _head_bytes(s, settings=settings)
    weight_bytes = served_bytes(settings.dtype, given=None)
    return Work(
        dense_bytes=max(weights, 0.0),
        operations_per_token=2 * weights / weight_bytes,
        kv_bytes_per_token=float(last.draft_kv_bytes_per_token),
        layers=layers,
        gpus=settings.tensor_parallel_size,
    )


def _table_bytes(facts: ModelFacts, *, settings: Settings) -> float:
    """Of one table of the vocabulary, on each GPU."""
    found = read_shape(facts.model, facts.config)
    weight_bytes = served_bytes(settings.dtype, given=found.dtype)
    return found.vocab_size * found.hidden_size * weight_bytes / settings.tensor_parallel_size


def _lookup_bytes(facts: ModelFacts, *, settings: Settings) -> float:
    """Of embeddings, of which a step reads a few rows; a tied table is read whole, as the output's."""
    tied = read_shape(facts.model, facts.config).is_tied
    return 0.0 if tied else _table_bytes(facts, settings=settings)


def _head_bytes(s: Situation, *, settings: Settings) -> float:
    """Of the output table that a head shares with the target, where it brings none."""
    own = s.draft is not None and any("lm_head" in name for name in s.draft.tensors or ())
    return 0.0 if own else _table_bytes(s.target, settings=settings)


def _experts(facts: ModelFacts) -> tuple[int, int]:
    """How many there are, and how many a token goes to."""
    config = language_part(facts)
    return config.optional(*_EXPERTS, least=0) or 0, sizes(facts).experts_per_token


def _expert_bytes(facts: ModelFacts, *, settings: Settings) -> float:
    kinds = tallied(facts, part="model", online=settings.quantization)
    routed = {kind: count for kind, count in kinds.items() if kind.role.division == "expert"}
    found = read_shape(facts.model, facts.config)
    weight_bytes = served_bytes(settings.dtype, given=found.dtype)
    return float(sum(weigh(routed, found, settings=settings, weight_bytes=weight_bytes).stages))


def _operations(facts: ModelFacts, whole_bytes: float, *, settings: Settings) -> float:
    """Two for each weight that a token meets; by the formula of the model type, else by its bytes."""
    named = expected_tensors(facts.model, facts.config)
    found = read_shape(facts.model, facts.config)
    if named is None:
        return 2 * whole_bytes / served_bytes(settings.dtype, given=found.dtype)
    count, chosen = _experts(facts)
    met = 0.0
    for name, size in named.items():
        if len(size) < 2 or (_is_lookup(name) and not found.is_tied):
            continue
        is_routed = count and chosen and ".experts." in name
        met += math.prod(size) * (chosen / count if is_routed else 1.0)
    return 2 * met / settings.tensor_parallel_size


def _is_lookup(name: str) -> bool:
    return any(part in name for part in ("embed_tokens", "wte", "word_embeddings", "embed_in"))
