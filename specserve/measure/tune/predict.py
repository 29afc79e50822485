"""From the passes of a tune to every K at every load: length, step time and rate, with what each rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specserve.measure.bench.figures import has_limits
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass
from specserve.measure.expect import strictest
from specserve.measure.statistics import Estimate, library
from specserve.measure.tune.observe import Observed, StepModel, Steps, Timed, fit, observed
from specserve.measure.tune.plan import CONFIRMING, Candidate, CandidateInfo, TuneLaunch, TunePlan
from specserve.profile.schema import Expectation

_DRAWS = 300
TIMED_ERROR = 0.03
"""Of a step time that was measured, at least, as a share."""
STEP_ERROR = 0.05
"""Of a step time between measured ones."""
STEP_ERROR_ALONE = 0.08
"""The same if a launch has one K at every load."""
ZERO = Estimate(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What one K gives at one load; of K = 0 it was measured."""

    tpot_ms: float
    plain_tpot_ms: float
    """The same without speculation at this load."""
    output_tokens_per_s: float
    speedup: Estimate
    """Over no speculation at this load."""
    within_limits: float | None = None
    """Share of requests within the profile's limits; None without limits."""
    plain_within_limits: float | None = None
    """The same without speculation, measured."""


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """At full load; None if this K was not measured at this load."""

    output_tokens_per_s: float | None = None
    tpot_ms: float | None = None
    """The mean over requests."""


