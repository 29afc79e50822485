"""K for each load: vLLM's schedules by batch size, the choice, and whether it stands once it was measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import geometric_mean
from typing import Any

from specserve.measure.bench.figures import compared, figures, invalid_reason, is_within
from specserve.measure.bench.result import Cell, Comparison, Point
from specserve.measure.bench.rundir import Pass
from specserve.measure.statistics import COSTS, PAYS
from specserve.measure.tune.plan import BASELINE, CONFIRMING, TUNED, Objective, TunePlan
from specserve.measure.tune.predict import Prediction, Row, limits_at

Range = tuple[int, int, int]
"""First and last batch size, and K."""
MOST_LOSS = 0.01
"""Neighbouring ranges become one if no load loses more by it."""
LEAST_GAIN = 0.02
"""A schedule, or a K = 0 range, must be better than one K by so much."""


def build(
    rates: Mapping[int, Mapping[int, float]], *, zero_wins_at: Collection[int] = (), may_vary: bool = True
) -> dict[int, int]:
    """The best K by concurrency. `rates`: by load and K, whatever is better the larger it is.

    `zero_wins_at`: loads at which a K = 0 range was measured, and won; no other gets K = 0 beside loads that draft.
    `may_vary`: whether runner and method follow a schedule. Raises ValueError without rates.
    """
    losses = {load: _losses(rates[load], zero=load in zero_wins_at) for load in sorted(rates)}
    if not losses or not all(losses.values()):
        raise ValueError("a schedule needs rates at every load")
    _, constant = _least_loss(losses.values())
    groups = [([load], _least_loss([own])[1]) for load, own in losses.items()]
    while may_vary and len(groups) > 1:
        merged = [
            (*_least_loss(losses[load] for load in one + other), place)
            for place, ((one, _), (other, _)) in enumerate(pairwise(groups))
        ]
        loss, tokens, place = min(merged, key=lambda each: (each[0], each[2]))
        if loss > MOST_LOSS:
            break
        groups[place : place + 2] = [(groups[place][0] + groups[place + 1][0], tokens)]
    chosen = {load: tokens for loads, tokens in groups for load in loads}
    gain = max(own[constant] - own[chosen[load]] for load, own in losses.items())
    return chosen if may_vary and gain >= LEAST_GAIN else dict.fromkeys(losses, constant)


def _losses(rates: Mapping[int, float], *, zero: bool) -> dict[int, float]:
    """What each K costs against the best, as a share; K = 0 only if it was measured to win, or is all there is."""
    kept = {tokens: rate for tokens, rate in rates.items() if tokens or zero} or rates
    best = max(kept.values(), default=0.0)
    return {tokens: 1.0 - rate / best if best > 0 else 1.0 for tokens, rate in kept.items()}


def _least_loss(losses: Iterable[Mapping[int, float]]) -> tuple[float, int]:
    """The K whose largest loss over these loads is least, behind that loss."""
    every = list(losses)
    common = set(every[0]).intersection(*every[1:])
    if not common:
        raise ValueError("each K was tried at only some of the loads")
    return min((max(each[tokens] for each in every), tokens) for tokens in common)


def ranges(chosen: Mapping[int, int]) -> tuple[Range, ...]:
    """The schedule as vLLM takes it, one range if one K serves all; limits lie between batch sizes, at their
    geometric mean, never on one.

    A batch at a limit would change its K from step to step. A closed loop's batch may be one smaller for a step, never
    larger, so the upper of two near sizes gets the room. The last range ends at the largest: vLLM carries its K on.
    """
    found, first = [], 1
    sizes = sorted(chosen)
    for size, after in zip(sizes, [*sizes[1:], None], strict=False):
        if after is None or chosen[after] != chosen[size]:
            last = size if after is None or after - size < 3 else math.isqrt(size * after)
            found.append((first, last, chosen[size]))
            first = last + 1
    return tuple(found)


def tokens_at(chosen: Mapping[int, int], batch: int) -> int:
    """The K of a batch, as vLLM looks it up."""
    return [tokens for first, _, tokens in ranges(chosen) if first <= batch][-1]


FOLLOWS_ON_V2 = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Source: vllm/v1/worker/gpu/spec_decode/target_dependent_ar and dflash, 0.32 and 0.33."""
FOLLOWS_ON_V1 = frozenset({"ngram", "ngram_gpu", "eagle", "eagle3", "mtp", "draft_model", "dflash"})
"""Source: `_maybe_disable_dynamic_sd_for_v1` in vllm/config/vllm.py 0.33."""


