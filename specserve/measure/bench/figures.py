"""Passes to figures, and arms compared at each point: speedup with its interval, verdict, where it stops paying."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high

from specserve.measure.bench.driver import Pass, Request
from specserve.measure.bench.result import Cell, Comparison, Figures, Point, Quantiles, Verdict
from specserve.measure.statistics import LogEstimate, Share, interval, needed, point, ratio, verdict
from specserve.metrics.counters import Acceptance, total_acceptance
from specserve.profile.schema import Expectation

SATURATED = 0.85
"""Share of a core above which the load generator, one thread, may hold the server up."""
MOST_FAILED = 0.02


def figures(passes: Sequence[Pass], *, limits: Expectation | None = None) -> Figures | None:
    """All passes together: tokens over seconds, quantiles over requests; None if no request was answered."""
    good = [request for each in passes for request in each.requests if request.ok]
    seconds = sum(each.duration_s for each in passes)
    tokens = sum(request.output_tokens for request in good)
    if not good or not tokens or seconds <= 0:
        return None
    gaps = [gap for request in good for gap in request.chunk_gaps_ms]
    parts = [each.acceptance for each in passes]
    return Figures(
        requests=len(good),
        blocks=len(passes),
        output_tokens=tokens,
        output_tokens_per_s=tokens / seconds,
        ttft_ms=quantiles(request.ttft_s for request in good),
        tpot_ms=quantiles(value for request in good if (value := request.tpot_s) is not None),
        e2e_ms=quantiles(request.latency_s for request in good),
        inter_chunk_p99_ms=point(gaps, 0.99) if gaps else 0.0,
        goodput_per_s=sum(is_within(request, limits) for request in good) / seconds
        if has_limits(limits)
        else None,
        acceptance=total_acceptance(part for part in parts if part is not None) if any(parts) else None,
        client_cpu=max(each.client_cpu for each in passes),
        failed_requests=sum(not request.ok for each in passes for request in each.requests),
    )


def quantiles(seconds: Iterable[float]) -> Quantiles:
    """In milliseconds; zeros if there is nothing."""
    values = sorted(seconds)
    if not values:
        return Quantiles(0.0, 0.0, 0.0)
    return Quantiles(*(point(values, at) * 1000 for at in (0.5, 0.9, 0.99)))


def has_limits(limits: Expectation | None) -> bool:
    """Whether a promise limits what a request may take."""
    return limits is not None and (limits.max_ttft_p99_ms, limits.max_tpot_p99_ms) != (None, None)


def is_within(request: Request, limits: Expectation | None) -> bool:
    """Whether a request kept the limits."""
    if limits is None:
        return True
    if limits.max_ttft_p99_ms is not None and request.ttft_s * 1000 > limits.max_ttft_p99_ms:
        return False
    tpot_s = request.tpot_s
    return limits.max_tpot_p99_ms is None or tpot_s is None or tpot_s * 1000 <= limits.max_tpot_p99_ms


def invalid_reason(passes: Sequence[Pass]) -> str | None:
    """Why a cell of these passes counts for nothing, in one clause; None if it counts."""
    if not passes:
        return "it was not measured"
    requests = [request for each in passes for request in each.requests]
    failed = [request for request in requests if not request.ok]
    if len(failed) > MOST_FAILED * len(requests):
        why = next((request.error for request in failed if request.error), "no reason given")
        end = why if len(why) <= 160 else f"…{why[-160:]}"
        return f"{len(failed)} of {len(requests)} requests failed: {end}"
    busy = median_high(each.client_cpu for each in passes)
    if busy > SATURATED:
        return f"the load generator was busy for {busy:.0%} of the time: it slowed the server down"
    return None


def share(done: Pass, amount: float, cost: float, *, prompt: str = "all") -> Share:
    """What a pass, or one prompt of it, adds to a rate."""
    return Share(prompt, str(done.block), amount, cost, launch=str(done.launch))


def shares(passes: Sequence[Pass]) -> list[Share]:
    """Output tokens and seconds by request: a pass's time is dealt to its requests as their latencies are."""
    found = []
    for each in passes:
        good = [request for request in each.requests if request.ok]
        latencies_s = sum(request.latency_s for request in good)
        for request in good:
            part = request.latency_s / latencies_s if latencies_s else 1 / len(good)
            found.append(share(each, request.output_tokens, each.duration_s * part, prompt=request.prompt))
    return found


