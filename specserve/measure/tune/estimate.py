"""What speculation would bring on accelerators that are not here, from bytes and operations.

A step reads weights and KV cache and computes; an engine reaches a share of a card's peaks.
Sources of the constants: SpecDecode-Bench/simulator (Llama-3.1-8B on an H100) for a model's pass,
tomasruizt/vllm-scripts@d94d714 (Qwen3-32B alone, and with Qwen3-1.7B) for the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from specserve.checks.collect import CheckOptions, collect, memory_inputs_of
from specserve.errors import UsageError
from specserve.hardware.accelerators import assume
from specserve.measure.tune.plan import USUAL_MOST_TOKENS, TuneRequest
from specserve.measure.values import whole_numbers
from specserve.measure.verdict import Estimate
from specserve.memory.estimate import estimate as estimate_memory
from specserve.memory.gpu import draft_weights, kv_cache, per_gpu, target_weights
from specserve.memory.inputs import MemoryInputs
from specserve.models.config import EXPERTS, LAYER_COUNT, integer, text_config
from specserve.models.drafts import assumed_head
from specserve.models.facts import published
from specserve.models.sizes import Weights, number_bytes
from specserve.profile.load import load_profile
from specserve.profile.schema import world_size
from specserve.vllm.speculation import METHODS

DEFAULT_LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT_TOKENS = 1024
_ACTIVE = ("num_experts_per_tok", "top_k_experts", "moe_topk")
_HINT = (
    "`--acceptance 0.7` is the probability of each draft token, given the one before; `3.6@4` is a "
    "mean acceptance length at K = 4, as `specserve watch` and `specserve ask` show it"
)


@dataclass(frozen=True, slots=True)
class EstimatedSpeedup:
    """One K at one load."""

    num_speculative_tokens: int
    mean_acceptance_length: float
    speedup: Estimate
    """Over the range of what engines reach; no confidence interval."""


@dataclass(frozen=True, slots=True)
class EstimatedPoint:
    """One load: the best K, and what it brings over no speculation; K = 0 if nothing is faster."""

    concurrency: int
    num_speculative_tokens: int
    speedup: Estimate
    by_k: tuple[EstimatedSpeedup, ...]


@dataclass(frozen=True, slots=True)
class TuneEstimate:
    """All loads; its fields are the keys of its JSON."""

    accelerator: str
    count: int
    method: str
    acceptance: float
    """Probability that a draft token is accepted if the one before it was; the user supplies it."""
    context_tokens: int
    """Of a whole request: half of them are the prompt, half the answer."""
    most_requests: int
    """So many run at once, by the middle of the range of the KV cache's size."""
    waiting: tuple[int, ...]
    """Loads at which further requests wait, so that no speedup is estimated."""
    points: tuple[EstimatedPoint, ...]
    is_draft_assumed: bool = False
    """Whether the draft's files are not here: its sizes are those of other heads of its method."""
    basis: str = "estimated"


class Reach(NamedTuple):
    """What an engine reaches: of the peak of operations, and as a factor of its own time."""

    operations_share: float
    overhead: float


