"""What the passes of a tune show: how many draft tokens each step accepted, and how long a step takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.statistics import library


@dataclass(frozen=True)
class Steps:
    """One request: what each of its verification steps accepted and was offered, in order."""

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    plain: int = 0
    """Steps that had nothing drafted and made one token each (an ngram that found no match)."""
    prompt: str = ""
    """The prompt that it answered; several requests may send the same one."""

    @property
    def tokens(self) -> int:
        """Tokens that its steps made: each one more than it accepted."""
        return sum(self.accepted) + len(self.accepted) + self.plain

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """From each token on, how many tokens a step without a limit on its drafts would make.

        A step that accepted all it was offered goes on in the next one: what lay behind it was not asked for.
        """
        runs: list[int] = []
        follows = 0
        for took, offered in zip(reversed(self.accepted), reversed(self.drafted), strict=True):
            beyond = follows if took == offered else 0
            runs += [length + beyond for length in range(1, took + 2)]
            follows = runs[-1]
        return tuple(reversed(runs))

    def steps_with(self, tokens: int) -> int:
        """How many steps the same text takes with at most so many draft tokens each (the stitched re-walk).

        The length that it gives errs by -2.9 to +1.5 % over eight public workloads at K_max 7.
        """
        place, steps, runs = 0, 0, self.runs
        while place < len(runs):
            place += min(runs[place], tokens + 1)
            steps += 1
        return steps + self.plain


def steps_of(pairs: Sequence[tuple[int, int]], *, output_tokens: int, prompt: str = "") -> Steps:
    """One request from its accepted and drafted tokens by step (vLLM's `detailed` metrics).

    Its first token comes from the prefill and is no step; what the steps do not account for was made without drafts.
    What they accepted behind the end of the answer was never sent: the last step counts as if no more had been drafted.
    Source: vllm/v1/core/sched/scheduler.py 0.32, `update_from_output`: the metrics come before the text is cut.
    """
    kept: list[tuple[int, int]] = []
    left = max(0, output_tokens - 1)
    for accepted, drafted in pairs:
        if left:
            kept.append((accepted, drafted) if accepted < left else (left - 1, left - 1))
            left -= kept[-1][0] + 1
    return Steps(tuple(each[0] for each in kept), tuple(each[1] for each in kept), left, prompt)


_TINY_S = 1e-4
_LEAST_CHUNKS = 8
"""Fewer chunks outside of prefills say nothing of a step: all at full load are taken, else all there are."""
_MAD = 1.4826
"""From the median of the absolute deviations to a standard deviation."""
_MEDIAN_ERROR = 1.2533
"""The standard error of a median over that of a mean."""


@dataclass(frozen=True, slots=True)
class Observed:
    """All passes of one launch at one load."""

    point: Point
    tokens: int
    """Drafted each step at this load; 0: none."""
    step_s: float | None
    """Of a request at full load, outside of prefills: time over chunks, the median over requests; None: unknown."""
    step_error: float
    """Its standard error, as a share."""
    chunks: int
    """Steps of all requests at full load."""
    busy_s: float
    """What all requests together take if as many run as should until the end of each."""
    output_tokens: float
    """Of a request, on average."""
    tpot_s: tuple[float, ...]
    """Of each request, scaled to what all of them take at full load."""
    first_s: tuple[float, ...]
    """Times to the first token."""
    requests: tuple[Steps, ...] = ()
    """Step by step; those that had nothing drafted too. Empty if the server does not report them."""

    @property
    def load(self) -> int:
        """Requests that run at the same time."""
        return self.point.concurrency or 1

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the time that they take at full load."""
        return self.output_tokens * len(self.first_s) * self.load / self.busy_s

    @property
    def held_up_s(self) -> float:
        """What a request spends beside its steps, on average: prefills, its own and those of the others."""
        return max(0.0, self.busy_s - self.chunks * (self.step_s or 0.0)) / len(self.first_s)


def observed(passes: Sequence[Pass], *, tokens: int) -> Observed | None:
    """All passes of one launch at one load; None if no answer came whole.

    A pass ends with fewer requests, for which a schedule may have other K: the steps that were left then are computed
    at full load. How many they are is known if the server reports steps, else from the chunks that came.
    """
    good = [request for each in passes for request in each.requests if request.ok and request.output_tokens]
    if not good:
        return None
    point = passes[0].point
    timed = [
        _timed([each for each in done.requests if each.ok], load=point.concurrency or 1) for done in passes
    ]
    # chunks that came together have no time between them
    each_s = [step_s for times, _, _ in timed for step_s in times if step_s > 0]
    steps = _steps_by_request(good, passes) if tokens else ()
    step_s, error = None, 0.0
    chunks, busy_s = 0, math.fsum(each.latency_s for each in good)
    if each_s:
        step_s = statistics.median(each_s)
        spread = _MAD * statistics.median(abs(value - step_s) for value in each_s)
        error = _MEDIAN_ERROR * spread / step_s / len(each_s) ** 0.5
        chunks = sum(len(each.chunk_gaps_ms) for each in good)
        inside, within_s = sum(count for _, count, _ in timed), math.fsum(part for _, _, part in timed)
        if steps and len(steps) == sum(each.output_tokens > 1 for each in good):
            chunks = max(inside, sum(each.steps_with(tokens) for each in steps))
        busy_s = within_s + (chunks - inside) * step_s
    if busy_s <= 0:
        return None
    later_s = busy_s - sum(each.ttft_s for each in good)
    were_s = sum(each.latency_s - each.ttft_s for each in good)
    scale = later_s / were_s if were_s > 0 and later_s > 0 else 1.0
    return Observed(
        point, tokens, step_s, error, chunks, busy_s,
        output_tokens=statistics.fmean(each.output_tokens for each in good),
        tpot_s=tuple(value * scale for each in good if (value := each.tpot_s) is not None),
        first_s=tuple(each.ttft_s for each in good),
        requests=steps,
    )  # fmt: skip


def _timed(requests: Sequence[Request], *, load: int) -> tuple[list[float], int, float]:
    """One pass: seconds of a step by request, and how many steps and seconds passed at full load.

    A step counts if as many requests as should run at its begin and end, and none of them is in its prefill.
    """
    np = library("numpy")
    starts = np.array([request.start_s for request in requests])
    firsts, ends = (
        np.sort(starts + [getattr(request, name) for request in requests]) for name in ("ttft_s", "latency_s")
    )
    # a closed loop sends the next request when one ends, until there is none left
    full_until_s = ends[-load] if len(ends) >= load else 0.0
    starts.sort()
    kinds: tuple[list[float], ...] = ([], [], [])
    counts, inside, within_s = [0, 0, 0], 0, 0.0
    for request in requests:
        gaps_s = np.array(request.chunk_gaps_ms) / 1000
        came_s = request.start_s + request.ttft_s + np.cumsum(gaps_s)
        end, begin = came_s - _TINY_S, came_s - gaps_s + _TINY_S
        started = [np.searchsorted(starts, at, side="right") for at in (begin, end)]
        is_full = np.ones(len(gaps_s), dtype=bool)
        for at, count in zip((begin, end), started, strict=True):
            is_full &= count - np.searchsorted(ends, at, side="right") == load
        is_alone = is_full & (started[1] <= np.searchsorted(firsts, begin, side="right"))
        for kind, chosen in enumerate((is_alone, is_full, np.ones_like(is_full))):
            counts[kind] += int(chosen.sum())
            kinds[kind].extend([float(gaps_s[chosen].mean())] if chosen.any() else [])
        came = came_s <= full_until_s + _TINY_S
        inside += int(came.sum())
        within_s += request.ttft_s + float(gaps_s[came].sum())
    times_s = next((kinds[kind] for kind in (0, 1) if counts[kind] >= _LEAST_CHUNKS), kinds[2])
    return times_s, inside, within_s


def _steps_by_request(good: Sequence[Request], passes: Sequence[Pass]) -> tuple[Steps, ...]:
    """Each request's steps. vLLM says nothing of a request that had nothing drafted: its steps made one token each.

    Source: vllm/v1/metrics/stats.py 0.32, `if self.per_step_accepted`.
    """
    counted = [each.acceptance for each in passes]
    if not any(each.steps for each in good) and any(each is None or each.drafts for each in counted):
        return ()
    found = (steps_of(each.steps, output_tokens=each.output_tokens, prompt=each.prompt) for each in good)
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
        factors = [(each, _between(curve, tokens)) for each, curve in sorted(self.corrections.items())]
        return self.form_s(batch, tokens) * _between(factors, batch)


def _between(curve: Curve, at: float) -> float:
    """Linear between the two nearest points, flat beyond the outer ones; 1 without points."""
    return float(library("numpy").interp(at, *zip(*curve, strict=True))) if curve else 1.0


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
    rows = []
    for each in timed:
        line = [1, each.verified, *(max(0, each.verified - knee) for knee in knees)]
        draft = [several and each.tokens > 0, each.tokens, each.tokens * each.batch]
        part = _between(kernels, each.verified)
        rows.append([value / each.step_s for value in (*(part * value for value in line), *draft)])
    found, _ = library("scipy.optimize").nnls(rows, [1.0] * len(rows))
    fixed, per_token, *slopes = map(float, found)
    *slopes, speculating, draft_s, request_s = slopes
    form = StepModel(
        fixed, per_token, tuple(zip(knees, slopes, strict=True)), speculating, draft_s, request_s, kernels
    )
    if min(form.form_s(each.batch, each.tokens) for each in timed) <= 0:  # no step is free
        return StepModel(statistics.fmean(each.step_s for each in timed), 0.0, (), 0.0, 0.0, 0.0)
    return form


def _kernels(timed: Sequence[Timed], form: StepModel) -> Curve:
    """By verified tokens, in order: what the target's part took over the line of the form."""
    line = replace(form, kernels=())
    ratios = []
    for each in timed:
        if (line_s := line.verify_s(each.batch, each.tokens)) > 0:
            ratio = (each.step_s - form.draft_s(each.batch, each.tokens)) / line_s
            ratios.append((each.verified, min(_MOST_OFF, max(1 / _MOST_OFF, ratio))))
    return _means(ratios)


def _means(points: Iterable[tuple[int, float]]) -> Curve:
    """In order, the mean of points at the same place."""
    found: dict[int, list[float]] = {}
    for place, value in points:
        found.setdefault(place, []).append(value)
    return tuple((place, statistics.fmean(held)) for place, held in sorted(found.items()))
