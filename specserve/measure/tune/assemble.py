"""From the passes of a tune to its result: what was observed, predicted, chosen, confirmed. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specserve.measure.bench.driver import Pass
from specserve.measure.bench.figures import compared, figures, invalid_reason, is_within
from specserve.measure.bench.result import Cell, Point
from specserve.measure.tune import predict
from specserve.measure.tune.choose import Ready, limits_at
from specserve.measure.tune.observe import Observed, observed, shared_steps_s, steady
from specserve.measure.tune.plan import (
    AGAIN,
    BASELINE,
    CONFIRMING,
    EXTRA,
    TUNED,
    Candidate,
    Wish,
    small_tokens,
)
from specserve.measure.tune.predict import Measured
from specserve.measure.tune.result import CandidateInfo, Choice, Confirmed, Row
from specserve.measure.tune.roofline import WITHOUT_MODEL
from specserve.measure.tune.steptime import StepModel, Timed
from specserve.profile.schema import Expectation


@dataclass(frozen=True, slots=True)
class Known:
    """One candidate after its launch."""

    candidate: Candidate
    rows: tuple[Row, ...]
    models: Mapping[str, StepModel]
    """By `workload/temperature`."""
    per_position: Mapping[str, tuple[float, ...]]
    zero_cost: float | None
    info: CandidateInfo

    @property
    def ready(self) -> Ready:
        """For the choice."""
        each = self.candidate
        return Ready(
            each.name, each.keys, self.rows, follows_schedule=each.follows_schedule, zero_cost=self.zero_cost,
            is_own=each.is_own, env=each.env,
        )  # fmt: skip


def plain_of(wish: Wish, passes: Sequence[Pass]) -> dict[str, dict[int, Observed]]:
    """The server without speculation, by `workload/temperature` and load."""
    found: dict[str, dict[int, Observed]] = {}
    shared = shared_steps_s(_to_choose_by(passes))
    for point in wish.points():
        mine = _at(passes, launch=0, arm=BASELINE, point=point)
        seen = observed(mine, tokens=0, step_s=shared.get((0, point.temperature, point.concurrency or 0)))
        if seen is not None:
            found.setdefault(key(point), {})[seen.concurrency] = seen
    return found


def key(point: Point) -> str:
    """`workload/temperature`."""
    return f"{point.workload}/{point.temperature:g}"


def known_of(wish: Wish, passes: Sequence[Pass], candidate: Candidate, *, launches: Sequence[int]) -> Known:
    """One candidate: every K at every load. `launches`: its numbers, with a second one of a small K where there is."""
    plain = plain_of(wish, passes)
    others = _others(wish, passes, candidate, launch=launches[0])
    rows: list[Row] = []
    models: dict[str, StepModel] = {}
    positions: dict[str, tuple[float, ...]] = {}
    every = {
        place: _measured(wish, passes, candidate, place, at_load, others=others, launches=launches)
        for place, at_load in plain.items()
    }
    prefills = predict.prefills(list(every.values()))
    for place, found in every.items():
        measured = replace(found, prefills=prefills)
        if not measured.drafted:
            continue
        steps = predict.model(measured)
        if steps is None:
            continue
        models[place] = steps
        rows += predict.rows(measured, steps=steps)
        positions[f"{candidate.name}/{place}"] = predict.per_position(measured)
    zero_cost = _zero_cost(wish, passes, candidate, models, launch=launches[0])
    return Known(
        candidate,
        tuple(rows),
        models,
        {name: rates for name, rates in positions.items() if rates},
        zero_cost,
        _info(candidate, models, zero_cost=zero_cost),
    )


def _measured(
    wish: Wish,
    passes: Sequence[Pass],
    candidate: Candidate,
    place: str,
    plain: Mapping[int, Observed],
    *,
    others: Sequence[Timed],
    launches: Sequence[int],
) -> Measured:
    drafted = []
    shared = shared_steps_s(_to_choose_by(passes))
    for index, launch in enumerate(launches):
        for point in wish.points():
            if key(point) == place:
                tokens = candidate.tokens_at(point.concurrency or 1) if index == 0 else small_of(candidate)
                found = _at(passes, launch=launch, arm=None, point=point)
                step_s = shared.get((launch, point.temperature, point.concurrency or 0))
                seen = observed(found, tokens=tokens, step_s=step_s, is_even=_is_even(candidate))
                drafted += [seen] if seen is not None else []
    return Measured(
        candidate.name, plain, drafted, others, candidate.most_tokens, candidate.follows_schedule,
        _limits(wish, place),
    )  # fmt: skip


def _limits(wish: Wish, place: str) -> dict[int, Expectation]:
    """Of one workload and temperature, by concurrency."""
    found = {
        point.concurrency or 1: limits_at(wish.expect, point)
        for point in wish.points()
        if key(point) == place
    }
    return {load: item for load, item in found.items() if item is not None}


def plain_rows_of(wish: Wish, passes: Sequence[Pass]) -> tuple[Row, ...]:
    """K = 0 at every point: the server without speculation."""
    return tuple(
        row
        for place, at_load in plain_of(wish, passes).items()
        for row in predict.plain_rows(Measured("", at_load, (), limits=_limits(wish, place)))
    )


def small_of(candidate: Candidate) -> int:
    """What the second launch of a candidate without a ladder drafts."""
    return small_tokens(candidate.most_tokens)


def _others(wish: Wish, passes: Sequence[Pass], candidate: Candidate, *, launch: int) -> list[Timed]:
    """Step times of the loads between; a K = 0 range is left out: it is no server without speculation."""
    found = []
    for number, who in ((0, None), (launch, candidate)):
        for load, tokens in wish.extras(who).items():
            seen = None
            if tokens or who is None:
                is_even = who is None or _is_even(who)
                seen = _extra(passes, launch=number, load=load, tokens=tokens, is_even=is_even)
            if seen is not None and seen.step_s:
                found.append(Timed(load, tokens, seen.step_s))
    return found


def _is_even(candidate: Candidate) -> bool:
    """Whether each step drafts as much as the others: not where drafts are looked up, and some steps find none."""
    return candidate.keys.get("method") not in WITHOUT_MODEL


def _extra(
    passes: Sequence[Pass], *, launch: int, load: int, tokens: int, is_even: bool = True
) -> Observed | None:
    mine = [
        each
        for each in passes
        if (each.launch, each.block) in ((launch, EXTRA + load), (launch, AGAIN + load))
    ]
    return observed(mine, tokens=tokens, is_even=is_even) if mine else None


def _zero_cost(
    wish: Wish, passes: Sequence[Pass], candidate: Candidate, models: Mapping[str, StepModel], *, launch: int
) -> float | None:
    """The rate of a K = 0 range over that of no speculation: a plain step over the range's, at its load."""
    load = next((load for load, tokens in candidate.rungs.items() if not tokens), None)
    first = next(iter(models.values()), None)
    seen = _extra(passes, launch=launch, load=load, tokens=0) if load is not None else None
    if seen is None or seen.step_s is None or first is None or load is None:
        return None
    return min(1.0, first.at(load, 0) / seen.step_s)