USUAL, WORSE, BETTER = Reach(0.72, 1.0), Reach(0.5, 3.0), Reach(1.0, 0.2)
"""The middle, and the ends of the range that held 92 % of the published speedups."""
_BANDWIDTH_SHARE = 0.85
_STEP_S, _LAYER_S, _ALL_REDUCE_S = 1e-3, 19e-6, 12e-6
"""Of a step, of each layer of the target in a CUDA graph, of each of two in a divided layer."""
_VERIFY_S, _DRAFT_STEP_S, _DRAFT_LAYER_S = 1.2e-3, 0.3e-3, 40e-6
"""Of a step that verifies, of each pass of a draft, of its layers: attention is in no graph."""
_KEPT = 0.75
"""Of a request's tokens, the share in the KV cache on average: the prompt, half of the answer."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one model asks of each accelerator; weights and KV cache in bytes."""

    dense_bytes: float
    layers: int = 1
    kv_bytes_per_token: float = 0.0
    expert_bytes: float = 0.0
    expert_share: float = 1.0
    bytes_per_weight: float = 2.0
    layer_s: float = _LAYER_S


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of engine steps with target and draft on one kind of accelerator.

    `is_parallel`: one step of the draft makes all draft tokens; `is_divided`: over accelerators.
    """

    target: Work
    draft: Work | None
    context_tokens: float
    bandwidth_bytes_per_s: float
    operations_per_s: float
    is_parallel: bool = False
    is_divided: bool = False

    def computed_s(self, work: Work, tokens: float, reach: Reach) -> float:
        """The operations of so many tokens."""
        used = (work.dense_bytes + work.expert_bytes * work.expert_share) / work.bytes_per_weight
        return 2 * used * tokens / (self.operations_per_s * reach.operations_share)

    def model_s(self, work: Work, *, tokens: float, batch: int, reach: Reach = USUAL) -> float:
        """One pass of a model over so many tokens, for so many requests."""
        read = work.dense_bytes + work.kv_bytes_per_token * _KEPT * self.context_tokens * batch
        read += work.expert_bytes * (1 - math.pow(1 - work.expert_share, tokens))
        read_s = read / (self.bandwidth_bytes_per_s * _BANDWIDTH_SHARE)
        layer_s = work.layer_s + 2 * _ALL_REDUCE_S * self.is_divided
        own_s = work.layers * layer_s * reach.overhead
        return read_s + self.computed_s(work, tokens, reach) + own_s

    def step_s(self, batch: int, tokens: int, reach: Reach = USUAL) -> float:
        """A whole step: so many requests, each with so many draft tokens."""
        seconds = self.model_s(self.target, tokens=batch * (tokens + 1), batch=batch, reach=reach)
        own_s = _STEP_S + _VERIFY_S * bool(tokens)
        if tokens and self.draft is not None:
            passes, width = (1, tokens + 1) if self.is_parallel else (tokens, 1)
            once_s = self.model_s(self.draft, tokens=batch * width, batch=batch, reach=reach)
            seconds, own_s = seconds + passes * once_s, own_s + passes * _DRAFT_STEP_S
        return seconds + own_s * reach.overhead

    def token_s(self, length: float, batch: int, tokens: int, reach: Reach = USUAL) -> float:
        """One token of each answer, with so many in a step: and one of each prompt."""
        models = [self.target, *([self.draft] if tokens and self.draft else [])]
        prompt_s = math.fsum(self.computed_s(work, batch, reach) for work in models)
        return self.step_s(batch, tokens, reach) / length + prompt_s

    def speedup(self, length: float, batch: int, tokens: int) -> Estimate:
        """Of output tokens/s, with so many tokens a step, over the range of what engines reach."""
        gains = [
            self.token_s(1.0, batch, 0, reach) / self.token_s(length, batch, tokens, reach)
            for reach in (USUAL, WORSE, BETTER)
        ]
        return Estimate(gains[0], min(gains), max(gains))


def acceptance_length(probability: float, *, tokens: int) -> float:
    """Tokens a step if each draft token has this probability (Leviathan et al. 2023)."""
    return math.fsum(probability**position for position in range(tokens + 1))


def read_acceptance(text: str | None) -> float:
    """The probability of `0.7`, or of a length at a K, `3.6@4`. Raises UsageError."""
    if text is None:
        raise UsageError("`--estimate` needs `--acceptance`", hint=_HINT)
    form = re.fullmatch(r"(\d*\.?\d+(?:e-?\d+)?)(?:@([1-9]\d?))?", text, re.ASCII)
    value, tokens = (float(form[1]), int(form[2] or 0)) if form else (math.nan, 0)
    low, high = (1.0, tokens + 1.0) if tokens else (0.0, 1.0)
    if not low <= value <= high:
        raise UsageError(f"`--acceptance {text}` is no acceptance: {low:g} to {high:g}", hint=_HINT)
    if not tokens:
        return value
    found, step = 0.0, 0.5
    for _ in range(60):
        found += step if acceptance_length(found + step, tokens=tokens) <= value else 0.0
        step /= 2
    return found


def estimate_tune(request: TuneRequest, accelerator: str, acceptance: str | None) -> TuneEstimate:
    """The estimate of a command line. Raises UsageError, FactError."""
    probability, profile = read_acceptance(acceptance), load_profile(request.profile)
    machine, block = assume(accelerator), profile.speculation
    loads = whole_numbers(request.concurrency, "--concurrency", least=1, most=65536)
    if block is None:
        raise UsageError("the profile does not speculate", hint="add a `speculation` section to it")
    if machine.count * machine.nodes < (ranks := world_size(profile)):
        machine = replace(machine, count=ranks, nodes=1)
    known = collect(profile, wanted=CheckOptions(machine=machine, here=False, tell=lambda _: None))
    target = known.context.target or published(profile.target.model)
    draft = known.context.drafts.get("speculation")
    draft, assumed = draft or (published(block.model) if block.model else None), None
    if target and block.model and draft is None:
        draft = assumed = assumed_head(block.model, target)
    for unread in known.unread:
        is_known = unread.published or (assumed and unread.path == "speculation.model")
        if not (is_known or unread.path.startswith("alternatives.")):
            raise unread.error
    assert target is not None  # else it is among the unread
    inputs = memory_inputs_of(known.context, block, target, draft)
    k_max = request.most_tokens or USUAL_MOST_TOKENS
    found = estimate(inputs, acceptance=probability, loads=loads or DEFAULT_LOADS, k_max=k_max)
    return replace(found, is_draft_assumed=assumed is not None)


def estimate(
    inputs: MemoryInputs, *, acceptance: float, loads: Sequence[int], k_max: int
) -> TuneEstimate:
    """Every K at each load that runs at once. Raises UsageError if none is left."""
    context_tokens = min(inputs.max_model_len, CONTEXT_TOKENS)
    times, memory = step_times(inputs, context_tokens=context_tokens), estimate_memory(inputs)
    machine, points = inputs.machine, []
    count, accelerator = machine.count * machine.nodes, machine.accelerator.name
    held = (memory.kv_cache_tokens.low + memory.kv_cache_tokens.high) / 2
    room = int(held // (context_tokens + k_max))
    most = 0 if memory.verdict == "does_not_fit" else min(room, inputs.max_num_seqs)
    lengths = [acceptance_length(acceptance, tokens=tokens) for tokens in range(1, k_max + 1)]
    for batch in sorted({load for load in loads if load <= most}):
        by_k = tuple(
            EstimatedSpeedup(tokens, length, times.speedup(length, batch, tokens))
            for tokens, length in enumerate(lengths, start=1)
        )
        best = max(by_k, key=lambda each: each.speedup.value)
        if best.speedup.value > 1:
            points.append(EstimatedPoint(batch, best.num_speculative_tokens, best.speedup, by_k))
        else:
            points.append(EstimatedPoint(batch, 0, Estimate(1.0, 1.0, 1.0), by_k))
    if not points:
        few = f"not even {min(loads)} requests of {context_tokens:,} tokens"
        hint = "`specserve check PROFILE --assume …` shows what to change"
        raise UsageError(f"{few} run at once on {count}x {accelerator}", hint=hint)
    waiting = tuple(sorted({load for load in loads if load > most}))
    about = (accelerator, count, inputs.method or "", acceptance, context_tokens, most)
    return TuneEstimate(*about, waiting, tuple(points))


def step_times(inputs: MemoryInputs, *, context_tokens: float) -> StepTimes:
    """Target and draft on the machine. Raises UsageError, FactError."""
    known, method = inputs.machine.accelerator, inputs.method or ""
    if known.bandwidth_bytes_per_s is None or known.flops is None:
        raise UsageError(
            f"nothing can be estimated for `{known.name}`: its bandwidth and FLOP/s are not known",
            hint="leave `--estimate` out to measure, or name another accelerator",
        )
    text, weights, kv = text_config(inputs.target.config), target_weights(inputs), kv_cache(inputs)
    table = weights.output or weights.embeddings
    read = replace(weights, embeddings=0.0, output=table)  # of the embeddings, rows are looked up
    per_token = float(kv.per_token()) * inputs.pipeline_parallel_size
    target = _work(inputs, inputs.target.config, read, integer(text, *LAYER_COUNT), per_token)
    drafted, draft = draft_weights(inputs) if METHODS[method].draft != "text" else None, None
    if drafted is not None:
        layers, config = 1, (inputs.draft or inputs.target).config
        if inputs.draft is not None:  # else it is one layer of the target's repository
            layers = integer(text_config(config), *LAYER_COUNT)
        if METHODS[method].draft != "head":
            table = drafted.embeddings
        read = replace(drafted, embeddings=0.0, output=drafted.output or table)
        draft = _work(inputs, config, read, layers, float(kv.per_token(draft=True)))
        draft = replace(draft, layer_s=_DRAFT_LAYER_S)
    return StepTimes(
        *(target, draft, context_tokens, known.bandwidth_bytes_per_s, known.flops),
        is_parallel=inputs.is_parallel or METHODS[method].in_one_pass,
        is_divided=inputs.tensor_parallel_size > 1,
    )


def _work(
    inputs: MemoryInputs, config: Mapping[str, Any], read: Weights, layers: int, kv_bytes: float
) -> Work:
    """What a model with these weights asks of each accelerator."""
    text, share = text_config(config), 1.0
    if count := integer(text, *EXPERTS, default=0, least=0):
        share = integer(text, *_ACTIVE, default=count) / count
    dense = per_gpu(replace(read, experts=0.0), inputs, config)
    experts = per_gpu(Weights(experts=read.experts), inputs, config)
    return Work(dense, layers, kv_bytes, experts, share, number_bytes(inputs.dtype, text))
