"""From the passes of a tune to every K at every load: length, step time and rate, with what each rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specserve.measure.bench.figures import has_limits
from specserve.measure.bench.result import Interval, Point
from specserve.measure.bench.rundir import Pass
from specserve.measure.tune.observe import Observed, StepModel, Steps, Timed, fit, length_interval, observed
from specserve.measure.tune.plan import AGAIN, EXTRA, Candidate, CandidateInfo, Launch, TunePlan
from specserve.profile.schema import Expectation

_DRAWS = 300
TIMED_ERROR = 0.03
"""Of a step time that was measured, at least, as a share."""
STEP_ERROR = 0.05
"""Of a step time between measured ones."""
STEP_ERROR_ALONE = 0.08
"""The same if a launch has one K at every load."""
ZERO = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What one K gives at one load; of K = 0 it was measured."""

    tpot_ms: float
    plain_tpot_ms: float
    """The same without speculation at this load."""
    output_tokens_per_s: float
    speedup: Interval
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
    mean_acceptance_length: Interval
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
            follows_schedule=own.follows_schedule,
            zero_cost=self.zero_cost,
            has_ladder=bool(own.launches[0].tokens_by_load),
            step_model_error=statistics.median_low(errors) if errors else None,
        )


def place_of(point: Point) -> str:
    """`workload/temperature`."""
    return f"{point.workload}/{point.temperature:g}"


def limits_at(expect: Iterable[Expectation], point: Point) -> Expectation | None:
    """The promise of latencies that holds at a point, the most particular one; None without any."""

    def given(item: Expectation) -> list[tuple[object, object]]:
        pairs = (
            (item.workload, point.workload), (item.temperature, point.temperature),
            (item.concurrency, point.concurrency),
        )  # fmt: skip
        return [(wanted, there) for wanted, there in pairs if wanted is not None]

    found = [
        item for item in expect if has_limits(item) and all(wanted == there for wanted, there in given(item))
    ]
    return max(found, key=lambda item: len(given(item)), default=None)


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
    found = []
    for point, seen in _points_of(plan, passes, plan.baseline).items():
        tpot_ms = _mean_ms(seen.tpot_s)
        if seen.step_s is not None and tpot_ms is not None:
            limits, rate = limits_at(plan.expect, point), seen.tokens_per_s
            within = share_within(limits, tpots_s=seen.tpot_s, ttfts_s=seen.first_s)
            found.append(
                Row(
                    "", point.workload, point.temperature, seen.concurrency, 0, ZERO, "measured", 1.0,
                    seen.step_s * 1000, "measured", Predicted(tpot_ms, tpot_ms, rate, ZERO, within, within),
                    MeasuredRates(rate, tpot_ms),
                )
            )  # fmt: skip
    return tuple(found)


def predict(plan: TunePlan, passes: Sequence[Pass], candidate: Candidate) -> Prediction:
    """Every K of a candidate at every load."""
    plain = _points_of(plan, passes, plan.baseline)
    drafted = [
        (point, seen)
        for launch in candidate.launches
        for point, seen in _points_of(plan, passes, launch).items()
        if point in plain
    ]
    first = candidate.launches[0]
    others = [  # a K = 0 range is left out: it is not a server without speculation
        Timed(load, launch.tokens_at(load), step_s)
        for launch in (plan.baseline, first)
        for load in plan.extra_loads(launch)
        if (launch is plan.baseline or launch.tokens_at(load))
        and (step_s := _between_s(plan, passes, launch, load))
    ]
    ratios = [
        seen.held_up_s / plain[point].held_up_s for point, seen in drafted if plain[point].held_up_s > 0
    ]
    prefills = max(1.0, statistics.median(ratios)) if ratios else 1.0
    rows: list[Row] = []
    models: dict[str, StepModel] = {}
    positions: dict[str, tuple[float, ...]] = {}
    for place in dict.fromkeys(map(place_of, plain)):
        here = Measured(
            candidate,
            {seen.concurrency: seen for point, seen in plain.items() if place_of(point) == place},
            [seen for point, seen in drafted if place_of(point) == place],
            {
                point.concurrency or 1: limits_at(plan.expect, point)
                for point in plain
                if place_of(point) == place
            },
            prefills,
        )
        points = [
            Timed(each.concurrency, each.tokens, each.step_s)
            for each in (*here.plain.values(), *here.drafted)
            if each.step_s
        ]
        if {bool(each.tokens) for each in points} == {True, False}:
            models[place] = fit([*points, *others])
            rows += here.rows(models[place])
            if rates := here.per_position():
                positions[f"{candidate.name}/{place}"] = rates
    zero_cost = None
    load = next((load for load in plan.extra_loads(first) if not first.tokens_at(load)), None)
    if load is not None and models and (step_s := _between_s(plan, passes, first, load)):
        zero_cost = min(1.0, next(iter(models.values())).at(load, 0) / step_s)
    return Prediction(candidate, tuple(rows), models, positions, zero_cost)


def _points_of(plan: TunePlan, passes: Sequence[Pass], launch: Launch) -> dict[Point, Observed]:
    """What a launch did at each point, by the passes to choose by."""
    number = plan.launches.index(launch)
    found = {}
    for point in plan.points:
        mine = [
            each for each in passes if (each.launch, each.point) == (number, point) and each.block < EXTRA
        ]
        seen = observed(mine, tokens=launch.tokens_at(point.concurrency or 1))
        if seen is not None:
            found[point] = seen
    return found


