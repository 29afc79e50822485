"""Which candidate is chosen with which K for each load, and whether that stands once it was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Any

from specserve.measure.bench.figures import compared, figures, invalid_reason, is_within
from specserve.measure.bench.result import Cell, Comparison, Point, Verdict
from specserve.measure.bench.rundir import Pass
from specserve.measure.tune.plan import BASELINE, CONFIRMING, TUNED, Objective, TunePlan
from specserve.measure.tune.predict import Prediction, Row, limits_at
from specserve.measure.tune.schedule import LEAST_GAIN, Range, Schedule, build

_GAINED: Mapping[Objective, str] = {
    "throughput": "the tokens/s",
    "tpot": "the tokens/s of a request",
    "goodput": "the goodput",
}
LEAST_SPEEDUP = 1.03
"""Speculation that gives less is not worth a second model."""
_LEAST_SHARE = 1e-3
"""Of requests within the limits: if no side keeps them, tokens/s decide."""
LEAST_LEAD = 0.02
"""Another candidate than the profile's own must be better by so much."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is best here."""

    speculates: bool
    reason: str
    candidate: str | None = None
    speculation: Mapping[str, Any] | None = None
    """The whole block for the profile; None: run without."""
    num_speculative_tokens_by_concurrency: Mapping[int, int] = field(default_factory=dict)
    num_speculative_tokens_per_batch_size: tuple[Range, ...] | None = None
    """None if one K serves all loads."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The choice against no speculation at one point, on prompts that it was not chosen by."""

    comparison: Comparison
    predicted_speedup: float
    tokens_per_s: float
    predicted_tokens_per_s: float
    within_limits: float | None = None
    """Share of requests within the profile's limits, measured; None without limits."""
    plain_within_limits: float | None = None
    """The same without speculation."""

    @property
    def miss(self) -> float:
        """Measured over predicted speedup, less one."""
        measured = self.comparison.speedup
        return measured.value / self.predicted_speedup - 1 if measured is not None else 0.0

    def gain(self, objective: Objective) -> float | None:
        """Measured, over no speculation; None if it was not."""
        item = self.comparison
        if item.speedup is None:
            return None
        if objective == "tpot" and item.tpot_p50_ratio:
            return 1 / item.tpot_p50_ratio
        if objective == "goodput":
            return item.speedup.value * _shares(self.within_limits, self.plain_within_limits)
        return item.speedup.value


def _shares(within: float | None, plain: float | None) -> float:
    """Of requests within the limits, over that without speculation; 1 without limits."""
    return 1.0 if within is None or plain is None else max(within, _LEAST_SHARE) / max(plain, _LEAST_SHARE)


def load_words(load: int | None) -> str:
    """A load in words."""
    return f"concurrency {load or 1}"


def choose(predictions: Sequence[Prediction], *, objective: Objective) -> Choice:
    """The best candidate with its schedule, or to run without."""
    found = []
    for each in predictions:
        table = speedups(each.rows, objective=objective)
        if table:
            cost = {} if each.zero_cost is None else {0: each.zero_cost}
            schedule = build(
                {load: {**rates, **cost} for load, rates in table.items()},
                zero_wins_at=zero_wins(table, each.zero_cost),
                may_vary=each.candidate.follows_schedule,
            )
            gains = {
                load: table[load].get(tokens, 1.0) if tokens else each.zero_cost or 1.0
                for load, tokens in schedule.chosen.items()
            }
            mean = geometric_mean(gains.values())
            score = mean * (1 + LEAST_LEAD * each.candidate.is_own)
            found.append((score, mean, each, schedule, gains, table))
    if not found:
        return Choice(False, "nothing that speculates was measured")
    _, mean, best, schedule, gains, table = max(found, key=lambda each: each[0])
    drafting = {load: gain for load, gain in gains.items() if schedule.chosen[load]}
    if not drafting or max(drafting.values()) < LEAST_SPEEDUP or mean <= 1:
        return Choice(False, _why_none(table, schedule, mean), best.candidate.name)
    worst = min(drafting, key=lambda load: drafting[load])
    most, least = (f"{gain:.2f}x" for gain in (max(drafting.values()), drafting[worst]))
    reason = f"{most} {_GAINED[objective]} at best, {least} at {load_words(worst)}"
    count = len({(row.workload, row.temperature) for row in best.rows})
    over = f" (geometric means of {count} workloads and temperatures)" if count > 1 else ""
    keys = {**best.candidate.keys, "num_speculative_tokens": schedule.largest}
    if not schedule.is_constant:
        keys["num_speculative_tokens_per_batch_size"] = list(map(list, schedule.ranges))
    return Choice(
        speculates=True,
        reason=reason + over,
        candidate=best.candidate.name,
        speculation=keys,
        num_speculative_tokens_by_concurrency=dict(sorted(schedule.chosen.items())),
        num_speculative_tokens_per_batch_size=None if schedule.is_constant else schedule.ranges,
    )


