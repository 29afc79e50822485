"""From the passes of a tune to every K at every load: length, step time, rate, with what each rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specserve.measure.bench.result import Interval, Point
from specserve.measure.bench.rundir import Pass
from specserve.measure.tune import observe
from specserve.measure.tune.choose import Known, limits_at, share_within
from specserve.measure.tune.observe import Observed, StepModel, Timed, observed
from specserve.measure.tune.plan import AGAIN, BASELINE, EXTRA, Candidate, Wish, small_tokens
from specserve.measure.tune.result import Row
from specserve.measure.tune.walk import Steps, length_interval
from specserve.profile.schema import Expectation

_DRAWS = 300
TIMED_ERROR = 0.03
"""Of a step time that was measured, at least, as a share."""
STEP_ERROR = 0.05
"""Of a step time between measured ones."""
STEP_ERROR_ALONE = 0.08
"""The same if a launch has one K at every load."""


def key(point: Point) -> str:
    """`workload/temperature`."""
    return f"{point.workload}/{point.temperature:g}"


def plain_of(wish: Wish, passes: Sequence[Pass]) -> dict[str, dict[int, Observed]]:
    """The server without speculation, by `workload/temperature` and load."""
    found: dict[str, dict[int, Observed]] = {}
    for point in wish.points():
        seen = observed(_at(passes, 0, point, arm=BASELINE), tokens=0)
        if seen is not None:
            found.setdefault(key(point), {})[seen.concurrency] = seen
    return found


def plain_rows_of(wish: Wish, passes: Sequence[Pass]) -> tuple[Row, ...]:
    """K = 0 at every point: the server without speculation, all of it measured."""
    every = plain_of(wish, passes)
    return tuple(
        row
        for place, at_load in every.items()
        for row in Measured("", at_load, (), limits=_limits(wish, place)).plain_rows()
    )


def known_of(wish: Wish, passes: Sequence[Pass], candidate: Candidate, *, launches: Sequence[int]) -> Known:
    """One candidate: every K at every load. `launches`: its numbers; a second one drafts a small K."""
    others = list(_others(wish, passes, candidate, launch=launches[0]))
    every = {
        place: Measured(
            candidate.name,
            plain,
            list(_drafted(wish, passes, candidate, place, launches=launches)),
            others,
            candidate.most_tokens,
            candidate.follows_schedule,
            _limits(wish, place),
        )
        for place, plain in plain_of(wish, passes).items()
    }
    prefills = _prefills(list(every.values()))
    rows: list[Row] = []
    models: dict[str, StepModel] = {}
    positions: dict[str, tuple[float, ...]] = {}
    for place, found in every.items():
        measured = replace(found, prefills=prefills)
        steps = measured.model()
        if steps is not None:
            models[place] = steps
            rows += measured.rows(steps)
            if rates := measured.per_position():
                positions[f"{candidate.name}/{place}"] = rates
    zero_cost = _zero_cost(passes, candidate, next(iter(models.values()), None), launch=launches[0])
    return Known(candidate, tuple(rows), models, positions, zero_cost)


def _drafted(
    wish: Wish, passes: Sequence[Pass], candidate: Candidate, place: str, *, launches: Sequence[int]
) -> Iterator[Observed]:
    for index, launch in enumerate(launches):
        for point in wish.points():
            if key(point) == place:
                small = small_tokens(candidate.most_tokens)
                tokens = small if index else candidate.tokens_at(point.concurrency or 1)
                seen = observed(_at(passes, launch, point), tokens=tokens)
                if seen is not None:
                    yield seen


def _at(passes: Sequence[Pass], launch: int, point: Point, *, arm: str | None = None) -> list[Pass]:
    """Those to choose by: neither loads between, nor the confirmation."""
    return [
        each
        for each in passes
        if (each.launch, each.point) == (launch, point) and each.block < EXTRA and arm in (None, each.arm)
    ]


def _limits(wish: Wish, place: str) -> dict[int, Expectation]:
    """Of one workload and temperature, by concurrency."""
    points = {point.concurrency or 1: point for point in wish.points() if key(point) == place}
    found = {load: limits_at(wish.expect, point) for load, point in points.items()}
    return {load: item for load, item in found.items() if item is not None}


def _others(wish: Wish, passes: Sequence[Pass], candidate: Candidate, *, launch: int) -> Iterator[Timed]:
    """Step times of the loads between; a K = 0 range is left out: it is not a server without speculation."""
    for number, who in ((0, None), (launch, candidate)):
        for load, tokens in wish.extras(who).items():
            step_s = _between_s(passes, launch=number, load=load, tokens=tokens)
            if step_s and (tokens or who is None):
                yield Timed(load, tokens, step_s)


def _between_s(passes: Sequence[Pass], *, launch: int, load: int, tokens: int) -> float | None:
    """Seconds of a step at a load between; None if it was not measured."""
    numbers = (EXTRA + load, AGAIN + load)
    mine = [each for each in passes if each.launch == launch and each.block in numbers]
    seen = observed(mine, tokens=tokens) if mine else None
    return seen.step_s if seen is not None else None


def _zero_cost(
    passes: Sequence[Pass], candidate: Candidate, model: StepModel | None, *, launch: int
) -> float | None:
    """The rate of a K = 0 range over that of no speculation: a plain step over the range's, at its load."""
    load = next((load for load, tokens in candidate.rungs.items() if not tokens), None)
    if load is None or model is None:
        return None
    step_s = _between_s(passes, launch=launch, load=load, tokens=0)
    return min(1.0, model.at(load, 0) / step_s) if step_s else None


