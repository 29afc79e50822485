"""Which candidate, and how many draft tokens at which load. Pure; what it chose is confirmed elsewhere."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specserve.measure.bench.result import Verdict
from specserve.measure.tune import schedule
from specserve.measure.tune.pareto import Choice as Place
from specserve.measure.tune.pareto import ends
from specserve.measure.tune.result import Choice, Confirmed, Row
from specserve.measure.tune.schedule import Schedule

Objective = Literal["tpot", "throughput", "goodput"]
_GAINED: Mapping[Objective, str] = {
    "throughput": "the tokens/s",
    "tpot": "the tokens/s of a request",
    "goodput": "the goodput",
}
LEAST_SPEEDUP = 1.03
"""Speculation that gives less is not worth a second model."""
_LEAST_SHARE = 1e-3
"""Of requests within the limits: where no side keeps them, tokens/s decide."""
LEAST_LEAD = 0.02
"""Another candidate than the profile's own must be better by so much."""


@dataclass(frozen=True, slots=True)
class Ready:
    """One measured candidate that may be chosen."""

    name: str
    speculation: Mapping[str, Any]
    """The block of the profile, its K and schedule to be replaced."""
    rows: Sequence[Row]
    follows_schedule: bool = True
    zero_cost: float | None = None
    """Rate of a K = 0 range over that of a server without speculation, measured; None: not measured."""
    is_own: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def choose(candidates: Sequence[Ready], *, objective: Objective) -> Choice:
    """The best candidate with its schedule, or to run without."""
    best: tuple[float, Ready, Schedule] | None = None
    for each in candidates:
        table = speedups(each.rows, objective=objective)
        if not table:
            continue
        found = schedule.build(
            _with_zero(table, each.zero_cost),
            zero_wins_at=zero_wins(table, each.zero_cost),
            may_vary=each.follows_schedule,
        )
        score = _mean(table, found, each.zero_cost) * (1 + LEAST_LEAD if each.is_own else 1.0)
        if best is None or score > best[0]:
            best = (score, each, found)
    if best is None:
        return Choice(False, "nothing that speculates was measured")
    return _told(best[1], best[2], objective=objective)


def _told(each: Ready, found: Schedule, *, objective: Objective) -> Choice:
    table = speedups(each.rows, objective=objective)
    gains = {load: table[load].get(tokens, 1.0) for load, tokens in found.chosen.items() if tokens}
    if not found.largest or max(gains.values()) < LEAST_SPEEDUP or _mean(table, found, each.zero_cost) <= 1:
        return Choice(False, _why_none(table, found, each), each.name)
    worst = min(gains, key=lambda at: gains[at])
    least = f"{gains[worst]:.2f}x at {worst} request{'s' * (worst > 1)} at once"
    reason = f"{max(gains.values()):.2f}x {_GAINED[objective]} at best, {least}{_over(each.rows)}"
    return Choice(
        speculates=True,
        reason=reason,
        candidate=each.name,
        speculation=block(each.speculation, found),
        env=each.env,
        by_load=dict(found.chosen),
        schedule=None if found.is_constant else found.ranges,
    )


def _over(rows: Sequence[Row]) -> str:
    """What a figure for a load is the mean of, where it is one."""
    count = len({(row.workload, row.temperature) for row in rows})
    return f" (geometric means of {count} workloads and temperatures)" if count > 1 else ""


def _why_none(table: Mapping[int, Mapping[int, float]], found: Schedule, each: Ready) -> str:
    """Why this candidate is not worth it: nowhere, or not with what serves all loads."""
    tops = {load: max(rates.values()) for load, rates in table.items()}
    load = max(tops, key=lambda at: tops[at])
    tokens = max(table[load], key=lambda at: table[load][at])
    best = f"the best there is, K = {tokens} at {load} request{'s' * (load > 1)}, is {tops[load]:.2f}x"
    if tops[load] < LEAST_SPEEDUP:
        return f"{best}: less than {LEAST_SPEEDUP}x at every load"
    mean = _mean(table, found, each.zero_cost)
    return f"{best}, but what would serve all loads, {_in_words(found)}, is {mean:.2f}x over them"


def _in_words(found: Schedule) -> str:
    if found.is_constant:
        return f"K = {found.largest}"
    return "K by batch size"


def after(choice: Choice, confirmed: Sequence[Confirmed], *, objective: Objective) -> Choice:
    """The choice once it was measured: what pays nowhere, or costs over all loads, is not chosen.

    Verdicts are of tokens/s; by another objective its own figure decides.
    """
    gains = [gain for each in confirmed if (gain := _gain(each, objective=objective)) is not None]
    if not choice.speculates or not gains:
        return choice
    mean = math.exp(math.fsum(map(math.log, gains)) / len(gains))
    verdicts = {each.comparison.verdict for each in confirmed} if objective == "throughput" else set()
    if mean > 1 and Verdict.PAYS in verdicts:
        return choice
    if mean >= LEAST_SPEEDUP and Verdict.COSTS not in verdicts:
        return choice  # too little was measured to tell, and nothing speaks against it
    reason = f"{choice.candidate} was predicted {choice.reason}, and measured {mean:.2f}x over all loads"
    return Choice(False, reason, choice.candidate)


def _gain(each: Confirmed, *, objective: Objective) -> float | None:
    """Measured, over no speculation; None where it was not."""
    item = each.comparison
    if item.speedup is None:
        return None
    if objective == "tpot" and item.tpot_p50_ratio:
        return 1 / item.tpot_p50_ratio
    if objective == "goodput" and each.within_limits is not None and each.plain_within_limits is not None:
        return item.speedup.value * _shares(each.within_limits, each.plain_within_limits)
    return item.speedup.value


def _shares(within: float, plain: float) -> float:
    """Of requests within the limits, over that without speculation."""
    return max(within, _LEAST_SHARE) / max(plain, _LEAST_SHARE)


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
        elif objective == "goodput" and row.within_limits is not None and row.plain_within_limits is not None:
            value *= _shares(row.within_limits, row.plain_within_limits)
        gathered.setdefault(row.concurrency, {}).setdefault(row.tokens, []).append(value)
    return {
        load: {
            tokens: math.exp(math.fsum(map(math.log, found)) / len(found)) for tokens, found in by_k.items()
        }
        for load, by_k in gathered.items()
    }


def _with_zero(table: Mapping[int, Mapping[int, float]], cost: float | None) -> dict[int, dict[int, float]]:
    return {load: {**rates, **({0: cost} if cost is not None else {})} for load, rates in table.items()}


def zero_wins(table: Mapping[int, Mapping[int, float]], cost: float | None) -> Collection[int]:
    """The highest load, beside which a K = 0 range was measured, if that is better there than every K above it.

    What a K = 0 range costs at lower loads is not known.
    """
    if cost is None:
        return ()
    load = max(table)
    return [load] if cost > max(table[load].values()) * (1 + schedule.LEAST_GAIN) else []


def _mean(table: Mapping[int, Mapping[int, float]], found: Schedule, zero_cost: float | None) -> float:
    values = [
        table[load].get(tokens, zero_cost or 1.0) if tokens else zero_cost or 1.0
        for load, tokens in found.chosen.items()
    ]
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def best_ends(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """The row of the lowest time per token, and that of the most tokens/s, of one workload; None without rows."""
    places = {Place(row.concurrency, row.tokens, row.tpot_ms / 1000, row.tokens_per_s): row for row in rows}
    found = ends(places)
    return (places[found[0]], places[found[1]]) if found else None