def _why_none(table: Mapping[int, Mapping[int, float]], schedule: Schedule, mean: float) -> str:
    """Why this candidate is not worth it: nowhere, or not with what serves all loads."""
    gain, load, tokens = max((gain, load, k) for load, gains in table.items() for k, gain in gains.items())
    best = f"the best of them, K = {tokens} at {load} request{'s' * (load > 1)}, is {gain:.2f}x"
    if gain < LEAST_SPEEDUP:
        return f"{best}: less than {LEAST_SPEEDUP}x at every load"
    words = f"K = {schedule.largest}" if schedule.is_constant else "K by batch size"
    return f"{best}, but over all loads {words} reaches only {mean:.2f}x"


def speedups(rows: Sequence[Row], *, objective: Objective) -> dict[int, dict[int, float]]:
    """By load and K: over no speculation, the geometric mean over workloads and temperatures.

    By `goodput` only the share of requests within the limits counts, on both sides.
    """
    gathered: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        found = row.predicted
        value = found.speedup.value
        if objective == "tpot":
            value = found.plain_tpot_ms / found.tpot_ms
        elif objective == "goodput":
            value *= _shares(found.within_limits, found.plain_within_limits)
        by_k = gathered.setdefault(row.concurrency, {})
        by_k.setdefault(row.num_speculative_tokens, []).append(value)
    return {
        load: {tokens: geometric_mean(values) for tokens, values in by_k.items()}
        for load, by_k in gathered.items()
    }


def zero_wins(table: Mapping[int, Mapping[int, float]], cost: float | None) -> Collection[int]:
    """The highest load, beside which a K = 0 range was measured, if that is better there than every K above it.

    What a K = 0 range costs at lower loads is not known.
    """
    load = max(table)
    is_best = cost is not None and cost > max(table[load].values()) * (1 + LEAST_GAIN)
    return [load] if is_best else []


def confirmed_of(
    plan: TunePlan, passes: Sequence[Pass], choice: Choice, predictions: Sequence[Prediction], *, launch: int
) -> tuple[Confirmed, ...]:
    """What the confirmation says at each point, beside what was predicted there of the chosen candidate."""
    prediction = next(each for each in predictions if each.candidate.name == choice.candidate)
    # if both servers could not run at once, the blocks without speculation were sent in the first launch
    held = [
        replace(each, launch=launch)
        for each in passes
        if each.block >= CONFIRMING and each.arm in (TUNED, BASELINE) and each.launch in (0, launch)
    ]
    predicted = {(row.point, row.num_speculative_tokens): row.predicted for row in prediction.rows}
    without = prediction.zero_cost or 1.0
    found = []
    for point in plan.points:
        sent = {
            arm: [each for each in held if (each.arm, each.point) == (arm, point)]
            for arm in (TUNED, BASELINE)
        }
        cells = {
            (arm, point): Cell(arm, point, figures(some) if some else None, invalid_reason(some))
            for arm, some in sent.items()
        }
        mine, plain = cells[TUNED, point].figures, cells[BASELINE, point].figures
        if mine is None:
            continue
        tokens = choice.num_speculative_tokens_by_concurrency.get(point.concurrency or 1, 0)
        row = predicted.get((point, tokens))
        plain_rate = plain.output_tokens_per_s if plain else 0.0
        found.append(
            Confirmed(
                compared(cells, held, arm=TUNED, against=BASELINE, at=point),
                row.speedup.value if row else without,
                mine.output_tokens_per_s,
                row.output_tokens_per_s if row else without * plain_rate,
                *(_within(plan, sent[arm], point) for arm in (TUNED, BASELINE)),
            )
        )
    return tuple(found)


def _within(plan: TunePlan, passes: Sequence[Pass], point: Point) -> float | None:
    """Share of the requests within the profile's limits there; None without limits."""
    limits = limits_at(plan.expect, point)
    good = [request for each in passes for request in each.requests if request.ok]
    return sum(is_within(each, limits) for each in good) / len(good) if limits is not None and good else None


def after(choice: Choice, confirmed: Sequence[Confirmed], *, objective: Objective) -> Choice:
    """The choice once it was measured: what pays nowhere, or costs over all loads, is not chosen.

    Verdicts are of tokens/s; by another objective its own figure decides.
    """
    gains = [gain for each in confirmed if (gain := each.gain(objective)) is not None]
    if not choice.speculates or not gains:
        return choice
    mean = geometric_mean(gains)
    verdicts = {each.comparison.verdict for each in confirmed} if objective == "throughput" else set()
    if mean > 1 and Verdict.PAYS in verdicts:
        return choice
    if mean >= LEAST_SPEEDUP and Verdict.COSTS not in verdicts:
        return choice  # too little was measured to tell, and nothing speaks against it
    reason = f"{choice.candidate} was predicted {choice.reason}, and measured {mean:.2f}x over all loads"
    return Choice(False, reason, choice.candidate)
