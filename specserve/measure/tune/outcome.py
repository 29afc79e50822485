"""The result of a tune: the choice against its confirmation, and what keeps the speedup from K + 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from specserve.measure.bench.arms import host, versions
from specserve.measure.bench.figures import compared, figures, invalid_reason, is_within
from specserve.measure.bench.result import Cell, Point, Verdict
from specserve.measure.bench.rundir import Pass
from specserve.measure.tune.choose import LEAST_SPEEDUP, Known, limits_at, load_words
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.plan import BASELINE, CONFIRMING, TUNED, Fitted, Wish, in_words
from specserve.measure.tune.predict import STEP_ERROR_ALONE, key, plain_of, plain_rows_of
from specserve.measure.tune.result import CandidateInfo, Choice, Confirmed, Limit, Row, TuneResult
from specserve.measure.tune.run import Tune

MOVES = {
    "acceptance": "a draft closer to the target (same family, distilled on this traffic), a lower temperature, or "
    "probabilistic drafts above temperature 0",
    "draft cost": "a smaller draft, a head (EAGLE, MTP) or ngram, or a smaller K",
    "verification cost": "a smaller K, a lower concurrency, or an accelerator with more FLOP/s for its bandwidth",
    "prefill": "prefix caching or shorter prompts: speculation speeds up only the decoding",
    "memory": "a smaller draft, a smaller K, or more memory for the KV cache",
}
_IMPLAUSIBLE = 0.95
"""Plain steps that a step with more tokens cannot take less than, but for drift."""
_COSTS_BELOW = 0.97


def confirmed_of(
    wish: Wish, passes: Sequence[Pass], choice: Choice, known: Known, *, launch: int
) -> tuple[Confirmed, ...]:
    """What the confirmation says at each point, beside what was predicted there of the chosen candidate."""
    # if both could not run at once, the blocks without speculation were sent in the first launch
    held = [
        dataclasses.replace(each, launch=launch)
        for each in passes
        if each.block >= CONFIRMING and each.arm in (TUNED, BASELINE) and each.launch in (0, launch)
    ]
    predicted = {(key(_point(row)), row.concurrency, row.tokens): row for row in known.rows}
    without = known.zero_cost or 1.0
    found = []
    for point in wish.points():
        sent = {
            arm: [each for each in held if (each.arm, each.point) == (arm, point)]
            for arm in (TUNED, BASELINE)
        }
        cells = {(arm, point): _cell(arm, point, some) for arm, some in sent.items()}
        mine, plain = cells[TUNED, point].figures, cells[BASELINE, point].figures
        if mine is None:
            continue
        load = point.concurrency or 1
        row = predicted.get((key(point), load, choice.by_load.get(load, 0)))
        plain_rate = plain.output_tokens_per_s if plain else 0.0
        found.append(
            Confirmed(
                compared(cells, held, arm=TUNED, against=BASELINE, at=point),
                row.speedup.value if row else without,
                mine.output_tokens_per_s,
                row.tokens_per_s if row else without * plain_rate,
                _within(wish, sent[TUNED], point),
                _within(wish, sent[BASELINE], point),
            )
        )
    return tuple(found)


def _point(row: Row) -> Point:
    return Point(row.workload, row.temperature, row.concurrency)


def _cell(arm: str, point: Point, passes: Sequence[Pass]) -> Cell:
    return Cell(arm, point, figures(passes) if passes else None, invalid_reason(passes))


def _within(wish: Wish, passes: Sequence[Pass], point: Point) -> float | None:
    """Share of the requests within the profile's limits there; None without limits."""
    limits = limits_at(wish.expect, point)
    good = [request for each in passes for request in each.requests if request.ok]
    return sum(is_within(each, limits) for each in good) / len(good) if limits is not None and good else None


def causes(row: Row, *, steps: StepModel, kv_tokens: tuple[int, int] | None = None) -> tuple[Limit, ...]:
    """What limits one K at one load, the largest first. `kv_tokens`: of the cache with and without speculation."""
    length = row.mean_length.value if row.mean_length else 1.0
    load, tokens = row.concurrency, row.tokens
    plain_s, step_s = steps.at(load, 0), row.step_ms / 1000
    verify_s = min(max(step_s - steps.draft_s(load, tokens), plain_s), step_s)
    decoding = length * plain_s / step_s
    verifies = f"verifying {load * (tokens + 1)} tokens takes {verify_s / plain_s:.2f} plain steps"
    if verify_s / plain_s < _IMPLAUSIBLE:
        verifies += (
            ": less than one, so the machine was slower without speculation, or it is slow with single tokens"
        )
    lost = {
        "acceptance": (math.log((tokens + 1) / length), f"{length:.2f} of {tokens + 1} tokens a step"),
        "verification cost": (math.log(verify_s / plain_s), verifies),
        "draft cost": (
            math.log(step_s / verify_s),
            f"{tokens} draft steps take {(step_s - verify_s) / step_s:.0%} of a step, "
            f"{(step_s - verify_s) / tokens / plain_s:.2f} plain steps each",
        ),
        "prefill": (
            math.log(decoding / row.speedup.value),
            f"decoding alone is {decoding:.2f}x, whole requests are {row.speedup.value:.2f}x",
        ),
    }
    total = math.fsum(max(0.0, value) for value, _ in lost.values()) or 1.0
    found = [
        Limit(name, max(0.0, value) / total, words, MOVES[name])
        for name, (value, words) in sorted(lost.items(), key=lambda item: -item[1][0])
    ]
    if kv_tokens is not None and kv_tokens[1]:
        # what the draft takes costs if requests wait for room, and nothing below that
        drafting, plain = kv_tokens
        words = f"KV cache of {drafting:,} tokens instead of {plain:,} ({drafting / plain - 1:+.0%})"
        found.append(Limit("memory", None, words, MOVES["memory"]))
    return tuple(found)


