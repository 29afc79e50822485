"""Passes to a result: figures, speedups with intervals, verdicts, promises, and where speculation stops paying."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from statistics import median_high

from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import (
    Cell,
    Comparison,
    Figures,
    Point,
    Promise,
    Quantiles,
    Result,
)
from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.bench.variants import Variant
from specserve.measure.expect import KEYS, keeps, strictest, why_not
from specserve.measure.statistics import (
    INCONCLUSIVE,
    NO_DIFFERENCE,
    PAYS,
    Estimate,
    LogEstimate,
    Share,
    Verdict,
    library,
    point,
    quantile_ranks,
    rate,
    ratio,
    verdict,
)
from specserve.metrics.counters import Acceptance, total_acceptance
from specserve.profile.schema import Expectation

SATURATED = 0.85
"""Share of a core above which the load generator, one thread, may hold the server up."""
MOST_FAILED = 0.02
_MOST_CUT = 0.5
_RESAMPLES = 1000


def figures(passes: Sequence[Pass], *, limits: Expectation | None = None) -> Figures | None:
    """Returns all passes together: tokens over seconds, quantiles over requests; None if no request was answered."""
    good = [request for each in passes for request in each.requests if request.ok]
    seconds = sum(each.duration_s for each in passes)
    tokens = sum(request.output_tokens for request in good)
    if not good or not tokens or seconds <= 0:
        return None
    gaps = [gap for request in good for gap in request.chunk_gaps_ms]
    parts = [each.acceptance for each in passes if each.acceptance]
    kept = sum(is_within(request, limits) for request in good)
    waited = [each.queue_s for each in passes if each.queue_s is not None]
    return Figures(
        requests=len(good),
        blocks=len(passes),
        output_tokens=tokens,
        output_tokens_per_s=tokens / seconds,
        ttft_ms=quantiles(request.ttft_s for request in good),
        tpot_ms=quantiles(value for request in good if (value := request.tpot_s) is not None),
        e2e_ms=quantiles(request.latency_s for request in good),
        inter_chunk_p99_ms=point(gaps, 0.99) if gaps else 0.0,
        goodput_per_s=kept / seconds if has_limits(limits) else None,
        acceptance=total_acceptance(parts) if parts else None,
        client_cpu=max(each.client_cpu for each in passes),
        failed_requests=sum(not request.ok for each in passes for request in each.requests),
        queue_ms=1000 * sum(waited) / len(good) if waited else None,
        preemptions=sum(each.preemptions for each in passes),
    )


def quantiles(seconds: Iterable[float]) -> Quantiles:
    """Returns the quantiles in milliseconds; zeros if there is nothing."""
    values = [1000 * value for value in seconds] or [0.0]
    return Quantiles(*(point(values, at) for at in (0.5, 0.9, 0.99)))


def has_limits(limits: Expectation | None) -> bool:
    """Returns whether a promise limits what a request may take."""
    return limits is not None and (limits.max_ttft_p99_ms, limits.max_tpot_p99_ms) != (None, None)


def is_within(request: Request, limits: Expectation | None) -> bool:
    """Returns whether a request kept the limits."""
    if limits is None:
        return True
    if limits.max_ttft_p99_ms is not None and request.ttft_s * 1000 > limits.max_ttft_p99_ms:
        return False
    tpot_s = request.tpot_s
    return limits.max_tpot_p99_ms is None or tpot_s is None or tpot_s * 1000 <= limits.max_tpot_p99_ms


def invalid_reason(passes: Sequence[Pass]) -> str | None:
    """Returns why a cell of these passes counts for nothing, in one clause; None if it counts."""
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


def _share(done: Pass, amount: float, cost: float, prompt: str = "all") -> Share:
    return Share(prompt, str(done.block), amount, cost, launch=str(done.launch))


def shares(passes: Sequence[Pass]) -> list[Share]:
    """Returns output tokens and seconds by request: a pass's time is dealt to its requests as their latencies are."""
    found = []
    for each in passes:
        good = [request for request in each.requests if request.ok]
        latencies_s = sum(request.latency_s for request in good)
        for request in good:
            part = request.latency_s / latencies_s if latencies_s else 1 / len(good)
            found.append(_share(each, request.output_tokens, each.duration_s * part, request.prompt))
    return found


def step_shares(passes: Sequence[Pass]) -> list[Share]:
    """Returns tokens and verification steps, by request if every request reports them, else by pass."""
    found = []
    for each in passes:
        own = [(request.acceptance, request.prompt) for request in each.requests if request.ok]
        if not all(part and part.drafts for part, _ in own):
            own = [(each.acceptance, "all")]
        found += [
            _share(each, part.drafts + part.accepted_tokens, part.drafts, prompt)
            for part, prompt in own
            if part and part.drafts
        ]
    return found


