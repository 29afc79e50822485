"""What one pass says of its load: step time, acceptance step by step, rate. Pure; predicts nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.measure.bench.records import Pass, Request
from specserve.measure.tune.calm import Parts, calm_step_s, parts
from specserve.measure.tune.steady import steady
from specserve.measure.tune.walk import Steps, steps_of
from specserve.metrics.acceptance import Acceptance, total


@dataclass(frozen=True, slots=True)
class Observed:
    """One launch at one load, measured."""

    workload: str
    temperature: float
    concurrency: int
    tokens: int
    """Drafted each step at this load; 0: none."""
    step_s: float | None
    """From one chunk of a stream to its next, while all requests ran and nothing else slowed the machine. None where
    that was too short.
    """
    slowed: float
    """How much longer a step was on average than the calm one, as a share."""
    tokens_per_s: float
    """Output tokens over the time that they take while as many requests run as should, in calm steps."""
    output_tokens: float
    """Of a request, on average."""
    held_up_s: float
    """What a request spends beside its steps, on average: prefills, its own and those of the others."""
    tpot_s: tuple[float, ...]
    """Of each request, in calm steps, too."""
    first_s: tuple[float, ...] = ()
    """Times to the first token."""
    requests: tuple[Steps, ...] = ()
    """Step by step; those that had nothing drafted too. Empty where the server does not tell."""
    counted: Acceptance | None = None
    """By the server's counters."""


def observed(
    passes: Sequence[Pass], *, tokens: int, step_s: float | None = None, is_even: bool = True
) -> Observed | None:
    """All passes of one launch at one load; None where nothing came whole.

    `step_s`: the calm step, where more than these passes tell it. `is_even`: whether all steps are the same work; where
    they are not, the quickest ones are those that had little to do, and a step is the mean of all.
    """
    good = [request for each in passes for request in each.requests if request.ok and request.output_tokens]
    if not good or passes[0].point.concurrency is None:
        return None
    point = passes[0].point
    counted = _counted(passes)
    stepped = _stepped(good, counted=counted) if tokens else ()
    told = [part for each in passes if (part := parts(each)) is not None]
    step_s = (step_s or calm_step_s(passes)) if is_even else _mean_step_s(told)
    whole_s = _whole_s(passes, told, step_s=step_s, steps=_steps(told, stepped, tokens=tokens, good=good))
    if whole_s <= 0:
        return None
    return Observed(
        workload=point.workload,
        temperature=point.temperature,
        concurrency=passes[0].point.concurrency,
        tokens=tokens,
        step_s=step_s,
        slowed=_slowed(told, step_s=step_s),
        tokens_per_s=sum(each.output_tokens for each in good) * passes[0].point.concurrency / whole_s,
        output_tokens=statistics.fmean(each.output_tokens for each in good),
        held_up_s=sum(part.held_up_s for part in told) / len(good),
        tpot_s=_tpots_s(good, later_s=whole_s - sum(each.ttft_s for each in good)),
        first_s=tuple(each.ttft_s for each in good),
        requests=stepped,
        counted=counted,
    )


def _counted(passes: Sequence[Pass]) -> Acceptance | None:
    parts = [each.acceptance for each in passes]
    return total(part for part in parts if part is not None) if any(parts) else None


def _stepped(good: Sequence[Request], *, counted: Acceptance | None) -> tuple[Steps, ...]:
    """Each request's steps. vLLM says nothing of a request that had nothing drafted: its steps made one token each.

    Source: vllm/v1/metrics/stats.py 0.32, `if self.per_step_accepted`.
    """
    tells = any(each.steps for each in good) or (counted is not None and not counted.drafts)
    found = [
        steps_of(each.steps, output_tokens=each.output_tokens, prompt=each.prompt)
        or Steps((), (), each.output_tokens - 1, each.prompt)
        for each in good
        if tells
    ]
    return tuple(each for each in found if each.tokens)


def _steps(told: Sequence[Parts], stepped: Sequence[Steps], *, tokens: int, good: Sequence[Request]) -> int:
    """Of all requests at the full load.

    A pass ends with fewer requests, for which a schedule has other K: the same text is walked with this one.
    """
    if stepped and len(stepped) == sum(each.output_tokens > 1 for each in good):
        return sum(each.steps_with(tokens) for each in stepped)
    return sum(part.steps for part in told)


def _whole_s(passes: Sequence[Pass], told: Sequence[Parts], *, step_s: float | None, steps: int) -> float:
    """Seconds of all requests together at the full load."""
    if step_s is None or len(told) < len(passes):
        return sum(each.latency_s for done in passes for each in steady(done).requests if each.ok)
    return steps * step_s + sum(part.held_up_s for part in told)


def _tpots_s(good: Sequence[Request], *, later_s: float) -> tuple[float, ...]:
    """Of each request; all of them together take `later_s` after their first tokens."""
    were_s = sum(each.latency_s - each.ttft_s for each in good)
    share = later_s / were_s if were_s > 0 and later_s > 0 else 1.0
    return tuple(value * share for each in good if (value := each.tpot_s) is not None)


def _mean_step_s(told: Sequence[Parts]) -> float | None:
    steps = sum(part.steps for part in told)
    return sum(part.steps * part.step_s for part in told) / steps if steps else None


def _slowed(told: Sequence[Parts], *, step_s: float | None) -> float:
    mean_s = _mean_step_s(told)
    return max(0.0, mean_s / step_s - 1) if step_s is not None and mean_s is not None else 0.0