def schedule_obstacle(method: str, runner: str, *, engines: int = 1) -> str | None:
    """Why the drafter follows no schedule, as a clause; None if it does. `engines`: of data parallelism."""
    if engines > 1:
        return "vLLM has no schedule with data parallelism"
    if runner == "v2" and method not in FOLLOWS_ON_V2:
        return f"`{method}` on vLLM's V2 runner drafts num_speculative_tokens whatever the schedule says"
    if runner == "v1" and method not in FOLLOWS_ON_V1:
        return f"`{method}` follows no schedule on vLLM's V1 runner"
    return None


_LEAST_STEP, _MOST_BETWEEN = 1.12, 9


def between(loads: Collection[int], *, most_tokens: int, most_requests: int) -> tuple[int, ...]:
    """Batches at which a plain step is timed, too: as many requests as verifications at these loads have tokens.

    A plain step of n requests runs the same kernels as a verification of n tokens, and drafts nothing: so what kernels
    are good at, and what drafts cost, can be told apart. Neighbours are not much alike, and there are a few at most.
    """
    counts = {load * (tokens + 1) for load in loads for tokens in range(1, most_tokens + 1)}
    wanted = sorted(count for count in counts - set(loads) if count <= most_requests)
    found: list[int] = []
    for count in wanted:
        step = max(_LEAST_STEP, (wanted[-1] / wanted[0]) ** (1 / _MOST_BETWEEN))
        if not found or count >= found[-1] * step:
            found.append(count)
    return tuple(found)


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
    caveat: str = ""
    """Why it rests on less than was planned, in one clause."""


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


def choose(predictions: Sequence[Prediction], *, objective: Objective) -> Choice:
    """The best candidate with its schedule, or to run without."""
    found = []
    for each in predictions:
        table = speedups(each.rows, objective=objective)
        if table:
            cost = {} if each.zero_cost is None else {0: each.zero_cost}
            by_load = build(
                {load: {**rates, **cost} for load, rates in table.items()},
                zero_wins_at=zero_wins(table, each.zero_cost),
                may_vary=each.candidate.ladder_obstacle is None,
            )
            gains = {
                load: table[load].get(tokens, 1.0) if tokens else each.zero_cost or 1.0
                for load, tokens in by_load.items()
            }
            mean = geometric_mean(gains.values())
            score = mean * (1 + LEAST_LEAD * each.candidate.is_own)
            found.append((score, mean, each, by_load, gains, table))
    if not found:
        return Choice(False, "nothing that speculates was measured")
    _, mean, best, by_load, gains, table = max(found, key=lambda each: each[0])
    drafting = {load: gain for load, gain in gains.items() if by_load[load]}
    if not drafting or max(drafting.values()) < LEAST_SPEEDUP or mean <= 1:
        return Choice(False, _why_none(table, by_load, mean), best.candidate.name)
    top, worst = (chosen(drafting, key=lambda load: drafting[load]) for chosen in (max, min))
    reason = f"{drafting[top]:.2f}x {_GAINED[objective]} at concurrency {top}"
    reason += f", {drafting[worst]:.2f}x at concurrency {worst}" if worst != top else ""
    count = len({(row.workload, row.temperature) for row in best.rows})
    over = f" (geometric means of {count} workloads and temperatures)" if count > 1 else ""
    schedule = ranges(by_load)
    keys = {**best.candidate.keys, "num_speculative_tokens": max(by_load.values())}
    if len(schedule) > 1:
        keys["num_speculative_tokens_per_batch_size"] = list(map(list, schedule))
    return Choice(
        speculates=True,
        reason=reason + over,
        candidate=best.candidate.name,
        speculation=keys,
        num_speculative_tokens_by_concurrency=dict(sorted(by_load.items())),
        num_speculative_tokens_per_batch_size=schedule if len(schedule) > 1 else None,
    )


def _why_none(table: Mapping[int, Mapping[int, float]], by_load: Mapping[int, int], mean: float) -> str:
    """Why this candidate is not worth it: nowhere, or not with what serves all loads."""
    gain, load, tokens = max((gain, load, k) for load, gains in table.items() for k, gain in gains.items())
    best = f"the best of them, K = {tokens} at {load} request{'s' * (load > 1)}, is {gain:.2f}x"
    if gain < LEAST_SPEEDUP:
        return f"{best}: less than {LEAST_SPEEDUP}x at every load"
    words = "K by batch size" if len(ranges(by_load)) > 1 else f"K = {max(by_load.values())}"
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
    verdicts = {each.comparison.verdict.word for each in confirmed} if objective == "throughput" else set()
    if mean > 1 and PAYS in verdicts:
        return choice
    if mean >= LEAST_SPEEDUP and COSTS not in verdicts:
        return choice  # too little was measured to tell, and nothing speaks against it
    reason = f"{choice.candidate} was predicted {choice.reason}, and measured {mean:.2f}x over all loads"
    return Choice(False, reason, choice.candidate)
