"""Everything that a tune measured and chose as one result. Starts nothing and writes nothing."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from specserve.measure.bench.result import Verdict
from specserve.measure.bench.surroundings import host, versions
from specserve.measure.tune.assemble import Known, plain_of, plain_rows_of
from specserve.measure.tune.budget import Fitted
from specserve.measure.tune.calm import CALM
from specserve.measure.tune.choose import LEAST_SPEEDUP, best_ends
from specserve.measure.tune.explain import causes, why_none
from specserve.measure.tune.observe import Observed
from specserve.measure.tune.predict import COUNTERS_LOW
from specserve.measure.tune.result import CandidateInfo, Cause, Choice, Confirmed, Row, TuneResult
from specserve.measure.tune.run import Tune
from specserve.measure.tune.steptime import StepModel
from specserve.measure.tune.wish import BASELINE, Wish, in_words

_ZERO_COST = 0.97


def outcome(
    wish: Wish,
    tune: Tune,
    known: Sequence[Known],
    *,
    choice: Choice,
    confirmed: Sequence[Confirmed],
    fitted: Fitted,
    duration_s: float,
) -> TuneResult:
    """The result; where there is no gain, with the one cause that explains it, if there is one."""
    chosen = next((each for each in known if each.candidate.name == choice.candidate), known[0])
    row, model = _explained(choice, chosen)
    if not choice.speculates and not confirmed and model is not None:
        choice = dataclasses.replace(choice, reason=_why_none(chosen.rows, row, model) or choice.reason)
    zero = plain_rows_of(wish, tune.passes)
    ends = best_ends(_first_workload([*zero, *chosen.rows]))
    plain = plain_of(wish, tune.passes)
    return TuneResult(
        name=wish.name,
        fingerprint=wish.fingerprint,
        created=tune.directory.content["created"],
        duration_s=duration_s,
        versions={**versions(), **tune.versions},
        host=tune.host or host(platform_of_arms=wish.platform),
        runner=wish.runner,
        platform=wish.platform,
        objective=wish.objective,
        launches=tune.launches,
        candidates=(*(each.info for each in known), *_left_out(wish, fitted, tune.failed)),
        rows=tuple(row for each in known for row in each.rows),
        baseline={
            place: {load: seen.tokens_per_s for load, seen in by.items()} for place, by in plain.items()
        },
        choice=choice,
        lowest_latency=ends[0] if ends else None,
        highest_throughput=ends[1] if ends else None,
        plain_rows=zero,
        confirmed=tuple(confirmed),
        is_interleaved=tune.is_interleaved,
        causes=_causes(row, model, chosen, tune),
        caused=row,
        notes=tuple(
            dict.fromkeys(
                [
                    *tune.notes,
                    *_notes(wish, tune, fitted),
                    *_moods(plain),
                    *_counted(known),
                    *_losses(choice, chosen, confirmed),
                ]
            )
        ),
        per_position={place: rates for each in known for place, rates in each.per_position.items()},
    )


def _left_out(wish: Wish, fitted: Fitted, failed: Mapping[str, str]) -> list[CandidateInfo]:
    """What was not measured, with the reason."""
    found = [CandidateInfo(name, method, left_out=why) for name, method, why in wish.left_out]
    methods = {each.name: str(each.keys["method"]) for each in wish.candidates}
    found += [CandidateInfo(name, methods[name], left_out=why) for name, why in failed.items()]
    reasons = dict(fitted.left_out)
    found += [
        CandidateInfo(each.name, str(each.keys["method"]), left_out=reasons[each.name])
        for each in wish.candidates
        if each.name in reasons and not each.small
    ]
    return found


def _first_workload(rows: Sequence[Row]) -> list[Row]:
    """Of the first point's workload and temperature: times and rates of two are not compared."""
    place = (rows[0].workload, rows[0].temperature) if rows else None
    return [row for row in rows if (row.workload, row.temperature) == place]


def _explained(choice: Choice, known: Known) -> tuple[Row | None, StepModel | None]:
    """The row whose causes are told, and the step times of its workload."""
    row = explained(choice, known.rows)
    return row, known.models.get(f"{row.workload}/{row.temperature:g}") if row is not None else None


