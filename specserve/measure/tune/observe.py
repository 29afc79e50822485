"""What the passes of one launch at one load say: seconds of a step, tokens/s at full load, acceptance by step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specserve.measure.bench.driver import Pass, Request
from specserve.measure.tune.walk import Steps, steps_of

_TINY_S = 1e-4
_LEAST_CHUNKS = 8
"""Fewer chunks outside of prefills say nothing of a step: all at full load are taken, else all there are."""
_MAD = 1.4826
"""From the median of the absolute deviations to a standard deviation."""
_MEDIAN_ERROR = 1.2533
"""The standard error of a median over that of a mean."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timing:
    """What all passes of one server at one load take."""

    step_s: float
    """Of a request at full load, outside of prefills: time over chunks; the median over requests."""
    step_error: float
    """The standard error of it, as a share."""
    chunks: int
    """All of them behind first tokens: one for each step."""
    full_load_s: float
    """What all requests together take if as many run as should until the end of each."""

    @property
    def held_up_s(self) -> float:
        """What prefills take of that: each request's own, and those of others that it waited for."""
        return max(0.0, self.full_load_s - self.chunks * self.step_s)


def timing(passes: Sequence[Pass], *, steps: int | None = None) -> Timing | None:
    """None if no step could be timed.

    `steps`: how many all requests take at full load. A pass ends with fewer requests, for which a schedule may have
    other K; without it they are the chunks that came.
    """
    each_s: list[float] = []
    chunks, inside, within_s = 0, 0, 0.0
    for done in passes:
        good = [request for request in done.requests if request.ok]
        each_s += _step_times_s(good, load=done.point.concurrency or 1)
        end_s = _full_until_s(good, load=done.point.concurrency or 1)
        for request in good:
            gaps_s = np.array(request.chunk_gaps_ms) / 1000
            came = request.start_s + request.ttft_s + np.cumsum(gaps_s) <= end_s + _TINY_S
            chunks += len(gaps_s)
            inside += int(came.sum())
            within_s += request.ttft_s + float(gaps_s[came].sum())
    if not each_s:
        return None
    step_s = statistics.median(each_s)
    spread = _MAD * statistics.median(abs(value - step_s) for value in each_s)
    error = _MEDIAN_ERROR * spread / step_s / len(each_s) ** 0.5
    total = chunks if steps is None else max(steps, inside)
    return Timing(step_s, error, total, within_s + (total - inside) * step_s)


def _step_times_s(requests: Sequence[Request], *, load: int) -> list[float]:
    """Seconds of a step by request: the time of its chunks at full load in which no request is in its prefill."""
    starts = np.sort([request.start_s for request in requests])
    firsts = np.sort([request.start_s + request.ttft_s for request in requests])
    ends = np.sort([request.start_s + request.latency_s for request in requests])
    alone: list[Floats] = []
    full: list[Floats] = []
    every: list[Floats] = []
    for request in requests:
        gaps_s = np.array(request.chunk_gaps_ms) / 1000
        end = request.start_s + request.ttft_s + np.cumsum(gaps_s) - _TINY_S
        begin = end - gaps_s + 2 * _TINY_S
        running = [
            np.searchsorted(starts, at, side="right") - np.searchsorted(ends, at, side="right")
            for at in (begin, end)
        ]
        is_full = (running[0] == load) & (running[1] == load)
        in_prefill = np.searchsorted(starts, end, side="right") > np.searchsorted(firsts, begin, side="right")
        every.append(gaps_s)
        full.append(gaps_s[is_full])
        alone.append(gaps_s[is_full & ~in_prefill])
    kept = next((each for each in (alone, full) if sum(map(len, each)) >= _LEAST_CHUNKS), every)
    return [float(gaps.mean()) for gaps in kept if len(gaps)]


def _full_until_s(requests: Sequence[Request], *, load: int) -> float:
    """When fewer requests than should began to run, in a closed loop that sends the next one when one ends."""
    ends = sorted(request.start_s + request.latency_s for request in requests)
    return ends[-load] if len(ends) >= load else 0.0


@dataclass(frozen=True, slots=True)
class Observed:
    """One launch at one load, measured."""

    workload: str
    temperature: float
    concurrency: int
    tokens: int
    """Drafted each step at this load; 0: none."""
    step_s: float | None
    """None if no answer had a second chunk."""
    step_error: float
    """Its standard error, as a share."""
    tokens_per_s: float
    """Output tokens over the time that they take at full load."""
    output_tokens: float
    """Of a request, on average."""
    held_up_s: float
    """What a request spends beside its steps, on average: prefills, its own and those of the others."""
    tpot_s: tuple[float, ...]
    """Of each request, scaled to what all of them take at full load."""
    first_s: tuple[float, ...] = ()
    """Times to the first token."""
    requests: tuple[Steps, ...] = ()
    """Step by step; those that had nothing drafted too. Empty if the server does not tell."""


def observed(passes: Sequence[Pass], *, tokens: int) -> Observed | None:
    """All passes of one launch at one load; None if no answer came whole."""
    good = [request for each in passes for request in each.requests if request.ok and request.output_tokens]
    if not good or passes[0].point.concurrency is None:
        return None
    point, load = passes[0].point, passes[0].point.concurrency
    stepped = _steps_by_request(good, passes) if tokens else ()
    is_known = bool(stepped) and len(stepped) == sum(each.output_tokens > 1 for each in good)
    taken = timing(passes, steps=sum(each.steps_with(tokens) for each in stepped) if is_known else None)
    busy_s = taken.full_load_s if taken is not None else sum(each.latency_s for each in good)
    if busy_s <= 0:
        return None
    return Observed(
        workload=point.workload,
        temperature=point.temperature,
        concurrency=load,
        tokens=tokens,
        step_s=taken.step_s if taken is not None else None,
        step_error=taken.step_error if taken is not None else 0.0,
        tokens_per_s=sum(each.output_tokens for each in good) * load / busy_s,
        output_tokens=statistics.fmean(each.output_tokens for each in good),
        held_up_s=taken.held_up_s / len(good) if taken is not None else busy_s / len(good),
        tpot_s=_times_per_token_s(good, later_s=busy_s - sum(each.ttft_s for each in good)),
        first_s=tuple(each.ttft_s for each in good),
        requests=stepped,
    )


def _times_per_token_s(good: Sequence[Request], *, later_s: float) -> tuple[float, ...]:
    """Of each request; all of them together take `later_s` after their first tokens."""
    were_s = sum(each.latency_s - each.ttft_s for each in good)
    share = later_s / were_s if were_s > 0 and later_s > 0 else 1.0
    return tuple(value * share for each in good if (value := each.tpot_s) is not None)


def _steps_by_request(good: Sequence[Request], passes: Sequence[Pass]) -> tuple[Steps, ...]:
    """Each request's steps. vLLM says nothing of a request that had nothing drafted: its steps made one token each.

    Source: vllm/v1/metrics/stats.py 0.32, `if self.per_step_accepted`.
    """
    counted = [each.acceptance for each in passes]
    if not any(each.steps for each in good) and any(each is None or each.drafts for each in counted):
        return ()
    found = [
        steps_of(each.steps, output_tokens=each.output_tokens, prompt=each.prompt)
        or Steps((), (), each.output_tokens - 1, each.prompt)
        for each in good
    ]
    return tuple(each for each in found if each.tokens)
