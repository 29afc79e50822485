"""What one pass says of its load: step time, acceptance step by step, rate."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specserve.measure.bench.driver import Pass, Request
from specserve.measure.tune.walk import Steps, steps_of
from specserve.metrics.counters import Acceptance, total_acceptance

LEAST = 8
"""Fewer gaps say nothing of a step."""
_TINY_S = 1e-4
_EARLY = 0.5
"""Of the median: no step of the same work is so short."""


def steady_gaps_s(done: Pass) -> list[float]:
    """Seconds between chunks while just as many requests ran as were meant to, and none was in its prefill.

    A chunk is a step. Where there is no such time, all gaps at that load; where there is none of it either, all.
    """
    good = [request for request in done.requests if request.ok and request.chunk_gaps_ms]
    load = _Load(good)
    at_load: list[float] = []
    alone: list[float] = []
    every: list[float] = []
    for request in good:
        at = request.start_s + request.ttft_s
        for gap in _read_in_time(request.chunk_gaps_ms):
            began, at = at, at + gap / 1000
            every.append(gap / 1000)
            if load.at(began + _TINY_S) == load.at(at - _TINY_S) == (done.point.concurrency or 1):
                at_load.append(gap / 1000)
                if not load.prefills(began, at):
                    alone.append(gap / 1000)
    return next((found for found in (alone, at_load) if len(found) >= LEAST), every)


def _read_in_time(gaps_ms: Sequence[float]) -> list[float]:
    """A chunk that was read late makes the next one seem early: the two share their time."""
    found = list(gaps_ms)
    least = statistics.median(found) * _EARLY if found else 0.0
    for index in range(1, len(found)):
        if found[index] < least:
            found[index - 1 : index + 1] = [(found[index - 1] + found[index]) / 2] * 2
    return found


class _Load:
    """How many requests ran when."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._starts = sorted(request.start_s for request in requests)
        self._ends = sorted(request.start_s + request.latency_s for request in requests)
        self._firsts = sorted(request.start_s + request.ttft_s for request in requests)

    def at(self, time_s: float) -> int:
        return bisect_right(self._starts, time_s) - bisect_right(self._ends, time_s)

    def prefills(self, begin_s: float, end_s: float) -> bool:
        """Whether some request waited for its first token in that time."""
        return bisect_right(self._starts, end_s - _TINY_S) > bisect_right(self._firsts, begin_s + _TINY_S)


_LEAST_SHARE = 0.25
"""Of a pass at the full load: less says nothing, and the pass is taken as it is."""


def steady(done: Pass) -> Pass:
    """The pass at its full load: each request goes on in its steps, and one follows another.

    A rate of it is the load times the tokens over the requests' times (Little's law). Waits for prefills stay those
    that were: each prefill came while all requests ran, and what it took of each of them is there once. Requests that
    failed stay as they are. The pass itself where it has no load above 1, or was hardly ever at it.
    """
    load = done.point.concurrency
    good = [request for request in done.requests if request.ok]
    if load is None or load < 2 or not good:
        return done
    end_s = _last_full_s(good, load=load)
    gaps_s = steady_gaps_s(done)
    if end_s < _LEAST_SHARE * done.duration_s or not gaps_s:
        return done
    step_s = statistics.median(gaps_s)
    requests = tuple(
        _gone_on(request, _until(request, end_s), step_s=step_s) if request.ok else request
        for request in done.requests
    )
    whole_s = math.fsum(request.latency_s for request in requests if request.ok)
    return replace(done, duration_s=whole_s / load, requests=requests)


@dataclass(frozen=True, slots=True)
class _Part:
    """Of one request, what lies after its first token and before the load fell."""

    time_s: float
    chunks: int


def _last_full_s(requests: Sequence[Request], *, load: int) -> float:
    """When so many ran for the last time; 0 where they never did."""
    # of what happens at one moment the ends come first: one that follows another is no second one
    events = sorted(
        event
        for each in requests
        for event in ((round(each.start_s, 6), 1), (round(each.start_s + each.latency_s, 6), -1))
    )
    running, found_s = 0, 0.0
    for at_s, change in events:
        if running >= load and change < 0:
            found_s = at_s
        running += change
    return found_s