def _info(candidate: Candidate, models: Mapping[str, StepModel], *, zero_cost: float | None) -> CandidateInfo:
    errors = sorted(model.error for model in models.values())
    draft = candidate.keys.get("model")
    how = candidate.keys.get("draft_sample_method")
    return CandidateInfo(
        name=candidate.name,
        method=str(candidate.keys.get("method")),
        draft_model=str(draft) if draft else None,
        draft_sample_method=str(how) if how else None,
        runner=candidate.runner,
        measured_with=candidate.most_tokens,
        follows_schedule=candidate.follows_schedule,
        has_ladder=bool(candidate.rungs),
        zero_cost=zero_cost,
        step_model_error=errors[len(errors) // 2] if errors else None,
    )


def _at(passes: Sequence[Pass], *, launch: int, arm: str | None, point: Point) -> list[Pass]:
    return [
        each
        for each in _to_choose_by(passes)
        if each.launch == launch and each.point == point and (arm is None or each.arm == arm)
    ]


def _to_choose_by(passes: Sequence[Pass]) -> list[Pass]:
    """Neither loads between, nor the confirmation."""
    return [each for each in passes if each.block < EXTRA]


def confirmed_of(
    wish: Wish, passes: Sequence[Pass], choice: Choice, known: Known, *, launch: int
) -> tuple[Confirmed, ...]:
    """What the confirmation says at each point, beside what was predicted there of the chosen candidate."""
    held = [
        steady(each)
        for each in passes
        if each.block >= CONFIRMING and each.arm in (TUNED, BASELINE) and each.launch in (0, launch)
    ]
    # where both could not run at once, the blocks without speculation were sent in the first launch
    held = [_as_launch(each, launch) for each in held]
    found = []
    for point in wish.points():
        cells = {
            (name, point): _cell(
                [each for each in held if each.point == point and each.arm == name], name, point
            )
            for name in (TUNED, BASELINE)
        }
        mine = cells[TUNED, point].figures
        if mine is None:
            continue
        told = compared(cells, held, arm=TUNED, against=BASELINE, at=point)
        tokens = choice.by_load.get(point.concurrency or 1, 0)
        row = next(
            (
                each for each in known.rows
                if (each.workload, each.temperature, each.concurrency, each.tokens)
                == (point.workload, point.temperature, point.concurrency, tokens)
            ),
            None,
        )  # fmt: skip
        plain = cells[BASELINE, point].figures
        without = known.zero_cost or 1.0
        found.append(
            Confirmed(
                told,
                row.speedup.value if row else without,
                mine.output_tokens_per_s,
                row.tokens_per_s if row else without * (plain.output_tokens_per_s if plain else 0.0),
                _within(wish, held, TUNED, point),
                _within(wish, held, BASELINE, point),
            )
        )
    return tuple(found)


def _within(wish: Wish, passes: Sequence[Pass], arm: str, point: Point) -> float | None:
    """Share of an arm's requests within the profile's limits there; None without limits."""
    limits = limits_at(wish.expect, point)
    good = [
        request
        for each in passes
        if each.arm == arm and each.point == point
        for request in each.requests
        if request.ok
    ]
    return sum(is_within(each, limits) for each in good) / len(good) if limits is not None and good else None


def _cell(passes: Sequence[Pass], arm: str, point: Point) -> Cell:
    return Cell(arm, point, figures(passes) if passes else None, invalid_reason(passes))


def _as_launch(done: Pass, launch: int) -> Pass:
    return done if done.launch == launch else replace(done, launch=launch)