def _prefills(every: Sequence[Measured]) -> float:
    """What prefills take with this candidate, over what they take without: the median over all points, 1 at least."""
    ratios = [
        seen.held_up_s / measured.plain[seen.concurrency].held_up_s
        for measured in every
        for seen in measured.drafted
        if seen.concurrency in measured.plain and measured.plain[seen.concurrency].held_up_s > 0
    ]
    return max(1.0, statistics.median(ratios)) if ratios else 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured of one candidate and of the server without speculation, for one workload."""

    candidate: str
    plain: Mapping[int, Observed]
    """Without speculation, by concurrency."""
    drafted: Sequence[Observed]
    others: Sequence[Timed] = ()
    """Step times at loads between, of whatever workload."""
    most_tokens: int = 1
    follows_schedule: bool = True
    limits: Mapping[int, Expectation] = field(default_factory=dict)
    """Of the profile, by concurrency."""
    prefills: float = 1.0
    """What prefills take with a draft that has its own, over what they take without; at least 1."""

    def model(self) -> StepModel | None:
        """The step times of the candidate; None if no step could be timed, with speculation or without."""
        plain = [Timed(load, 0, seen.step_s) for load, seen in self.plain.items() if seen.step_s]
        drafted = [Timed(seen.concurrency, seen.tokens, seen.step_s) for seen in self.drafted if seen.step_s]
        return observe.fit([*plain, *drafted, *self.others]) if plain and drafted else None

    def rows(self, steps: StepModel) -> Iterator[Row]:
        """Every K up to what was measured, at every load that was measured without speculation."""
        requests = self._requests()
        lengths = {
            tokens: length_interval(requests, tokens=tokens, draws=_DRAWS)
            for tokens in range(1, self.most_tokens + 1)
        }
        for load in sorted(self.plain):
            for tokens, length in lengths.items():
                if length is not None:
                    yield self._row(load, tokens, length, steps)

    def plain_rows(self) -> Iterator[Row]:
        """The server without speculation as K = 0 at every load."""
        one = Interval(1.0, 1.0, 1.0)
        for load, seen in sorted(self.plain.items()):
            tpot_ms = _mean_ms(seen.tpot_s)
            if seen.step_s is None or tpot_ms is None:
                continue
            within = share_within(self.limits.get(load), tpots_s=seen.tpot_s, ttfts_s=seen.first_s)
            yield Row(
                "", seen.workload, seen.temperature, load, 0, one, "measured", seen.step_s * 1000, "measured",
                break_even=1.0, tpot_ms=tpot_ms, plain_tpot_ms=tpot_ms, tokens_per_s=seen.tokens_per_s,
                speedup=one, measured_tokens_per_s=seen.tokens_per_s, measured_tpot_ms=tpot_ms,
                within_limits=within, plain_within_limits=within,
            )  # fmt: skip

    def per_position(self) -> tuple[float, ...]:
        """The share of steps with K_max drafts that accepted 1, 2, … tokens or more."""
        took = [
            accepted
            for each in self._requests()
            for accepted, offered in zip(each.accepted, each.drafted, strict=True)
            if offered == self.most_tokens
        ]
        places = range(1, self.most_tokens + 1) if took else ()
        return tuple(sum(each >= place for each in took) / len(took) for place in places)

    def _most(self) -> list[Observed]:
        """What drafted the most: what was offered less says nothing of more."""
        most = max((seen.tokens for seen in self.drafted), default=0)
        return [seen for seen in self.drafted if seen.tokens == most]

    def _requests(self) -> list[Steps]:
        return [each for seen in self._most() for each in seen.requests]

    def _row(self, load: int, tokens: int, length: Interval, steps: StepModel) -> Row:
        plain = self.plain[load]
        seen = next(
            (each for each in self.drafted if (each.concurrency, each.tokens) == (load, tokens)), None
        )
        step_s, plain_s = steps.at(load, tokens), steps.at(load, 0)
        held_up_s = plain.held_up_s * self.prefills
        plain_request_s = _request_s(plain, 1.0, plain_s, plain.held_up_s)
        speedup = plain_request_s / _request_s(plain, length.value, step_s, held_up_s)
        for_steps_s = plain_request_s - held_up_s
        spread = self._spread(plain, seen, length)
        basis = "measured" if tokens == self.most_tokens else "stitched"
        is_timed = seen is not None and seen.step_s is not None
        return Row(
            candidate=self.candidate,
            workload=plain.workload,
            temperature=plain.temperature,
            concurrency=load,
            tokens=tokens,
            mean_length=length,
            length_basis=basis,
            step_ms=step_s * 1000,
            step_basis="measured" if is_timed else "predicted",
            break_even=(plain.output_tokens - 1) * step_s / for_steps_s if for_steps_s > 0 else math.inf,
            tpot_ms=(step_s / length.value + self._waiting_s(load, tokens)) * 1000,
            plain_tpot_ms=(plain_s + self._waiting_s(load, 0)) * 1000,
            tokens_per_s=plain.tokens_per_s * speedup,
            speedup=Interval(speedup, speedup * math.exp(-spread), speedup * math.exp(spread)),
            measured_tokens_per_s=seen.tokens_per_s if seen is not None else None,
            measured_tpot_ms=_mean_ms(seen.tpot_s) if seen is not None else None,
            within_limits=self._within(
                load, tokens, step_s=step_s, later_s=(step_s - plain_s) / 2 if load > 1 else 0.0
            ),
            plain_within_limits=share_within(
                self.limits.get(load), tpots_s=plain.tpot_s, ttfts_s=plain.first_s
            ),
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
        between = STEP_ERROR if self.follows_schedule else STEP_ERROR_ALONE
        by_step = between if seen is None else max(TIMED_ERROR, 2 * seen.step_error)
        return math.hypot(by_length, by_step, 2 * plain.step_error)

    def _within(self, load: int, tokens: int, *, step_s: float, later_s: float) -> float | None:
        """Share within the profile's limits: times per token by each request's own acceptance; first tokens as without
        speculation, later by what longer steps keep them waiting.
        """
        waiting_s = self._waiting_s(load, tokens)
        return share_within(
            self.limits.get(load),
            tpots_s=[
                step_s * each.steps_with(tokens) / each.tokens + waiting_s
                for each in self._requests()
                if each.tokens
            ],
            ttfts_s=[first_s + later_s for first_s in self.plain[load].first_s],
        )


def _request_s(plain: Observed, length: float, step_s: float, held_up_s: float) -> float:
    """Seconds of one request in a closed loop: its steps, and what prefills hold it up, its own and those of others."""
    return held_up_s + (plain.output_tokens - 1) / length * step_s


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return statistics.fmean(seconds) * 1000 if seconds else None
