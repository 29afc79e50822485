"""What acceptance and step times make of each other, and which candidate is chosen."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specserve.measure.bench.figures import has_limits
from specserve.measure.bench.result import Point, Verdict
from specserve.measure.tune import schedule
from specserve.measure.tune.result import Choice, Confirmed, Row
from specserve.measure.tune.schedule import Schedule
from specserve.measure.tune.walk import geometric
from specserve.profile.schema import Expectation

LONGEST = 64
"""No more draft tokens are looked at."""


def tokens_per_s(concurrency: int, *, mean_length: float, step_s: float) -> float:
    """Output tokens/s of so many requests that decode together."""
    return concurrency * mean_length / step_s


def time_per_token_s(mean_length: float, *, step_s: float) -> float:
    """Seconds from one output token of a request to its next, on average."""
    return step_s / mean_length


def break_even(step_s: float, *, plain_step_s: float) -> float:
    """The mean acceptance length from which speculation pays: how many plain steps its step takes."""
    return step_s / plain_step_s


def speedup(mean_length: float, *, step_s: float, plain_step_s: float) -> float:
    """Of decoding, over the same server without speculation."""
    return mean_length * plain_step_s / step_s


def whole_speedup(decoding: float, *, prefill_share: float) -> float:
    """Of a whole request, where a share (0 to 1) of its time without speculation is prefill, which stays."""
    return 1.0 / (prefill_share + (1.0 - prefill_share) / decoding)


def request_s(output_tokens: float, *, mean_length: float, step_s: float, held_up_s: float) -> float:
    """Seconds of one request: its steps, and what prefills hold it up, its own and those of the others.

    In a closed loop each of the others begins once while it runs, however fast they all are.
    """
    return held_up_s + (output_tokens - 1) / mean_length * step_s


def closed_loop_tokens_per_s(
    output_tokens: float, *, mean_length: float, step_s: float, held_up_s: float, concurrency: int
) -> float:
    """Output tokens/s where a new request is sent whenever one ends."""
    each_s = request_s(output_tokens, mean_length=mean_length, step_s=step_s, held_up_s=held_up_s)
    return concurrency * output_tokens / each_s


def ideal_speedup(alpha: float, *, tokens: int, cost: float) -> float:
    """Where each draft token is accepted with chance `alpha` and verifying costs no more than one token.

    `cost`: seconds of a draft step over seconds of a target step (Leviathan et al. 2023, theorem 3.8).
    """
    return geometric(alpha, tokens=tokens) / (tokens * cost + 1.0)


def ideal_tokens(alpha: float, *, cost: float) -> int:
    """The best number of draft tokens by that formula; 0 where none is faster than none."""
    best = max(range(LONGEST + 1), key=lambda tokens: ideal_speedup(alpha, tokens=tokens, cost=cost))
    return best if ideal_speedup(alpha, tokens=best, cost=cost) > 1.0 else 0


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
    return max(found, key=_particulars, default=None)


def _particulars(item: Expectation) -> int:
    return sum(value is not None for value in (item.concurrency, item.workload, item.temperature))


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
    if not shares:
        return None
    return shares[0] if len(shares) == 1 else shares[0] * shares[1]


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