def _between_s(plan: TunePlan, passes: Sequence[Pass], launch: Launch, load: int) -> float | None:
    """Seconds of a step at a load between; None if it was not measured."""
    number = plan.launches.index(launch)
    mine = [each for each in passes if each.launch == number and each.block in (EXTRA + load, AGAIN + load)]
    seen = observed(mine, tokens=launch.tokens_at(load))
    return seen.step_s if seen is not None else None


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured of one candidate and of the server without speculation, for one workload."""

    candidate: Candidate
    plain: Mapping[int, Observed]
    """Without speculation, by concurrency."""
    drafted: Sequence[Observed]
    limits: Mapping[int, Expectation | None]
    """Of the profile, by concurrency."""
    prefills: float
    """What prefills take with a draft that has its own, over what they take without; at least 1."""

    @property
    def requests(self) -> list[Steps]:
        """Those that drafted the most: what was offered less says nothing of more."""
        most = max((seen.tokens for seen in self.drafted), default=0)
        return [each for seen in self.drafted if seen.tokens == most for each in seen.requests]

    def rows(self, steps: StepModel) -> Iterator[Row]:
        """Every K up to what was measured, at every load that was measured without speculation."""
        lengths = {
            tokens: length_interval(self.requests, tokens=tokens, draws=_DRAWS)
            for tokens in range(1, self.candidate.most_tokens + 1)
        }
        for load in sorted(self.plain):
            for tokens, length in lengths.items():
                if length is not None:
                    yield self._row(load, tokens, length, steps)

    def per_position(self) -> tuple[float, ...]:
        """The share of steps with K_max drafts that accepted 1, 2, … tokens or more."""
        most = self.candidate.most_tokens
        took = [
            accepted
            for each in self.requests
            for accepted, offered in zip(each.accepted, each.drafted, strict=True)
            if offered == most
        ]
        places = range(1, most + 1) if took else ()
        return tuple(sum(each >= place for each in took) / len(took) for place in places)

    def _row(self, load: int, tokens: int, length: Interval, steps: StepModel) -> Row:
        plain, limits = self.plain[load], self.limits[load]
        same = [each for each in self.drafted if (each.concurrency, each.tokens) == (load, tokens)]
        seen = same[0] if same else None
        step_s, plain_s = steps.at(load, tokens), steps.at(load, 0)
        held_up_s, later_tokens = plain.held_up_s * self.prefills, plain.output_tokens - 1
        # a request in a closed loop takes its steps, and what prefills hold it up, its own and those of others
        plain_request_s = plain.held_up_s + later_tokens * plain_s
        speedup = plain_request_s / (held_up_s + later_tokens / length.value * step_s)
        for_steps_s, spread = plain_request_s - held_up_s, math.exp(self._spread(plain, seen, length))
        waiting_s = self._waiting_s(load, tokens)
        within = share_within(
            limits,
            # times per token by each request's own acceptance; first tokens wait for longer steps
            tpots_s=[
                step_s * each.steps_with(tokens) / each.tokens + waiting_s
                for each in (self.requests if limits else ())
                if each.tokens
            ],
            ttfts_s=[at_s + ((step_s - plain_s) / 2 if load > 1 else 0.0) for at_s in plain.first_s],
        )
        return Row(
            candidate=self.candidate.name,
            workload=plain.workload,
            temperature=plain.temperature,
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
                plain_tpot_ms=(plain_s + self._waiting_s(load, 0)) * 1000,
                output_tokens_per_s=plain.tokens_per_s * speedup,
                speedup=Interval(speedup, speedup / spread, speedup * spread),
                within_limits=within,
                plain_within_limits=share_within(limits, tpots_s=plain.tpot_s, ttfts_s=plain.first_s),
            ),
            measured=MeasuredRates(seen.tokens_per_s, _mean_ms(seen.tpot_s)) if seen else MeasuredRates(),
        )

    def _waiting_s(self, load: int, tokens: int) -> float:
        """Seconds of each token after the first that a request waits for the prefills of others.

        Of what holds a request up, the share that comes after its first token: without speculation requests that began
        together end together, so that the next ones mostly wait for each other; with it they do not.
        """
        plain = self.plain[load]
        seen = [each for each in self.drafted if tokens and each.concurrency == load] or [plain]
        held_up_s = math.fsum(each.held_up_s for each in seen)
        if plain.output_tokens <= 1 or held_up_s <= 0:
            return 0.0
        later_s = math.fsum(max(0.0, each.held_up_s - statistics.fmean(each.first_s)) for each in seen)
        waiting_s = plain.held_up_s * (self.prefills if tokens else 1.0)
        return waiting_s * later_s / held_up_s / (plain.output_tokens - 1)

    def _spread(self, plain: Observed, seen: Observed | None, length: Interval) -> float:
        """Half the width of the logarithm of a speedup: of the length by prompts, and of both step times."""
        known = length.low > 0 and math.isfinite(length.high)
        by_length = math.log(length.high / length.low) / 2 if known else math.log(2.0)
        between = STEP_ERROR if self.candidate.follows_schedule else STEP_ERROR_ALONE
        by_step = between if seen is None else max(TIMED_ERROR, 2 * seen.step_error)
        return math.hypot(by_length, by_step, 2 * plain.step_error)


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return statistics.fmean(seconds) * 1000 if seconds else None