@dataclass(frozen=True, slots=True)
class Row:
    """One K of one candidate at one load of one workload: predicted, and measured if it was."""

    candidate: str
    workload: str
    temperature: float
    concurrency: int
    num_speculative_tokens: int
    mean_acceptance_length: Estimate
    """Its bounds by a bootstrap over prompts."""
    mean_acceptance_length_basis: str
    """`measured` or `stitched`."""
    break_even_mean_acceptance_length: float
    """The length from which this K pays here, prefills included; infinite if these alone cost more."""
    step_ms: float
    step_basis: str
    """`measured` or `predicted`."""
    predicted: Predicted
    measured: MeasuredRates = field(default_factory=MeasuredRates)

    @property
    def point(self) -> Point:
        """Where it is."""
        return Point(self.workload, self.temperature, self.concurrency)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One candidate after its launches."""

    candidate: Candidate
    rows: tuple[Row, ...]
    models: Mapping[str, StepModel]
    """By `workload/temperature`."""
    per_position: Mapping[str, tuple[float, ...]]
    """By `candidate/workload/temperature`: the share of steps that accepted that many tokens or more."""
    zero_cost: float | None
    """Rate of a K = 0 range over that of a server without speculation, measured; None: not measured."""

    @property
    def info(self) -> CandidateInfo:
        """For the result."""
        own, errors = self.candidate, [model.error for model in self.models.values()]
        model, sampled = (own.keys.get(key) for key in ("model", "draft_sample_method"))
        return CandidateInfo(
            name=own.name,
            method=str(own.keys["method"]),
            draft_model=str(model) if model else None,
            draft_sample_method=str(sampled) if sampled else None,
            runner=own.runner,
            measured_with=own.most_tokens,
            follows_schedule=own.ladder_obstacle is None,
            zero_cost=self.zero_cost,
            has_ladder=bool(own.launches[0].tokens_by_load),
            step_model_error=statistics.median_low(errors) if errors else None,
        )


def place_of(point: Point) -> str:
    """`workload/temperature`."""
    return f"{point.workload}/{point.temperature:g}"


def limits_at(expect: Iterable[Expectation], point: Point) -> Expectation | None:
    """The strictest limits of latencies that are promised at a point; None without any."""
    found = strictest(expect, point.workload, point.temperature, point.concurrency)
    return found if has_limits(found) else None


def share_within(
    limits: Expectation | None, *, tpots_s: Collection[float], ttfts_s: Collection[float]
) -> float | None:
    """Share of requests that keep `max_tpot_p99_ms` and `max_ttft_p99_ms`; None without such limits.

    The two are taken as independent: times per token are predicted request by request, first tokens are not.
    """
    if limits is None:
        return None
    shares = [
        sum(time_s * 1000 <= limit for time_s in times_s) / len(times_s)
        for limit, times_s in ((limits.max_tpot_p99_ms, tpots_s), (limits.max_ttft_p99_ms, ttfts_s))
        if limit is not None and times_s
    ]
    return math.prod(shares) if shares else None


def plain_rows(plan: TunePlan, passes: Sequence[Pass]) -> tuple[Row, ...]:
    """K = 0 at every point: the server without speculation, all of it measured."""
    found, seen_at = [], _observed(plan, passes, plan.baseline)
    for point in plan.points:
        seen = seen_at.get(point)
        tpot_ms = _mean_ms(seen.tpot_s) if seen else None
        if seen is not None and seen.step_s is not None and tpot_ms is not None:
            limits, rate = limits_at(plan.expect, point), seen.tokens_per_s
            within = share_within(limits, tpots_s=seen.tpot_s, ttfts_s=seen.first_s)
            found.append(
                Row(
                    "", point.workload, point.temperature, seen.load, 0, ZERO, "measured", 1.0,
                    seen.step_s * 1000, "measured", Predicted(tpot_ms, tpot_ms, rate, ZERO, within, within),
                    MeasuredRates(rate, tpot_ms),
                )
            )  # fmt: skip
    return tuple(found)


def predict(plan: TunePlan, passes: Sequence[Pass], candidate: Candidate) -> Prediction:
    """Every K of a candidate at every load."""
    baseline = _observed(plan, passes, plan.baseline)
    every = [seen for launch in candidate.launches for seen in _observed(plan, passes, launch).values()]
    plain = {point: baseline[point] for point in plan.points if point in baseline}
    drafted = [seen for seen in every if seen.point in plain]
    # a K = 0 range is not a server without speculation
    between = [*baseline.values(), *(seen for seen in every if seen.tokens)]
    others = [seen for seen in between if seen.point not in plan.points]
    ratios = [
        seen.held_up_s / plain[seen.point].held_up_s for seen in drafted if plain[seen.point].held_up_s > 0
    ]
    measured = Measured(plan, candidate, plain, drafted, max(1.0, statistics.median(ratios or [1.0])))
    rows: list[Row] = []
    models: dict[str, StepModel] = {}
    positions: dict[str, tuple[float, ...]] = {}
    for place in dict.fromkeys(map(place_of, plain)):
        here = [seen for seen in (*plain.values(), *drafted) if place_of(seen.point) == place and seen.step_s]
        if {bool(seen.tokens) for seen in here} == {True, False}:
            timed = [Timed(seen.load, seen.tokens, seen.step_s) for seen in (*here, *others) if seen.step_s]
            models[place] = fit(timed)
            rows += measured.rows(place, models[place])
            if rates := measured.per_position(place):
                positions[f"{candidate.name}/{place}"] = rates
    zero_cost, zero = None, next((seen for seen in every if not seen.tokens and seen.step_s), None)
    if models and zero is not None and zero.step_s:
        zero_cost = min(1.0, next(iter(models.values())).at(zero.load, 0) / zero.step_s)
    return Prediction(candidate, tuple(rows), models, positions, zero_cost)


def _observed(plan: TunePlan, passes: Sequence[Pass], launch: TuneLaunch) -> dict[Point, Observed]:
    """What a launch did at each of its points and loads between, without the confirmation."""
    number, found = plan.launches.index(launch), {}
    for point in dict.fromkeys(point for _, point in plan.passes(launch)):
        here = [each for each in passes if (each.launch, each.point) == (number, point)]
        mine = [each for each in here if each.block < CONFIRMING]
        seen = observed(mine, tokens=launch.tokens_at(point.concurrency or 1))
        if seen is not None:
            found[point] = seen
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured of one candidate and of the server without speculation."""

    plan: TunePlan
    candidate: Candidate
    plain: Mapping[Point, Observed]
    """Without speculation."""
    drafted: Sequence[Observed]
    prefills: float
    """What prefills take with a draft that has its own, over what they take without; at least 1."""

    def requests(self, place: str) -> list[Steps]:
        """Those of a workload that drafted the most: what was offered less says nothing of more."""
        here = [seen for seen in self.drafted if place_of(seen.point) == place]
        most = max((seen.tokens for seen in here), default=0)
        return [each for seen in here if seen.tokens == most for each in seen.requests]

    def rows(self, place: str, steps: StepModel) -> Iterator[Row]:
        """Every K up to what was measured, at every load that was measured without speculation."""
        requests = self.requests(place)
        lengths = {
            tokens: length_interval(requests, tokens=tokens, draws=_DRAWS)
            for tokens in range(1, self.candidate.most_tokens + 1)
        }
        for point in self.plain:
            for tokens, length in lengths.items():
                if place_of(point) == place and length is not None:
                    yield self._row(point, tokens, length, steps, requests)

    def per_position(self, place: str) -> tuple[float, ...]:
        """The share of steps with K_max drafts that accepted 1, 2, … tokens or more."""
        most = self.candidate.most_tokens
        took = [
            accepted
            for each in self.requests(place)
            for accepted, offered in zip(each.accepted, each.drafted, strict=True)
            if offered == most
        ]
        places = range(1, most + 1) if took else ()
        return tuple(sum(each >= at for each in took) / len(took) for at in places)

    def _row(
        self, point: Point, tokens: int, length: Estimate, steps: StepModel, requests: Sequence[Steps]
    ) -> Row:
        plain, limits = self.plain[point], limits_at(self.plan.expect, point)
        load = plain.load
        same = [each for each in self.drafted if (each.point, each.tokens) == (point, tokens)]
        seen = same[0] if same else None
        step_s, plain_s = steps.at(load, tokens), steps.at(load, 0)
        held_up_s, later_tokens = plain.held_up_s * self.prefills, plain.output_tokens - 1
        # a request in a closed loop takes its steps, and what prefills hold it up, its own and those of others
        plain_request_s = plain.held_up_s + later_tokens * plain_s
        speedup = plain_request_s / (held_up_s + later_tokens / length.value * step_s)
        for_steps_s, spread = plain_request_s - held_up_s, math.exp(self._spread(plain, seen, length))
        waiting_s = self._waiting_s(point, tokens)
        within = share_within(
            limits,
            # times per token by each request's own acceptance; first tokens wait for longer steps
            tpots_s=[
                step_s * each.steps_with(tokens) / each.tokens + waiting_s
                for each in (requests if limits else ())
                if each.tokens
            ],
            ttfts_s=[at_s + ((step_s - plain_s) / 2 if load > 1 else 0.0) for at_s in plain.first_s],
        )
        return Row(
            candidate=self.candidate.name,
            workload=point.workload,
            temperature=point.temperature,
            concurrency=load,
            num_speculative_tokens=tokens,
            mean_acceptance_length=length,
            mean_acceptance_length_basis="measured" if tokens == self.candidate.most_tokens else "stitched",
            break_even_mean_acceptance_length=later_tokens * step_s / for_steps_s
            if for_steps_s > 0
            else math.inf,
            step_ms=step_s * 1000,
            step_basis="measured" if seen is not None and seen.step_s is not None else "predicted",
            predicted=Predicted(
                tpot_ms=(step_s / length.value + waiting_s) * 1000,
                plain_tpot_ms=(plain_s + self._waiting_s(point, 0)) * 1000,
                output_tokens_per_s=plain.tokens_per_s * speedup,
                speedup=Estimate(speedup, speedup / spread, speedup * spread),
                within_limits=within,
                plain_within_limits=share_within(limits, tpots_s=plain.tpot_s, ttfts_s=plain.first_s),
            ),
            measured=MeasuredRates(seen.tokens_per_s, _mean_ms(seen.tpot_s)) if seen else MeasuredRates(),
        )

    def _waiting_s(self, point: Point, tokens: int) -> float:
        """Seconds of each token after the first that a request waits for the prefills of others.

        Of what holds a request up, the share that comes after its first token: without speculation requests that began
        together end together, so that the next ones mostly wait for each other; with it they do not.
        """
        plain = self.plain[point]
        seen = [each for each in self.drafted if tokens and each.point == point] or [plain]
        held_up_s = math.fsum(each.held_up_s for each in seen)
        if plain.output_tokens <= 1 or held_up_s <= 0:
            return 0.0
        later_s = math.fsum(max(0.0, each.held_up_s - statistics.fmean(each.first_s)) for each in seen)
        waiting_s = plain.held_up_s * (self.prefills if tokens else 1.0)
        return waiting_s * later_s / held_up_s / (plain.output_tokens - 1)

    def _spread(self, plain: Observed, seen: Observed | None, length: Estimate) -> float:
        """Half the width of the logarithm of a speedup: of the length by prompts, and of both step times."""
        known = length.low > 0 and math.isfinite(length.high)
        by_length = math.log(length.high / length.low) / 2 if known else math.log(2.0)
        between = STEP_ERROR if self.candidate.ladder_obstacle is None else STEP_ERROR_ALONE
        by_step = between if seen is None else max(TIMED_ERROR, 2 * seen.step_error)
        return math.hypot(by_length, by_step, 2 * plain.step_error)


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return statistics.fmean(seconds) * 1000 if seconds else None


def length_interval(requests: Sequence[Steps], *, tokens: int, draws: int = 1000) -> Estimate | None:
    """The mean acceptance length with so many draft tokens and its 95 % bounds; None without a step.

    Bootstrap over prompts, with all requests that sent one; always the same draws. One prompt says nothing of others.
    """
    sums: dict[str, tuple[int, int]] = {}
    for index, each in enumerate(requests):
        if each.tokens:
            name = each.prompt or f"#{index}"
            made, steps = sums.get(name, (0, 0))
            sums[name] = made + each.tokens, steps + each.steps_with(tokens)
    if not sums:
        return None
    np = library("numpy")
    counts = np.array(list(sums.values()), dtype=float)
    value = float(counts[:, 0].sum() / counts[:, 1].sum())
    if len(counts) < 2:
        return Estimate(value, 0.0, math.inf)
    picked = np.random.default_rng(20260101).integers(len(counts), size=(draws, len(counts)))
    drawn = counts[picked].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return Estimate(value, min(value, float(low)), max(value, float(high)))
