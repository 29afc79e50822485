"""Everything that a tune measured and chose as one result, and what keeps the speedup from K + 1."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from specserve.measure.bench.arms import host, versions
from specserve.measure.bench.result import Verdict
from specserve.measure.tune.assemble import Known, plain_of, plain_rows_of
from specserve.measure.tune.choose import LEAST_SPEEDUP
from specserve.measure.tune.observe import CALM, Observed
from specserve.measure.tune.plan import BASELINE, Fitted, Wish, in_words
from specserve.measure.tune.predict import COUNTERS_LOW
from specserve.measure.tune.result import CandidateInfo, Cause, Choice, Confirmed, Row, TuneResult
from specserve.measure.tune.run import Tune
from specserve.measure.tune.steptime import StepModel

MOVES = {
    "acceptance": "a draft closer to the target (same family, distilled on this traffic), a lower temperature, or "
    "probabilistic drafts above temperature 0",
    "draft cost": "a smaller draft, a head (EAGLE, MTP) or ngram, or a smaller K",
    "verification cost": "a smaller K, fewer requests at once, or an accelerator with more FLOP/s for its bandwidth",
    "prefill": "prefix caching or shorter prompts: speculation speeds up decoding alone",
    "memory": "a smaller draft, a smaller K, or more memory for the KV cache",
}

_IMPLAUSIBLE = 0.95
"""Plain steps that a step with more tokens cannot take less than, but for drift."""


def causes(row: Row, *, steps: StepModel, kv_tokens: tuple[int, int] | None = None) -> tuple[Cause, ...]:
    """What limits one K at one load, the largest first. `kv_tokens`: of the cache with and without speculation."""
    length = row.mean_length.value if row.mean_length else 1.0
    load, tokens = row.concurrency, row.tokens
    plain_s, step_s = steps.at(load, 0), row.step_ms / 1000
    verify_s = min(max(step_s - steps.draft_s(load, tokens), plain_s), step_s)
    decoding = length / row.break_even
    lost = {
        "acceptance": math.log((tokens + 1) / length),
        "verification cost": math.log(verify_s / plain_s),
        "draft cost": math.log(step_s / verify_s),
        "prefill": max(0.0, math.log(decoding / row.speedup.value)),
    }
    whole = math.fsum(max(0.0, value) for value in lost.values()) or 1.0
    told = {
        "acceptance": f"{length:.2f} of {tokens + 1} tokens a step",
        "verification cost": _verification(load * (tokens + 1), verify_s / plain_s),
        "draft cost": f"{tokens} draft steps take {(step_s - verify_s) / step_s:.0%} of a step, "
        f"{(step_s - verify_s) / tokens / plain_s:.2f} plain steps each",
        "prefill": f"decoding alone is {decoding:.2f}x, whole requests are {row.speedup.value:.2f}x",
    }
    found = [
        Cause(name, max(0.0, value) / whole, told[name], MOVES[name])
        for name, value in sorted(lost.items(), key=lambda item: -item[1])
    ]
    return (*found, *_memory(kv_tokens))


def _verification(tokens: int, plain_steps: float) -> str:
    told = f"verifying {tokens} tokens takes {plain_steps:.2f} plain steps"
    if plain_steps < _IMPLAUSIBLE:
        told += (
            ": less than one, so the machine was slower without speculation, or it is slow with single tokens"
        )
    return told


def _memory(kv_tokens: tuple[int, int] | None) -> Sequence[Cause]:
    """What the draft takes of the KV cache: it costs where requests wait for room, and nothing below that."""
    if kv_tokens is None or not kv_tokens[1]:
        return ()
    drafting, plain = kv_tokens
    told = f"KV cache of {drafting:,} tokens instead of {plain:,} ({drafting / plain - 1:+.0%})"
    return (Cause("memory", None, told, MOVES["memory"]),)


def why_none(rows: Sequence[Row], *, steps: StepModel) -> str | None:
    """Why no K gains, where one cause alone explains it; None where there is a gain, or no single cause."""
    if not rows or max(row.speedup.value for row in rows) >= LEAST_SPEEDUP:
        return None
    row = max(rows, key=lambda each: each.speedup.value)
    plain_s, load = steps.at(row.concurrency, 0), row.concurrency
    each_s = (steps.at(load, row.tokens) - steps.verify_s(load, row.tokens)) / row.tokens
    length = row.mean_length.value if row.mean_length else 1.0
    if each_s >= 0.8 * plain_s:
        accepted = f"{(length - 1) / row.tokens:.0%} of the draft tokens are accepted"
        return f"a draft step costs {each_s / plain_s:.2f} steps of the target: no gain is possible, though {accepted}"
    if length < 1.2:
        return (
            f"next to nothing is accepted: {length:.2f} tokens a step, {row.break_even:.2f} would be needed"
        )
    return None


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