def why_none(rows: Sequence[Row], *, steps: StepModel) -> str | None:
    """Why no K gains, if one cause alone explains it; None if there is a gain, or no single cause."""
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
        needed = f", {row.break_even:.2f} would be needed" if math.isfinite(row.break_even) else ""
        return f"next to nothing is accepted: {length:.2f} tokens a step{needed}"
    return None


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
    """The result; without a gain, with the one cause that explains it, if there is one."""
    chosen = next((each for each in known if each.candidate.name == choice.candidate), known[0])
    row = explained(choice, chosen.rows)
    model = chosen.models.get(key(_point(row))) if row is not None else None
    if not choice.speculates and not confirmed and row is not None and model is not None:
        mine = [each for each in chosen.rows if key(_point(each)) == key(_point(row))]
        gains = max(each.speedup.value for each in chosen.rows) >= LEAST_SPEEDUP
        choice = dataclasses.replace(
            choice, reason=(None if gains else why_none(mine, steps=model)) or choice.reason
        )
    kv = [
        size for name in (chosen.candidate.name, BASELINE) if (size := tune.kv_tokens.get(name)) is not None
    ]
    notes = [*tune.notes, *_notes(wish, tune, known, fitted), *_losses(choice, chosen, confirmed)]
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
            place: {load: seen.tokens_per_s for load, seen in by_load.items()}
            for place, by_load in plain_of(wish, tune.passes).items()
        },
        choice=choice,
        plain_rows=plain_rows_of(wish, tune.passes),
        confirmed=tuple(confirmed),
        is_interleaved=tune.is_interleaved,
        causes=causes(row, steps=model, kv_tokens=(kv[0], kv[1]) if len(kv) == 2 else None)
        if row is not None and model is not None
        else (),
        caused=row,
        notes=tuple(dict.fromkeys(notes)),
        per_position={place: rates for each in known for place, rates in each.per_position.items()},
    )


def explained(choice: Choice, rows: Sequence[Row]) -> Row | None:
    """The row whose causes are given: the choice at the lowest load, else the best there is."""
    kept = [row for row in rows if row.tokens == (choice.by_load.get(row.concurrency) or row.tokens)]
    lowest = min((row.concurrency for row in kept), default=None)
    return max(
        (row for row in kept if row.concurrency == lowest), key=lambda row: row.speedup.value, default=None
    )


def _left_out(wish: Wish, fitted: Fitted, failed: Mapping[str, str]) -> Iterator[CandidateInfo]:
    """What was not measured, with the reason."""
    methods = {each.name: str(each.keys["method"]) for each in wish.candidates}
    hidden = {TUNED, *(each.name for each in wish.candidates if each.small)}
    for name, method, why in wish.left_out:
        yield CandidateInfo(name, method, left_out=why)
    for name, why in failed.items():
        yield CandidateInfo(name, methods[name], left_out=why)
    for name, why in fitted.left_out:
        if name not in hidden:
            yield CandidateInfo(name, methods[name], left_out=why)


def _notes(wish: Wish, tune: Tune, known: Sequence[Known], fitted: Fitted) -> Iterator[str]:
    """How well things are known, and what was left out."""
    for each in wish.candidates:
        if (
            each.why_no_ladder
            and not each.small
            and each.name in fitted.kept
            and each.name not in tune.failed
        ):
            yield (
                f"{each.name}: {each.why_no_ladder}; step times between the measured K are interpolated "
                f"(± {STEP_ERROR_ALONE * 100:.0f} %)"
            )
    for name, reason in fitted.left_out:
        yield f"{in_words(name)} was left out: {reason}"
    if tune.least_share < 1:
        yield f"to stay within the budget, as few as {tune.least_share:.0%} of a workload's prompts were sent"


def _losses(choice: Choice, known: Known, confirmed: Sequence[Confirmed]) -> Iterator[str]:
    """Loads at which the choice is slower than a server without speculation, as measured, else as predicted."""
    for item in (each.comparison for each in confirmed):
        if choice.speculates and item.verdict is Verdict.COSTS and item.speedup is not None:
            yield (
                f"at {load_words(item.point.concurrency or 1)}, {item.point.workload}: speculation costs, "
                f"{item.speedup.value:.2f}x measured; send such load to a server without it"
            )
    measured = {(each.comparison.point.workload, each.comparison.point.concurrency) for each in confirmed}
    for load, tokens in sorted(choice.by_load.items()):
        if not tokens and known.zero_cost is not None and known.zero_cost < _COSTS_BELOW:
            yield (
                f"at {load_words(load)} even K = 0 runs at {known.zero_cost:.2f}x of a server without speculation "
                "(its step measured): send such load to one"
            )
        for row in known.rows:
            is_slow = (row.concurrency, row.tokens) == (load, tokens) and row.speedup.value < _COSTS_BELOW
            if is_slow and (row.workload, load) not in measured:
                yield f"at {load_words(load)}, {row.workload}: speculation costs, {row.speedup.value:.2f}x predicted"