def _rate_shares(passes: Sequence[Pass]) -> list[Share]:
    """Returns accepted and drafted tokens by pass."""
    return [
        _share(each, each.acceptance.accepted_tokens, each.acceptance.draft_tokens)
        for each in passes
        if each.acceptance and each.acceptance.draft_tokens
    ]


def break_even(acceptance: Acceptance | None, *, output_tokens: int, speedup: float) -> float | None:
    """Returns the mean acceptance length at which the variant would be as fast as without speculation, at this load.

    A step of it takes (tokens per step / speedup) as long as one without drafts. Where some steps have no draft, as
    with n-grams, it is the drafted ones whose length would have to change. None if nothing was drafted. At least 1: a
    step with drafts is measured faster than one without only if the machine was busy.
    """
    if acceptance is None or not acceptance.drafts or speedup <= 0:
        return None
    steps = max(output_tokens - acceptance.accepted_tokens, acceptance.drafts)
    drafted = acceptance.drafts / steps
    per_step = 1 + acceptance.accepted_tokens / steps
    return max(1.0, 1 + (per_step / speedup - 1) / drafted)


def compared(
    cells: Mapping[tuple[str, Point], Cell],
    passes: Sequence[Pass],
    *,
    arm: str,
    against: str,
    at: Point,
    launched: int = 2,
    quick: bool = False,
) -> Comparison:
    """Returns one variant compared with another at one point, by the blocks that both have.

    `launched`: of the two, those that were started for this. `quick`: with few prompts on purpose.
    """
    mine, theirs = cells[arm, at], cells[against, at]
    is_invalid = bool(mine.invalid or theirs.invalid)
    found = None
    if not is_invalid:
        found = speedup(passes, arm=arm, against=against, at=at, launched=launched)
    if found is None or mine.figures is None or theirs.figures is None:
        missing = f"it needs {'a valid cell' if is_invalid else 'more blocks'}"
        return Comparison(arm, against, at, None, Verdict(INCONCLUSIVE, "open", missing))
    own, other = mine.figures, theirs.figures
    is_plain = not (other.acceptance and other.acceptance.drafts)  # else its own drafts count, too
    return Comparison(
        arm=arm,
        against=against,
        point=at,
        speedup=found.estimate,
        verdict=verdict(found, quick=quick),
        tpot_p50_ratio=_over(own.tpot_ms.p50, other.tpot_ms.p50),
        ttft_p99_ratio=_over(own.ttft_ms.p99, other.ttft_ms.p99),
        e2e_p99_ratio=_over(own.e2e_ms.p99, other.e2e_ms.p99),
        break_even_mean_acceptance_length=break_even(
            own.acceptance, output_tokens=own.output_tokens, speedup=found.value
        )
        if is_plain
        else None,
        mean_acceptance_length=own.acceptance.mean_acceptance_length if own.acceptance else None,
    )


def _over(value: float, other: float) -> float | None:
    return value / other if other > 0 and value > 0 else None


def speedup(
    passes: Sequence[Pass], *, arm: str, against: str, at: Point, launched: int = 2
) -> LogEstimate | None:
    """Returns output tokens/s of one variant over those of another; None if one of them has nothing."""
    mine, theirs = (
        {(each.launch, each.block): each for each in _of(passes, name, at)} for name in (arm, against)
    )
    both = mine.keys() & theirs.keys()
    sides = [shares([done for key, done in own.items() if key in both]) for own in (mine, theirs)]
    return ratio(sides[0], against=sides[1], launched=launched)


def _of(passes: Sequence[Pass], arm: str | None, at: Point) -> list[Pass]:
    return [each for each in passes if each.arm == arm and each.point == at]