def _why_none(rows: Sequence[Row], row: Row | None, model: StepModel) -> str | None:
    """By the workload of that row, if no other gains either."""
    if row is None or max(each.speedup.value for each in rows) >= LEAST_SPEEDUP:
        return None
    mine = [each for each in rows if (each.workload, each.temperature) == (row.workload, row.temperature)]
    return why_none(mine, steps=model)


def _causes(row: Row | None, model: StepModel | None, known: Known, tune: Tune) -> tuple[Cause, ...]:
    if row is None or model is None:
        return ()
    sizes = [tune.kv_tokens.get(name) for name in (known.candidate.name, BASELINE)]
    held = (sizes[0], sizes[1]) if sizes[0] is not None and sizes[1] is not None else None
    return causes(row, steps=model, kv_tokens=held)


def explained(choice: Choice, rows: Sequence[Row]) -> Row | None:
    """The row whose causes are told: the choice at the lowest load, else the best there is."""
    kept = [row for row in rows if row.tokens == (choice.by_load.get(row.concurrency) or row.tokens)]
    if not kept:
        return None
    lowest = min(row.concurrency for row in kept)
    return max((row for row in kept if row.concurrency == lowest), key=lambda row: row.speedup.value)


def _notes(wish: Wish, tune: Tune, fitted: Fitted) -> list[str]:
    told = [
        f"{each.name}: {each.why_no_ladder}; step times between the measured K are interpolated (± 8 %)"
        for each in wish.candidates
        if each.why_no_ladder and not each.small and each.name in fitted.kept and each.name not in tune.failed
    ]
    told += [f"{in_words(name)} was left out: {reason}" for name, reason in fitted.left_out]
    if tune.least_share < 1:
        told.append(f"for the budget, as few as {tune.least_share:.0%} of a workload's prompts were sent")
    return told


def _moods(plain: Mapping[str, Mapping[int, Observed]]) -> list[str]:
    """That figures are not those of the machine as it was, where that makes a difference."""
    slowed = [seen.slowed for by_load in plain.values() for seen in by_load.values()]
    usual = statistics.median(slowed) if slowed else 0.0
    if usual <= CALM:
        return []
    return [
        f"steps took {usual:.0%} longer than in the machine's calm moments (the median without speculation), as beside "
        "other work: rates and times are those of the calm machine"
    ]


def _counted(known: Sequence[Known]) -> list[str]:
    """That a server did not tell its steps."""
    if all(row.length_basis != "counters" for each in known for row in each.rows):
        return []
    low = f"up to {COUNTERS_LOW:.0%} too low"
    return [f"the server did not tell what each step accepted: tokens a step are by its counters, {low}"]


def _losses(choice: Choice, known: Known, confirmed: Sequence[Confirmed]) -> list[str]:
    """Loads at which the choice is slower than a server without speculation, as measured, else as predicted."""
    told = []
    for each in confirmed:
        item = each.comparison
        if choice.speculates and item.verdict is Verdict.COSTS and item.speedup is not None:
            load = item.point.concurrency or 1
            told.append(
                f"at {load} request{'s' * (load > 1)} at once, {item.point.workload}: speculation costs, "
                f"{item.speedup.value:.2f}x measured; send such load to a server without it"
            )
    known_at = {(each.comparison.point.workload, each.comparison.point.concurrency) for each in confirmed}
    for load, tokens in sorted(choice.by_load.items()):
        at_once = f"at {load} request{'s' * (load > 1)} at once"
        if not tokens and known.zero_cost is not None and known.zero_cost < _ZERO_COST:
            told.append(
                f"{at_once} even K = 0 runs at {known.zero_cost:.2f}x of a server without speculation "
                "(its step measured): send such load to one"
            )
        slow = [row for row in known.rows if (row.concurrency, row.tokens) == (load, tokens)]
        told += [
            f"{at_once}, {row.workload}: speculation costs, {row.speedup.value:.2f}x predicted"
            for row in slow
            if row.speedup.value < _ZERO_COST and (row.workload, load) not in known_at
        ]
    return told