def _until(request: Request, end_s: float) -> _Part:
    """Up to the last chunk that came by then."""
    left_s = end_s - request.start_s - request.ttft_s + 1e-6
    came, time_s = 0, 0.0
    for gap_ms in request.chunk_gaps_ms:
        if time_s + gap_ms / 1000 > left_s:
            break
        time_s += gap_ms / 1000
        came += 1
    return _Part(time_s, came)


def _gone_on(request: Request, part: _Part, *, step_s: float) -> Request:
    """The whole request, each of its other chunks after a step of the full load."""
    rest = len(request.chunk_gaps_ms) - part.chunks
    if not rest:
        return request
    latency_s = request.ttft_s + part.time_s + rest * step_s
    return replace(request, latency_s=latency_s, chunk_gaps_ms=request.chunk_gaps_ms[: part.chunks])


QUICK = 0.02
"""The share of the stretches that are quicker than the calm step."""
_LEAST_STEPS, _STRETCH_S = 4, 0.25
"""Of a stretch: where one chunk is read late its neighbour is short, which is no quick step."""
_LEAST_STRETCHES = 8
"""Of a pass, where that leaves enough steps to each."""
CALM = 0.05
"""Steps of a calm machine are longer than the calm step by no more than this share."""

Place = tuple[int, float, int]
_LONGEST = 2.0
"""Medians: what is longer is a prefill that steps waited for, or a moment in which the machine stood still."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A pass at its full load, dealt to its steps and to what held them up; seconds of all its requests together."""

    steps: int
    """Chunks after the first ones."""
    step_s: float
    """From one chunk of a stream to its next: the mean, as it was."""
    held_up_s: float
    """Prefills: each request's own, and those of others that it waited for."""

    def whole_s(self, step_s: float) -> float:
        """What all requests would have taken with steps of another length."""
        return self.steps * step_s + self.held_up_s


def parts(done: Pass) -> Parts | None:
    """The parts of a pass; None where it has no step that could be timed."""
    gaps_s = _single(done)
    if not gaps_s:
        return None
    step_s = statistics.fmean(gaps_s)
    steps = sum(len(request.chunk_gaps_ms) for request in done.requests if request.ok)
    whole_s = math.fsum(request.latency_s for request in steady(done).requests if request.ok)
    return Parts(steps, step_s, max(0.0, whole_s - steps * step_s))


def calm_step_s(passes: Iterable[Pass]) -> float | None:
    """Seconds of a step on the calm machine, of passes of one server at one load; None where too few were timed."""
    return quick_s([stretch for done in passes for stretch in stretches_s(done)])


def shared_steps_s(passes: Iterable[Pass]) -> Mapping[Place, float]:
    """The calm step by launch, temperature and load over all workloads; nothing where the machine was calm.

    What is in the KV cache makes steps of one workload a little longer than those of another; but beside neighbours
    a single pass may have had no calm moment at all, which is more.
    """
    held: dict[Place, list[Pass]] = {}
    slowed: list[float] = []
    for done in passes:
        part, step_s = parts(done), calm_step_s([done])
        if part is not None and step_s is not None:
            held.setdefault((done.launch, done.point.temperature, done.point.concurrency or 0), []).append(
                done
            )
            slowed.append(part.step_s / step_s - 1)
    if not slowed or statistics.median(slowed) <= CALM:
        return {}
    return {place: step_s for place, found in held.items() if (step_s := calm_step_s(found)) is not None}


def quick_s(stretches: Sequence[float]) -> float | None:
    """The calm step of such stretches; None where there are too few."""
    if len(stretches) < 2:
        return stretches[0] if stretches else None
    return statistics.quantiles(stretches, n=round(1 / QUICK), method="inclusive")[0]


def stretches_s(done: Pass) -> list[float]:
    """Mean seconds a step of a few steps in a row; none of a pass with too few."""
    gaps_s = _single(done)
    if len(gaps_s) < LEAST:
        return []
    wanted = round(_STRETCH_S / statistics.median(gaps_s))
    size = max(_LEAST_STEPS, min(wanted, len(gaps_s) // _LEAST_STRETCHES))
    return [statistics.fmean(gaps_s[at : at + size]) for at in range(0, len(gaps_s) - size + 1, size)]


def _single(done: Pass) -> list[float]:
    gaps_s = steady_gaps_s(done)
    most = _LONGEST * statistics.median(gaps_s) if gaps_s else 0.0
    return [gap for gap in gaps_s if gap <= most]


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
    return total_acceptance(part for part in parts if part is not None) if any(parts) else None


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