def stops_paying(
    comparisons: Sequence[Comparison],
    cells: Mapping[tuple[str, Point], Cell],
    kv_cache_tokens: Mapping[str, int | None],
) -> dict[str, str]:
    """Returns where it no longer pays, in a clause per `arm/workload/temperature` with several concurrencies."""
    groups: dict[str, dict[int, Comparison]] = defaultdict(dict)
    for item in comparisons:
        at = item.point
        if at.concurrency is not None:
            groups[f"{item.arm}/{at.workload}/{at.temperature:g}"][at.concurrency] = item
    clauses = {}
    for key, found in groups.items():
        loads = sorted(found)
        pays = [load for load in loads if found[load].verdict.word == PAYS]
        if len(loads) < 2:
            continue
        if pays and pays[-1] == loads[-1]:
            clauses[key] = f"still pays at concurrency {loads[-1]}, the highest load measured"
            continue
        first = loads[loads.index(pays[-1]) + 1] if pays else loads[0]
        end, kv = found[first], kv_cache_tokens
        why = _lack_of_room(cells[end.arm, end.point], cells[end.against, end.point], kv)
        if pays:
            clauses[key] = f"pays up to concurrency {pays[-1]}, {verdict_words(end.verdict)} at {first}{why}"
        else:
            clauses[key] = f"does not pay at concurrency {', '.join(map(str, loads))}{why}"
    return clauses


def verdict_words(verdict: Verdict) -> str:
    """Returns the verdict in a sentence: `makes no difference`."""
    words = {NO_DIFFERENCE: "makes no difference", INCONCLUSIVE: "is inconclusive"}
    return words.get(verdict.word, verdict.word.lower())


WAITING = 0.05
"""Share of a request's time from which its wait for room counts."""


def _lack_of_room(mine: Cell, theirs: Cell, kv_cache_tokens: Mapping[str, int | None]) -> str:
    """Returns the clause that its smaller KV cache is why, where requests waited or were preempted for it."""
    own, other = mine.figures, theirs.figures
    room, other_room = kv_cache_tokens.get(mine.arm), kv_cache_tokens.get(theirs.arm)
    if own is None or other is None or not room or not other_room or room >= other_room:
        return ""
    waited, other_waited = own.queue_ms or 0.0, other.queue_ms or 0.0
    waits = waited > max(WAITING * own.e2e_ms.p50, 2 * other_waited)
    if not waits and own.preemptions <= other.preemptions:
        return ""
    return (
        f" because its KV cache is smaller ({room:,} tokens, `{theirs.arm}` {other_room:,}): requests waited "
        f"{waited:.0f} ms (`{theirs.arm}` {other_waited:.0f} ms), {own.preemptions} were preempted "
        f"(`{theirs.arm}` {other.preemptions})"
    )


def promises(plan: BenchPlan, passes: Sequence[Pass]) -> Iterable[Promise]:
    """Yields each limit of each promise, held against what was measured at each point that it matches."""
    if plan.profile is None:
        return
    own, first = plan.own_arm, plan.arms[0]
    against = first.name if first.is_baseline and first.name != own else None
    for index, (expectation, wanted) in enumerate(zip(plan.profile.expect, plan.promised_at, strict=True)):
        matching = [at for at in plan.points if why_not(expectation, *where(at)) is None]
        for at, key in itertools.product(matching or [wanted], KEYS):
            promised = getattr(expectation, key)
            if promised is not None:
                measured = _measured(
                    key, passes, at=at, arm=own, against=against, launched=plan.launched(own, first.name)
                )
                span = plan.profile.span(f"expect[{index}].{key}")
                place = f"{span.file}:{span.line}" if span.line else span.file
                yield Promise(at, key, float(promised), measured, keeps(key, promised, measured), place)


def where(at: Point) -> tuple[str, float, float | None]:
    """Returns what promises are matched with."""
    return at.workload, at.temperature, at.concurrency


def _measured(
    key: str, passes: Sequence[Pass], *, at: Point, arm: str, against: str | None, launched: int
) -> Estimate | None:
    """Returns the figure that a limit is about, or None if a cell that it rests on counts for nothing."""
    mine, theirs = _of(passes, arm, at), _of(passes, against, at)
    if invalid_reason(mine) is not None:
        return None
    if key.startswith("max_"):
        return tail(mine, attrgetter("ttft_s" if key == "max_ttft_p99_ms" else "tpot_s"), at=0.99)
    if key != "min_speedup":
        found = rate((step_shares if key == "min_mean_acceptance_length" else _rate_shares)(mine))
    elif against is None or invalid_reason(theirs) is not None:
        return None
    else:
        found = speedup(passes, arm=arm, against=against, at=at, launched=launched)
    return found.estimate if found else None


