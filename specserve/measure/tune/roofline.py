"""Seconds of an engine step from bytes and operations, without a machine. Pure; an estimate, and nothing more.

A step reads every weight once and computes for each token: memory and matrix units hardly overlap in one published
fit of a running engine (Llama-3.1-8B on an H100: 5.886 ms + 21.0 us a token + 0.0393 us a token of context, and
1.207 ms outside the model), so both are added. The shares of the datasheet's peaks are those of that fit, and its range
what other engines and cards reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from specserve.measure.bench.result import Interval
from specserve.measure.tune import goodput
from specserve.measure.tune.walk import geometric

PARALLEL = frozenset({"dflash", "dspark"})
"""Methods whose draft makes all its tokens in one step."""
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


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and draft as they run."""

    target: Work
    draft: Work | None
    method: str
    context_tokens: float
    """Of each request, on average."""


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
    passes, width = (1, tokens + 1) if pair.method in PARALLEL else (tokens, 1)
    context = pair.context_tokens * batch
    each = model_s(pair.draft, tokens=batch * width, context=context, rates=rates)
    return passes * (each + pair.draft.layers * rates.draft_layer_s)


@dataclass(frozen=True, slots=True)
class Estimated:
    """One load: the best K where each draft token is accepted with the given chance, and what it gives."""

    concurrency: int
    tokens: int
    """0: none is faster than none."""
    mean_length: float
    break_even: float
    """At these tokens (or at one, where 0 are best)."""
    step_ms: float
    plain_step_ms: float
    tpot_ms: float
    tokens_per_s: float
    speedup: Interval
    """By the range of what engines reach; no interval of a measurement."""
    draft_share: float
    """Of the step, at these tokens."""


def estimate(pair: Pair, *, acceptance: float, batch: int, most_tokens: int, rates: Rates) -> Estimated:
    """The best K of 0 to `most_tokens` at one load."""

    def gain(tokens: int) -> float:
        return _speedup(pair, acceptance=acceptance, batch=batch, tokens=tokens, by=rates)

    best = max(range(most_tokens + 1), key=gain)
    shown = best or 1
    plain = step_s(pair, batch=batch, tokens=0, rates=rates)
    taken = step_s(pair, batch=batch, tokens=best, rates=rates)
    length = geometric(acceptance, tokens=best)
    return Estimated(
        concurrency=batch,
        tokens=best,
        mean_length=geometric(acceptance, tokens=shown),
        break_even=goodput.break_even(
            step_s(pair, batch=batch, tokens=shown, rates=rates), plain_step_s=plain
        ),
        step_ms=taken * 1000,
        plain_step_ms=plain * 1000,
        tpot_ms=goodput.time_per_token_s(length, step_s=taken) * 1000,
        tokens_per_s=goodput.tokens_per_s(batch, mean_length=length, step_s=taken),
        speedup=speedup(pair, acceptance=acceptance, batch=batch, tokens=shown, rates=rates),
        draft_share=draft_s(pair, batch=batch, tokens=shown, rates=rates)
        / step_s(pair, batch=batch, tokens=shown, rates=rates),
    )


def speedup(pair: Pair, *, acceptance: float, batch: int, tokens: int, rates: Rates) -> Interval:
    """Of decoding with so many draft tokens, by the range of what engines reach; no interval of a measurement."""
    worse, value, better = (
        _speedup(pair, acceptance=acceptance, batch=batch, tokens=tokens, by=by)
        for by in (rates.worse(), rates, rates.better())
    )
    return Interval(value, min(worse, value, better), max(worse, value, better))


def _speedup(pair: Pair, *, acceptance: float, batch: int, tokens: int, by: Rates) -> float:
    return goodput.speedup(
        geometric(acceptance, tokens=tokens),
        step_s=step_s(pair, batch=batch, tokens=tokens, rates=by),
        plain_step_s=step_s(pair, batch=batch, tokens=0, rates=by),
    )


def free_tokens(*, weight_bytes: float, rates: Rates) -> float:
    """Tokens in a step from which matrix products take longer than reading the weights: the ridge of the roofline.

    `weight_bytes`: of one weight, 2 in 16 bits.
    """
    return rates.operations_per_s * weight_bytes / (2 * rates.bandwidth_bytes_per_s)
