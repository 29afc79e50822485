"""What the passes of a tune show: which draft tokens were accepted, and how long a step takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.statistics import library
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


_LEAST_FOR_KNEES = 7
_LEAST_FOR_KERNELS = 3
_ROUNDS = 3
_MOST_OFF = 2.0
"""Kernels are not further from the form than this factor."""
Curve = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One measured point."""

    batch: int
    tokens: int
    """Drafted each step; 0: the server without speculation."""
    step_s: float

    @property
    def verified(self) -> int:
        """Tokens that the target looks at in one step."""
        return self.batch * (self.tokens + 1)


@dataclass(frozen=True, slots=True)
class StepModel:
    """The fitted form. `at` gives seconds."""

    fixed_s: float
    per_token_s: float
    """For each verified token."""
    knees: Curve
    """(verified tokens, seconds for each token above them, on top)."""
    speculating_s: float
    per_draft_s: float
    per_draft_and_request_s: float
    kernels: Curve = ()
    """(verified tokens, factor) of the target's part: kernels are better at some numbers than at others."""
    corrections: Mapping[int, Curve] = field(default_factory=dict)
    """By batch: (tokens, measured over fitted)."""
    error: float = 0.0
    """The median of how far the form alone is off at the measured points, as a share."""

    def verify_s(self, batch: int, tokens: int) -> float:
        """What the target's part of a step takes, by the form."""
        count = batch * (tokens + 1)
        line_s = self.fixed_s + self.per_token_s * count
        line_s += math.fsum(slope * max(0.0, count - knee) for knee, slope in self.knees)
        return line_s * _between(self.kernels, count)

    def draft_s(self, batch: int, tokens: int) -> float:
        """What drafting adds, by the form."""
        if not tokens:
            return 0.0
        return self.speculating_s + tokens * (self.per_draft_s + self.per_draft_and_request_s * batch)

    def form_s(self, batch: int, tokens: int) -> float:
        """The form without corrections."""
        return self.verify_s(batch, tokens) + self.draft_s(batch, tokens)

    def at(self, batch: int, tokens: int) -> float:
        """Seconds of a step; measured points are met exactly, between them the correction changes evenly."""
        near = [each for each in sorted(self.corrections) if each <= batch][-1:]
        near += [each for each in sorted(self.corrections) if each > batch][:1]
        factors = [(each, _between(self.corrections[each], tokens)) for each in near]
        return self.form_s(batch, tokens) * _between(factors, batch)


def _between(curve: Curve, at: float) -> float:
    """Linear between the two nearest points, flat beyond the outer ones; 1 without points."""
    return (
        float(np.interp(at, [place for place, _ in curve], [value for _, value in curve])) if curve else 1.0
    )


def fit(points: Iterable[Timed]) -> StepModel:
    """The model of these points. Raises ValueError without any, or for a time that is not positive.

    All costs are 0 or above. If there are enough points, the line of the target's part may get steeper at each.
    """
    timed = sorted(points, key=lambda each: (each.batch, each.tokens))
    if not timed or any(each.step_s <= 0 or each.batch < 1 for each in timed):
        raise ValueError("step times need at least one measured point, and each time must be above 0")
    form = _form(timed)
    error = statistics.median(abs(each.step_s / form.form_s(each.batch, each.tokens) - 1) for each in timed)
    plain = [each for each in timed if not each.tokens]
    if len({each.batch for each in plain}) >= _LEAST_FOR_KERNELS:
        for _ in range(_ROUNDS):
            form = _form(timed, _kernels(plain, form))
        most = max(each.batch for each in plain)
        form = replace(
            form, kernels=_kernels([*plain, *(each for each in timed if each.verified > most)], form)
        )
    corrections = {
        batch: _means(
            (each.tokens, each.step_s / form.form_s(batch, each.tokens))
            for each in timed
            if each.batch == batch
        )
        for batch in {each.batch for each in timed}
    }
    return replace(form, corrections=corrections, error=error)


def _form(timed: Sequence[Timed], kernels: Curve = ()) -> StepModel:
    """The fit with these kernels: least squares of the relative error, no cost below 0."""
    counts = sorted({each.verified for each in timed})
    knees = counts[1:-1] if len(timed) >= _LEAST_FOR_KNEES else []
    # with one K alone, what speculation costs at all and what it costs by token cannot be told apart
    several = len({each.tokens for each in timed if each.tokens}) > 1
    rows = [_row(each, knees, several=several, kernels=kernels) / each.step_s for each in timed]
    found, _ = library("scipy.optimize").nnls(np.array(rows), np.ones(len(rows)))
    slopes = tuple(zip(knees, map(float, found[2:-3]), strict=True))
    fixed, per_token, speculating, draft, request = map(float, (*found[:2], *found[-3:]))
    form = StepModel(fixed, per_token, slopes, speculating, draft, request, kernels)
    if min(form.form_s(each.batch, each.tokens) for each in timed) <= 0:  # no step is free
        return StepModel(statistics.fmean(each.step_s for each in timed), 0.0, (), 0.0, 0.0, 0.0)
    return form


def _row(each: Timed, knees: Sequence[int], *, several: bool, kernels: Curve) -> NDArray[np.float64]:
    line = np.array([1, each.verified, *(max(0, each.verified - knee) for knee in knees)], dtype=float)
    draft = [float(several and each.tokens > 0), each.tokens, each.tokens * each.batch]
    return np.concatenate([line * _between(kernels, each.verified), draft])


def _kernels(timed: Sequence[Timed], form: StepModel) -> Curve:
    """By verified tokens, in order: what the target's part took over the line of the form."""
    line = replace(form, kernels=())
    ratios = [
        (
            each.verified,
            (each.step_s - form.draft_s(each.batch, each.tokens)) / line.verify_s(each.batch, each.tokens),
        )
        for each in timed
        if line.verify_s(each.batch, each.tokens) > 0
    ]
    return _means((count, min(_MOST_OFF, max(1 / _MOST_OFF, ratio))) for count, ratio in ratios)


def _means(points: Iterable[tuple[int, float]]) -> Curve:
    """In order, the mean of points at the same place."""
    found: dict[int, list[float]] = {}
    for place, value in points:
        found.setdefault(place, []).append(value)
    return tuple((place, statistics.fmean(held)) for place, held in sorted(found.items()))