def tail(passes: Sequence[Pass], value: Callable[[Request], float | None], *, at: float) -> Estimate | None:
    """Returns a quantile over requests in milliseconds, with an interval that few requests make wide.

    Blocks are resampled and requests in them; beyond that the bounds are those of order statistics, which know
    that the slowest of 50 requests says little of the slowest hundredth: with fewer than 370 P99 has no upper bound.
    """
    numpy = library("numpy")
    timed = [[value(request) for request in each.requests if request.ok] for each in passes]
    groups = [found for each in timed if (found := [1000 * took_s for took_s in each if took_s is not None])]
    if not groups:
        return None
    draw, values = numpy.random.default_rng(1), sorted(chain.from_iterable(groups))
    resampled = []
    for _ in range(_RESAMPLES):
        blocks = [groups[each] for each in draw.integers(len(groups), size=len(groups))]
        again = numpy.concatenate([draw.choice(each, size=len(each)) for each in blocks])
        resampled.append(numpy.quantile(again, at))
    low, high = order_bounds(values, at)
    low, high = min(low, point(resampled, 0.025)), max(high, point(resampled, 0.975))
    return Estimate(point(values, at), low, high, len(values), "95 %, ranks and blocks resampled")


def order_bounds(values: Sequence[float], at: float) -> tuple[float, float]:
    """Returns order statistics between which a quantile lies with 95 %, whatever the distribution; sorted values in."""
    low, high = quantile_ranks(len(values), at)
    return values[low - 1], values[high - 1] if high <= len(values) else math.inf


def outcome(plan: BenchPlan, passes: Sequence[Pass], *, about: Result) -> Result:
    """Returns `about`, which has no figures yet, with what the passes say of the plan's points and promises."""
    expect = plan.profile.expect if plan.profile is not None else ()
    limit = {at: strictest(expect, *where(at)) for at in plan.points}
    cells: dict[tuple[str, Point], Cell] = {}
    for at in plan.points:
        for arm in plan.arms:
            there = _of(passes, arm.name, at)
            found = figures(there, limits=limit.get(at))
            cells[arm.name, at] = Cell(arm.name, at, found, invalid_reason(there))
    against, *others = (arm.name for arm in plan.arms)
    comparisons = tuple(
        compared(
            cells,
            passes,
            arm=name,
            against=against,
            at=at,
            launched=plan.launched(name, against),
            quick=plan.request.quick,
        )
        for at in plan.points
        for name in others
        if cells[name, at].figures is not None
    )
    own = next((arm.plan for arm in plan.arms if arm.name == plan.own_arm), None)
    return replace(
        about,
        fingerprint=own.fingerprint if own else None,
        cells=tuple(cells.values()),
        comparisons=comparisons,
        promises=tuple(promises(plan, passes)),
        stops_paying=stops_paying(comparisons, cells, {arm.name: arm.kv_cache_tokens for arm in about.arms}),
        notes=(
            *about.notes,
            *cut_answers(passes),
            *_equal_texts(plan.arms, passes),
            *_remembering(plan.arms),
        ),
    )


def _equal_texts(arms: Sequence[Variant], passes: Sequence[Pass]) -> Iterable[str]:
    """Yields how many greedy answers of each variant are those of the first: speculation must not change them."""
    texts: dict[str, dict[tuple[str, Point], str]] = defaultdict(dict)
    for each in passes:
        if each.point.temperature == 0:
            good = [request for request in each.requests if request.ok]
            texts[each.arm].update({(request.prompt, each.point): request.text_sha256 for request in good})
    first, *others = (arm.name for arm in arms)
    for arm in others:
        both = texts[arm].keys() & texts[first].keys()
        same = sum(texts[arm][key] == texts[first][key] for key in both)
        if both and same == len(both):
            yield f"`{arm}` gave all {same} greedy answers word for word as `{first}` did"
        elif both:
            yield (
                f"`{arm}` gave {same} of {len(both)} greedy answers word for word as `{first}` did; a few "
                "that differ are rounding, `specserve verify` judges it"
            )


def cut_answers(passes: Sequence[Pass]) -> list[str]:
    """Returns a note for each workload most of whose answers were cut off."""
    ends: dict[str, list[str | None]] = defaultdict(list)
    for each in passes:
        ends[each.point.workload] += [request.finish_reason for request in each.requests if request.ok]
    cut = {name: found.count("length") / len(found) for name, found in ends.items() if found}
    return [
        f"{name}: {part:.0%} of the answers were cut off at their max_tokens"
        for name, part in cut.items()
        if part > _MOST_CUT
    ]


def _remembering(arms: Sequence[Variant]) -> list[str]:
    """Returns a note for each variant whose answers depend on what it was asked before."""
    return [
        f"`{arm.name}` remembers answers (suffix decoding), and prompts recur in a launch: "
        "this is the acceptance of traffic that repeats itself"
        for arm in arms
        if arm.plan and (arm.plan.speculation or {}).get("method") == "suffix"
    ]