def break_even(acceptance: Acceptance | None, *, output_tokens: int, speedup: float) -> float | None:
    """The mean acceptance length at which the arm would be as fast as without speculation, at this load.

    A step of it takes (tokens per step / speedup) as long as one without drafts. Where some steps have no draft, as
    with n-grams, it is the drafted ones whose length would have to change. None if nothing was drafted.
    """
    if acceptance is None or not acceptance.drafts or speedup <= 0:
        return None
    steps = max(output_tokens - acceptance.accepted_tokens, acceptance.drafts)
    drafted = acceptance.drafts / steps
    per_step = 1 + acceptance.accepted_tokens / steps
    return 1 + (per_step / speedup - 1) / drafted


_WORDS = {
    Verdict.PAYS: "pays",
    Verdict.COSTS: "costs",
    Verdict.NO_DIFFERENCE: "makes no difference",
    Verdict.INCONCLUSIVE: "is not decided",
}


def compared(
    cells: Mapping[tuple[str, Point], Cell], passes: Sequence[Pass], *, arm: str, against: str, at: Point
) -> Comparison:
    """One arm with another at one point, by the blocks that both have."""
    mine, theirs = cells[arm, at], cells[against, at]
    found = None if mine.invalid or theirs.invalid else speedup(passes, arm=arm, against=against, at=at)
    if found is None or mine.figures is None or theirs.figures is None:
        why = mine.invalid or theirs.invalid
        return Comparison(
            arm, against, at, None, Verdict.INCONCLUSIVE, "a valid cell" if why else "more blocks"
        )
    judged, acceptance = verdict(found), mine.figures.acceptance
    return Comparison(
        arm=arm,
        against=against,
        point=at,
        speedup=interval(found),
        verdict=judged,
        needed=needed(found) if judged is Verdict.INCONCLUSIVE else None,
        tpot_p50_ratio=_over(mine.figures.tpot_ms.p50, theirs.figures.tpot_ms.p50),
        ttft_p99_ratio=_over(mine.figures.ttft_ms.p99, theirs.figures.ttft_ms.p99),
        e2e_p99_ratio=_over(mine.figures.e2e_ms.p99, theirs.figures.e2e_ms.p99),
        break_even_mean_acceptance_length=break_even(
            acceptance, output_tokens=mine.figures.output_tokens, speedup=found.value
        ),
        mean_acceptance_length=acceptance.mean_acceptance_length if acceptance else None,
    )


def speedup(passes: Sequence[Pass], *, arm: str, against: str, at: Point) -> LogEstimate | None:
    """Output tokens/s of one arm over those of another; None if one of them has nothing."""
    mine, theirs = (
        {(each.launch, each.block): each for each in passes if each.point == at and each.arm == name}
        for name in (arm, against)
    )
    both = mine.keys() & theirs.keys()
    return ratio(
        shares([done for key, done in mine.items() if key in both]),
        against=shares([done for key, done in theirs.items() if key in both]),
    )


def stops_paying(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Per `arm/workload/temperature` with several concurrencies: where it no longer pays, in one clause."""
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for item in comparisons:
        if item.point.concurrency is not None and item.point.prefix_cache:
            groups[f"{item.arm}/{item.point.workload}/{item.point.temperature:g}"].append(item)
    return {key: _clause(items) for key, items in groups.items() if len(items) > 1}


def _clause(items: list[Comparison]) -> str:
    items = sorted(items, key=lambda item: item.point.concurrency or 0)
    loads = [item.point.concurrency or 0 for item in items]
    pays = [load for load, item in zip(loads, items, strict=True) if item.verdict is Verdict.PAYS]
    if not pays:
        return f"does not pay at concurrency {', '.join(map(str, loads))}"
    last = max(pays)
    if last == loads[-1]:
        return f"still pays at {_load_words(last)}, the highest load measured"
    after = items[loads.index(last) + 1]
    return f"pays up to {_load_words(last)}, {_WORDS[after.verdict]} at {after.point.concurrency}"


def _load_words(load: int) -> str:
    return f"concurrency {load}"


def _over(value: float, other: float) -> float | None:
    return value / other if other > 0 and value > 0 else None
