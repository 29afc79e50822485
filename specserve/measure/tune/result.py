"""The result of a tune: what was chosen, what keeps its speedup from K + 1, and how it is written into the profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specserve.errors import UsageError
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import host, versions
from specserve.measure.servers import Measurement
from specserve.measure.statistics import COSTS
from specserve.measure.tune.choose import LEAST_SPEEDUP, Choice, Confirmed
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.plan import BASELINE, TUNED, CandidateInfo, TunePlan
from specserve.measure.tune.predict import STEP_ERROR_ALONE, Prediction, Row, place_of, plain_rows

MOVES = {
    "acceptance": "a draft closer to the target (same family, distilled on this traffic), a lower temperature, or "
    "probabilistic drafts above temperature 0",
    "draft cost": "a smaller draft, a head (EAGLE, MTP) or ngram, or a smaller K",
    "verification cost": "a smaller K, a lower concurrency, or an accelerator with more FLOP/s for its bandwidth",
    "prefill": "prefix caching or shorter prompts",
    "memory": "a smaller draft, a smaller K, or more memory for the KV cache",
}
_IMPLAUSIBLE = 0.95
"""Plain steps that a step with more tokens cannot take less than, but for drift."""
_COSTS_BELOW = 0.97


@dataclass(frozen=True, slots=True)
class SpeedupLimit:
    """One thing that holds the speedup down, with its number, and what would change it."""

    name: str
    """draft cost, verification cost, acceptance, memory, prefill."""
    share: float | None
    """What it takes of the speedup that would be there without it, 0 to 1."""
    told: str
    """The figures."""
    moves: str


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A whole tune; its fields are the keys of result.json."""

    name: str
    fingerprint: str
    created: str
    """ISO 8601, UTC."""
    duration_s: float
    versions: Mapping[str, str]
    host: Mapping[str, str]
    runner: str
    """vLLM's model runner, `v1` or `v2`."""
    platform: str
    objective: str
    launches: int
    choice: Choice
    candidates: tuple[CandidateInfo, ...]
    points: tuple[Row, ...]
    plain_points: tuple[Row, ...] = ()
    """K = 0: the server without speculation at every point."""
    confirmed: tuple[Confirmed, ...] = ()
    confirmed_turn_by_turn: bool = False
    """Whether the confirmation took turns with the server without speculation."""
    causes_of: Row | None = None
    causes: tuple[SpeedupLimit, ...] = ()
    per_position_acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By `candidate/workload/temperature`: the share of steps that accepted that many tokens or more."""
    notes: tuple[str, ...] = ()

    def is_chosen(self, row: Row) -> bool:
        """Whether a row is what was chosen for its load."""
        chosen = self.choice.num_speculative_tokens_by_concurrency.get(row.concurrency)
        return self.choice.candidate == row.candidate and chosen == row.num_speculative_tokens

    def place(self, of: Row | Point) -> str:
        """A workload, and its temperature if there are several."""
        several = len({row.temperature for row in self.points}) > 1
        return f"{of.workload}, T = {of.temperature:g}" if several else of.workload


def tune_result(
    plan: TunePlan,
    tune: Measurement,
    predictions: Sequence[Prediction],
    choice: Choice,
    confirmed: Sequence[Confirmed],
    *,
    failed: Mapping[str, str],
    duration_s: float,
) -> TuneResult:
    """The result; without a gain, with the one cause that explains it, if there is one. `failed`: launches."""
    chosen = next((each for each in predictions if each.candidate.name == choice.candidate), predictions[0])
    row = explained(choice, chosen.rows)
    model = chosen.models.get(place_of(row.point)) if row is not None else None
    kv = [tune.kv_tokens.get(name, 0) for name in (chosen.candidate.name, BASELINE)]
    found: tuple[SpeedupLimit, ...] = ()
    notes = [*tune.notes]
    if row is not None and model is not None:
        found = causes(row, steps=model, kv_tokens=(kv[0], kv[1]) if all(kv) else None)
        gains = max(each.predicted.speedup.value for each in chosen.rows) >= LEAST_SPEEDUP
        if not (choice.speculates or confirmed or gains):
            mine = [each for each in chosen.rows if place_of(each.point) == place_of(row.point)]
            choice = replace(choice, reason=why_none(mine, steps=model) or choice.reason)
        notes += drifted(row, steps=model)
    plain = plain_rows(plan, tune.passes)
    notes += [
        *_notes(plan, failed),
        *_losses(choice, chosen, confirmed),
        *better_rates(choice, chosen, plain),
    ]
    return TuneResult(
        name=plan.name,
        fingerprint=plan.fingerprint,
        created=tune.directory.content["created"],
        duration_s=round(duration_s, 1),
        versions={**versions(), **tune.versions},
        host=tune.host or host(platform_of_arms=plan.platform),
        runner=plan.runner,
        platform=plan.platform,
        objective=plan.objective,
        launches=tune.launches,
        choice=choice,
        candidates=(*(each.info for each in predictions), *_left_out(plan, failed)),
        points=tuple(row for each in predictions for row in each.rows),
        plain_points=plain,
        confirmed=tuple(confirmed),
        confirmed_turn_by_turn=any(each.launch and each.arm == BASELINE for each in tune.passes),
        causes_of=row if found else None,
        causes=found,
        per_position_acceptance={
            place: rates for each in predictions for place, rates in each.per_position.items()
        },
        notes=tuple(dict.fromkeys(notes)),
    )


def explained(choice: Choice, rows: Sequence[Row]) -> Row | None:
    """The row whose causes are given: the choice at the lowest load, else the best there is."""
    chosen = choice.num_speculative_tokens_by_concurrency
    kept = [row for row in rows if chosen.get(row.concurrency) in (None, 0, row.num_speculative_tokens)]
    return min(kept, key=lambda row: (row.concurrency, -row.predicted.speedup.value), default=None)


def causes(
    row: Row, *, steps: StepModel, kv_tokens: tuple[int, int] | None = None
) -> tuple[SpeedupLimit, ...]:
    """What limits one K at one load, the largest first. `kv_tokens`: of the cache with and without speculation."""
    length, speedup = row.mean_acceptance_length.value, row.predicted.speedup.value
    load, tokens = row.concurrency, row.num_speculative_tokens
    plain_s, step_s = steps.at(load, 0), row.step_ms / 1000
    verify_s = min(max(step_s - steps.draft_s(load, tokens), plain_s), step_s)
    decoding, verified = length * plain_s / step_s, verify_s / plain_s
    verifies = f"verifying {load * (tokens + 1)} tokens takes {verified:.2f} times as long as a baseline step"
    drafts = f"drafting {tokens} token{'s' if tokens > 1 else ''} takes {(step_s - verify_s) / step_s:.0%} of a step"
    lost = {
        "acceptance": ((tokens + 1) / length, f"{length:.2f} of {tokens + 1} tokens a step"),
        "verification cost": (verified, verifies),
        "draft cost": (
            step_s / verify_s,
            f"{drafts}; each takes {(step_s - verify_s) / tokens / plain_s:.2f} times as long as a baseline step",
        ),
        "prefill": (
            decoding / speedup,
            "speculation makes only the decoding faster, not the reading of the prompt",
        ),
    }
    logs = {name: math.log(factor) for name, (factor, _) in lost.items()}
    total = math.fsum(max(0.0, log) for log in logs.values()) or 1.0
    found = [
        SpeedupLimit(name, max(0.0, logs[name]) / total, lost[name][1], MOVES[name])
        for name in sorted(logs, key=lambda name: -logs[name])
    ]
    if kv_tokens is not None:
        # what the draft takes costs if requests wait for room, and nothing below that
        drafting, plain = kv_tokens
        words = f"KV cache of {drafting:,} tokens instead of {plain:,} ({drafting / plain - 1:+.0%})"
        found.append(SpeedupLimit("memory", None, words, MOVES["memory"]))
    return tuple(found)


def drifted(row: Row, *, steps: StepModel) -> Iterator[str]:
    """A note if steps with more tokens took less time than steps of the baseline."""
    load, tokens = row.concurrency, row.num_speculative_tokens
    ratio = row.step_ms / 1000 / steps.at(load, 0)
    if ratio < _IMPLAUSIBLE:
        yield (
            f"a step of {load * (tokens + 1)} tokens took {ratio:.2f} times as long as one of {load} in the baseline: "
            "either steps of so few tokens are slow on this machine, or the machine was slower during the baseline; "
            "then the speedup is less than predicted"
        )


def why_none(rows: Sequence[Row], *, steps: StepModel) -> str | None:
    """Why no K gains, if one cause alone explains it; None if there is a gain, or no single cause."""
    row = max(rows, key=lambda each: each.predicted.speedup.value, default=None)
    if row is None or row.predicted.speedup.value >= LEAST_SPEEDUP:
        return None
    load, tokens, length = row.concurrency, row.num_speculative_tokens, row.mean_acceptance_length.value
    plain_s = steps.at(load, 0)
    each_s = (steps.at(load, tokens) - steps.verify_s(load, tokens)) / tokens
    if each_s >= 0.8 * plain_s:
        accepted = f"{(length - 1) / tokens:.0%} of the draft tokens are accepted"
        return f"a draft step costs {each_s / plain_s:.2f} steps of the target: no gain is possible, though {accepted}"
    if length < 1.2:
        needed = row.break_even_mean_acceptance_length
        words = f", {needed:.2f} would be needed" if math.isfinite(needed) else ""
        return f"next to nothing is accepted: {length:.2f} tokens a step{words}"
    return None


def _left_out(plan: TunePlan, failed: Mapping[str, str]) -> Iterator[CandidateInfo]:
    """What was not measured, with the reason."""
    yield from plan.left_out
    reasons = {**failed, **dict(plan.budget.left_out)}
    for each in plan.candidates:
        if each.name in reasons:
            yield CandidateInfo(each.name, str(each.keys["method"]), left_out=reasons[each.name])


def _notes(plan: TunePlan, failed: Mapping[str, str]) -> Iterator[str]:
    """How well things are known, and what was left out."""
    for each in plan.candidates:
        if each.ladder_obstacle and each.name in plan.budget.kept and each.name not in failed:
            yield (
                f"{each.name}: {each.ladder_obstacle}; step times between the measured K are interpolated "
                f"(± {STEP_ERROR_ALONE * 100:.0f} %)"
            )
    for name, reason in plan.budget.left_out:
        yield f"{'the confirmation' if name == TUNED else name} was left out: {reason}"


def _losses(choice: Choice, prediction: Prediction, confirmed: Sequence[Confirmed]) -> Iterator[str]:
    """Loads at which the choice is slower than a server without speculation, as measured, else as predicted."""
    for item in (each.comparison for each in confirmed):
        if choice.speculates and item.verdict.word == COSTS and item.speedup is not None:
            yield (
                f"at concurrency {item.point.concurrency}, {item.point.workload}: speculation costs, "
                f"{item.speedup.value:.2f}x measured; send such load to a server without it"
            )
    measured, cost = {each.comparison.point for each in confirmed}, prediction.zero_cost
    for load, tokens in choice.num_speculative_tokens_by_concurrency.items():
        if not tokens and cost is not None and cost < _COSTS_BELOW:
            yield (
                f"at concurrency {load} even K = 0 runs at {cost:.2f}x of a server without speculation "
                "(its step measured): send such load to one"
            )
    for row in _chosen_rows(choice, prediction):
        gain = row.predicted.speedup.value
        if gain < _COSTS_BELOW and row.point not in measured:
            yield f"at concurrency {row.concurrency}, {row.workload}: speculation costs, {gain:.2f}x predicted"


def better_rates(choice: Choice, prediction: Prediction, plain: Sequence[Row]) -> Iterator[str]:
    """Rates in the table that were measured above the one predicted for the choice, with why they were not chosen."""
    for chosen in _chosen_rows(choice, prediction):
        rate = chosen.predicted.output_tokens_per_s
        same = [row for row in (*plain, *prediction.rows) if row.point == chosen.point]
        best = max(same, key=lambda row: row.measured.output_tokens_per_s or 0.0)
        measured, tokens = best.measured.output_tokens_per_s or 0.0, best.num_speculative_tokens
        if measured <= rate or tokens == chosen.num_speculative_tokens:
            continue
        why = (
            "the choice compares predictions, because a prediction uses the data of the whole run, while one "
            "measurement depends on how fast the machine was at that moment"
        )
        if not tokens:
            why = _why_not_zero(prediction, chosen.concurrency)
        elif best.predicted.output_tokens_per_s > rate:
            why = (
                "one K serves several loads or workloads if that costs little, or if vLLM follows no schedule"
            )
        yield (
            f"at concurrency {chosen.concurrency}, {chosen.workload}: K = {tokens} measured {measured:.1f} tokens/s, "
            f"more than the {rate:.1f} predicted for the chosen K = {chosen.num_speculative_tokens}: {why}"
        )


def _why_not_zero(prediction: Prediction, load: int) -> str:
    """Why K = 0 was not chosen for a load, though the server without speculation is faster there."""
    cost, most = prediction.zero_cost, max(row.concurrency for row in prediction.rows)
    why = "this was the server without speculation; K = 0 in a schedule runs on the server with the draft"
    if load < most:
        return f"{why}, and is chosen only for the highest load ({most})"
    return f"{why}, " + (
        "which was not measured at K = 0" if cost is None else f"which is {cost:.2f}x as fast"
    )


def _chosen_rows(choice: Choice, prediction: Prediction) -> list[Row]:
    chosen = choice.num_speculative_tokens_by_concurrency
    return [row for row in prediction.rows if row.num_speculative_tokens == chosen.get(row.concurrency)]


def refuse_unwritable(path: str, *, settings: Iterable[str]) -> None:
    """Raises UsageError if a choice could not be written, before anything is measured."""
    if not Path(path).is_file():
        raise UsageError(f"`--write` can only change a profile file, and `{path}` is not a file")
    if any(setting.startswith("speculation") for setting in settings):
        raise UsageError(
            "`--write` and `--set speculation…` cannot be combined: the override would hide what is written"
        )


def write_choice(path: str, result: TuneResult, *, settings: Iterable[str] = ()) -> str:
    """Change `speculation` in the file, and return what was done. Raises UsageError and FactError if it cannot be."""
    from specserve.profile.writer import rewrite_section

    refuse_unwritable(path, settings=settings)
    is_changed = rewrite_section(
        path,
        "speculation",
        result.choice.speculation,
        said=lambda profile: profile.speculation and profile.speculation.keys,
        remark=remark(result),
    )
    if not is_changed:
        return f"{path} already has this `speculation`"
    return f"{path}: `speculation` was changed; `git diff` shows it"


def remark(result: TuneResult) -> str:
    """When, on what, with which result; begins as every such remark does, so that the next one replaces it."""
    accelerator = result.host.get("accelerator", result.platform)
    head = f"specserve tune: {result.created[:10]}, {accelerator}, vLLM {result.versions.get('vllm', '?')}"
    if not result.choice.speculates:
        return f"{head}: {result.choice.reason}"
    measured = [
        f"{each.comparison.speedup.value:.2f}x at {each.comparison.point.concurrency}"
        f" ({result.place(each.comparison.point)})"
        for each in result.confirmed
        if each.comparison.speedup is not None
    ]
    return (
        f"{head}: measured {', '.join(measured)}" if measured else f"{head}: predicted {result.choice.reason}"
    )
