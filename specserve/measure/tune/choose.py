"""Which candidate is chosen, with which K for each load."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median_low
from typing import Any

from specserve.measure.bench.figures import has_limits
from specserve.measure.bench.result import Point, Verdict
from specserve.measure.tune import schedule
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.plan import Candidate
from specserve.measure.tune.result import CandidateInfo, Choice, Confirmed, Objective, Row
from specserve.measure.tune.schedule import Schedule
from specserve.profile.schema import Expectation

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
class Known:
    """One candidate after its launch."""

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
        candidate, keys = self.candidate, self.candidate.keys
        return CandidateInfo(
            name=candidate.name,
            method=str(keys.get("method")),
            draft_model=str(keys["model"]) if keys.get("model") else None,
            draft_sample_method=str(keys["draft_sample_method"]) if keys.get("draft_sample_method") else None,
            runner=candidate.runner,
            measured_with=candidate.most_tokens,
            follows_schedule=candidate.follows_schedule,
            has_ladder=bool(candidate.rungs),
            zero_cost=self.zero_cost,
            step_model_error=median_low(errors)
            if (errors := [m.error for m in self.models.values()])
            else None,
        )


def limits_at(expect: Iterable[Expectation], point: Point) -> Expectation | None:
    """The promise of latencies that holds at a point, the most particular one; None without any."""
    found = [
        item
        for item in expect
        if has_limits(item)
        and item.workload in (None, point.workload)
        and item.temperature in (None, point.temperature)
        and item.concurrency in (None, point.concurrency)
    ]
    return max(
        found,
        key=lambda item: sum(
            value is not None for value in (item.concurrency, item.workload, item.temperature)
        ),
        default=None,
    )


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


def choose(candidates: Sequence[Known], *, objective: Objective) -> Choice:
    """The best candidate with its schedule, or to run without."""
    found = []
    for each in candidates:
        table = speedups(each.rows, objective=objective)
        if table:
            tried = schedule.build(
                {load: _with_zero(rates, each.zero_cost) for load, rates in table.items()},
                zero_wins_at=zero_wins(table, each.zero_cost),
                may_vary=each.candidate.follows_schedule,
            )
            score = _mean(table, tried, each.zero_cost) * (1 + LEAST_LEAD * each.candidate.is_own)
            found.append((score, each, tried))
    if not found:
        return Choice(False, "nothing that speculates was measured")
    _, best, tried = max(found, key=lambda each: each[0])
    return _choice(best, tried, objective=objective)


def _choice(each: Known, found: Schedule, *, objective: Objective) -> Choice:
    table = speedups(each.rows, objective=objective)
    gains = {load: table[load].get(tokens, 1.0) for load, tokens in found.chosen.items() if tokens}
    if not found.largest or max(gains.values()) < LEAST_SPEEDUP or _mean(table, found, each.zero_cost) <= 1:
        return Choice(False, _why_none(table, found, each), each.candidate.name)
    worst = min(gains, key=lambda at: gains[at])
    count = len({(row.workload, row.temperature) for row in each.rows})
    over = f" (geometric means of {count} workloads and temperatures)" if count > 1 else ""
    reason = (
        f"{max(gains.values()):.2f}x {_GAINED[objective]} at best, {gains[worst]:.2f}x at {load_words(worst)}"
    )
    return Choice(
        speculates=True,
        reason=reason + over,
        candidate=each.candidate.name,
        speculation=block(each.candidate.keys, found),
        by_load=dict(found.chosen),
        schedule=None if found.is_constant else found.ranges,
    )


def load_words(load: int) -> str:
    """A load in words."""
    return f"concurrency {load}"


def _why_none(table: Mapping[int, Mapping[int, float]], found: Schedule, each: Known) -> str:
    """Why this candidate is not worth it: nowhere, or not with what serves all loads."""
    gain, load, tokens = max((gain, load, k) for load, gains in table.items() for k, gain in gains.items())
    best = f"the best of them, K = {tokens} at {load} request{'s' * (load > 1)}, is {gain:.2f}x"
    if gain < LEAST_SPEEDUP:
        return f"{best}: less than {LEAST_SPEEDUP}x at every load"
    mean = _mean(table, found, each.zero_cost)
    words = f"K = {found.largest}" if found.is_constant else "K by batch size"
    return f"{best}, but over all loads {words} reaches only {mean:.2f}x"


def after(choice: Choice, confirmed: Sequence[Confirmed], *, objective: Objective) -> Choice:
    """The choice once it was measured: what pays nowhere, or costs over all loads, is not chosen.

    Verdicts are of tokens/s; by another objective its own figure decides.
    """
    gains = [gain for each in confirmed if (gain := _gain(each, objective=objective)) is not None]
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


def _gain(each: Confirmed, *, objective: Objective) -> float | None:
    """Measured, over no speculation; None if it was not."""
    item = each.comparison
    if item.speedup is None:
        return None
    if objective == "tpot" and item.tpot_p50_ratio:
        return 1 / item.tpot_p50_ratio
    if objective == "goodput":
        return item.speedup.value * _shares(each.within_limits, each.plain_within_limits)
    return item.speedup.value


def _shares(within: float | None, plain: float | None) -> float:
    """Of requests within the limits, over that without speculation; 1 without limits."""
    return 1.0 if within is None or plain is None else max(within, _LEAST_SHARE) / max(plain, _LEAST_SHARE)


def block(keys: Mapping[str, Any], found: Schedule) -> dict[str, Any]:
    """The profile's block with these tokens; no more are reserved than are used."""
    kept = {name: value for name, value in keys.items() if name != "num_speculative_tokens_per_batch_size"}
    kept["num_speculative_tokens"] = found.largest
    if not found.is_constant:
        kept["num_speculative_tokens_per_batch_size"] = [list(each) for each in found.ranges]
    return kept


def speedups(rows: Sequence[Row], *, objective: Objective) -> dict[int, dict[int, float]]:
    """By load and K: over no speculation, the geometric mean over workloads and temperatures.

    By `goodput` only the share of requests within the limits counts, on both sides.
    """
    gathered: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        value = row.speedup.value
        if objective == "tpot":
            value = row.plain_tpot_ms / row.tpot_ms
        elif objective == "goodput":
            value *= _shares(row.within_limits, row.plain_within_limits)
        gathered.setdefault(row.concurrency, {}).setdefault(row.tokens, []).append(value)
    return {
        load: {tokens: geometric_mean(found) for tokens, found in by_k.items()}
        for load, by_k in gathered.items()
    }


def _with_zero(rates: Mapping[int, float], cost: float | None) -> dict[int, float]:
    return dict(rates) if cost is None else {**rates, 0: cost}


def zero_wins(table: Mapping[int, Mapping[int, float]], cost: float | None) -> Collection[int]:
    """The highest load, beside which a K = 0 range was measured, if that is better there than every K above it.

    What a K = 0 range costs at lower loads is not known.
    """
    if cost is None:
        return ()
    load = max(table)
    return [load] if cost > max(table[load].values()) * (1 + schedule.LEAST_GAIN) else []


def _mean(table: Mapping[int, Mapping[int, float]], found: Schedule, zero_cost: float | None) -> float:
    """Over all loads, of the speedup that the schedule gives."""
    zero = zero_cost or 1.0
    return geometric_mean(
        table[load].get(tokens, zero) if tokens else zero for load, tokens in found.chosen.items()
    )
