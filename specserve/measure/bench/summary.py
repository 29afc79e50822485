"""From all passes of a run to its result: cells, comparisons, promises, where it stops paying."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean, median_high
from typing import TYPE_CHECKING

from specserve.measure.bench.passes import Pass, paired, passes_of
from specserve.measure.bench.plan import BASELINE, PROFILE, BenchPlan
from specserve.measure.bench.result import (
    Cell,
    Comparison,
    Figures,
    LatencyPart,
    Point,
    Quantiles,
    Result,
)
from specserve.measure.verdict import (
    INCONCLUSIVE,
    PAYS,
    Estimate,
    Judged,
    LogEstimate,
    RateSample,
    Verdict,
    judge,
    library,
    limits,
    needed,
    p99,
    quantile,
    quantile_ratio,
    rate,
    ratio,
    verdict,
)
from specserve.metrics import Acceptance, total_acceptance

if TYPE_CHECKING:
    from specserve.profile.schema import Profile


SATURATED = 0.85
"""Share of a core above which the load generator, one thread, may hold the server up."""
MAX_FAILED = 0.02


def figures(passes: Sequence[Pass]) -> Figures | None:
    """Return all passes together; None if no request was answered."""
    good = [request for each in passes for request in each.answered]
    seconds = sum(each.duration_s for each in passes)
    tokens = sum(request.output_tokens for request in good)
    if not good or not tokens or seconds <= 0:
        return None
    parts = [each.acceptance for each in passes if each.acceptance]
    waited = [each.queue_s for each in passes if each.queue_s is not None]
    return Figures(
        requests=len(good),
        blocks=len(passes),
        output_tokens=tokens,
        output_tokens_per_s=tokens / seconds,
        ttft_ms=_quantiles(request.ttft_s for request in good),
        tpot_ms=_quantiles(value for request in good if (value := request.tpot_s) is not None),
        e2e_ms=_quantiles(request.latency_s for request in good),
        acceptance=total_acceptance(parts) if parts else None,
        failed_requests=sum(len(each.requests) for each in passes) - len(good),
        queue_ms=1000 * sum(waited) / len(good) if waited else None,
        preemptions=sum(each.preemptions for each in passes),
    )


def _quantiles(seconds: Iterable[float]) -> Quantiles:
    """Return the quantiles in milliseconds; zeros if there is nothing."""
    values = [1000 * value for value in seconds] or [0.0]
    return Quantiles(*(quantile(values, at) for at in (0.5, 0.9, 0.99)))


def invalid_reason(passes: Sequence[Pass]) -> str | None:
    """Return why a cell of these passes counts for nothing, in one clause; None if it counts."""
    if not passes:
        return "it was not measured"
    requests = [request for each in passes for request in each.requests]
    failed = [request for request in requests if not request.ok]
    if len(failed) > MAX_FAILED * len(requests):
        why = next((request.error for request in failed if request.error), "no reason given")
        end = why if len(why) <= 160 else f"…{why[-160:]}"
        return f"{len(failed)} of {len(requests)} requests failed: {end}"
    busy = median_high(each.client_cpu for each in passes)
    if busy > SATURATED:
        return f"the load generator was busy for {busy:.0%} of the time: it slowed the server down"
    return None


def token_samples(passes: Sequence[Pass]) -> list[RateSample]:
    """Return output tokens and seconds by request: those of a pass are dealt by latency."""
    found = []
    for each in passes:
        good = each.answered
        latencies_s = sum(request.latency_s for request in good)
        for request in good:
            part = request.latency_s / latencies_s if latencies_s else 1 / len(good)
            seconds = each.duration_s * part
            found.append(sample(each, request.output_tokens, seconds, request.prompt))
    return found


LATENCIES = {"tpot_ms": "tpot_s", "ttft_ms": "ttft_s", "e2e_ms": "latency_s"}
"""By the name of the figure, that of a request; an answer of one token has no TPOT."""
QUANTILES = {"p50": 0.5, "p99": 0.99}


def speedup(
    passes: Sequence[Pass],
    *,
    variant: str,
    against: str,
    at: Point,
    latency: str = "e2e_ms",
    share: str = "p50",
) -> LogEstimate | None:
    """Return output tokens/s of one variant over those of another, by the blocks that both have.

    At a request rate, which tokens/s follow: a quantile of a latency of the other over the
    variant's. None if one of them has nothing.
    """
    sides = paired(passes, variant, against, at)
    between = sum(each[0].launch_spread ** 2 for each in sides if each)
    if not at.request_rate:
        samples, others = map(token_samples, sides)
        return ratio(samples, against=others, between=between)
    samples, others = (
        [
            sample(each, 1.0, seconds, request.prompt)
            for each in side
            for request in each.answered
            if (seconds := getattr(request, LATENCIES[latency])) is not None
        ]
        for side in sides
    )
    return quantile_ratio(samples, against=others, at=QUANTILES[share], between=between)


_LIMITED = {"max_ttft_p99_ms": "ttft_s", "max_tpot_p99_ms": "tpot_s"}


def goodput(profile: Profile, passes: Sequence[Pass], at: Point) -> Estimate | None:
    """Return the share of requests answered within the latency limits; None if there are none.

    The wider interval of two: by blocks and prompts, and the exact one of so many requests.
    """
    limits_s = [
        (_LIMITED[limit.key], limit.promised / 1000)
        for limit in limits(profile, at.workload, at.temperature, None)
        if limit.why_not is None and limit.key in _LIMITED
    ]
    samples = [
        sample(
            each,
            request.ok and all((getattr(request, of) or 0.0) <= most for of, most in limits_s),
            1.0,
            request.prompt,
        )
        for each in passes
        for request in each.requests
    ]
    if not limits_s or not samples:
        return None
    good, count = sum(each.amount > 0 for each in samples), len(samples)
    bounds = [library("scipy.stats").binomtest(good, count).proportion_ci()]
    bounds += [found.bounds()] if (found := rate(samples)) else []
    low, high = min(low for low, _ in bounds), min(1.0, max(high for _, high in bounds))
    return Estimate(good / count, float(low), float(high), count, "95 %, by requests and blocks")


def _falls_behind(passes: Sequence[Pass]) -> bool:
    """Return whether what was sent late in a block took half as long again as what was early."""
    halves: tuple[list[float], list[float]] = ([], [])
    for each in passes:
        for request in each.answered:
            is_late = 2 * int(request.id.rsplit("#", 1)[1]) >= len(each.requests)
            halves[is_late].append(request.latency_s)
    return all(halves) and fmean(halves[1]) > 1.5 * fmean(halves[0])


def sample(done: Pass, amount: float, cost: float, prompt: str = "all") -> RateSample:
    """Return what a pass, or the answer to one of its prompts, adds to a rate."""
    return RateSample(prompt, str(done.block), amount, cost, launch=str(done.launch))


WAITING = 0.05
"""Share of a request's time from which its wait for room counts."""


def summarise(plan: BenchPlan, passes: Sequence[Pass], *, about: Result) -> Result:
    """Return `about`, which has no figures yet, with what the passes say of the plan's points."""
    cells: dict[tuple[str, Point], Cell] = {}
    for at in plan.points:
        for variant in plan.variants:
            there = passes_of(passes, variant.name, at)
            cells[variant.name, at] = Cell(variant.name, at, figures(there), invalid_reason(there))
    comparisons = tuple(
        _compared(plan, passes, cells, variant.name, at)
        for at in plan.points
        for variant in plan.variants[1:]
        if cells[variant.name, at].figures is not None
    )
    if plan.profile is not None:
        for key, cell in cells.items():
            share = goodput(plan.profile, passes_of(passes, *key), key[1])
            cells[key] = replace(cell, goodput=share if key[1].request_rate else None)
        name = PROFILE if plan.profile.speculation is not None else BASELINE
        for at in plan.points:
            promises = tuple(_promises(plan.profile, passes, cells[name, at], comparisons))
            cells[name, at] = replace(cells[name, at], promises=promises)
    room = {variant.name: variant.kv_cache_tokens for variant in about.variants}
    return replace(
        about,
        cells=tuple(cells.values()),
        comparisons=comparisons,
        stops_paying=stops_paying(comparisons, cells, room),
        notes=(*about.notes, *_notes(plan, passes, cells.values())),
    )


def _compared(
    plan: BenchPlan,
    passes: Sequence[Pass],
    cells: Mapping[tuple[str, Point], Cell],
    variant: str,
    at: Point,
) -> Comparison:
    """Return one variant compared with the first one at one point."""
    against = plan.variants[0].name
    mine, theirs = cells[variant, at], cells[against, at]
    is_invalid = bool(mine.invalid or theirs.invalid)
    given = [] if is_invalid else passes
    at_point = partial(speedup, given, variant=variant, against=against, at=at)
    found = at_point()
    if found is None or mine.figures is None or theirs.figures is None:
        missing = f"it needs {'a valid cell' if is_invalid else 'more blocks'}"
        return Comparison(variant, against, at, None, Verdict(INCONCLUSIVE, "open", missing))
    own, other, judged = mine.figures, theirs.figures, verdict(found)
    if judged.level == "open":
        advice = _advice(found, quick=plan.request.quick, alone=not plan.together)
        judged = replace(judged, sentence=f"{judged.sentence}; {advice}")
    drafted = other.acceptance and other.acceptance.drafts  # its own would count, too
    mine_alone = None if drafted or at.request_rate else own.acceptance
    even = break_even(mine_alone, output_tokens=own.output_tokens, speedup=found.value)
    return Comparison(
        variant=variant,
        against=against,
        point=at,
        speedup=found.estimate,
        verdict=judged,
        break_even_mean_acceptance_length=even,
        mean_acceptance_length=own.acceptance.mean_acceptance_length if own.acceptance else None,
        latencies=tuple(
            LatencyPart(latency, share, part.estimate, verdict(part))
            for latency, share in product(LATENCIES, QUANTILES if at.request_rate else ())
            if (part := at_point(latency=latency, share=share))
        ),
    )


def _advice(estimate: LogEstimate, *, quick: bool, alone: bool) -> str:
    """Return what would decide a comparison, as an option, in one clause."""
    what, more = needed(estimate)
    if what == "blocks" and alone:  # a server that has ended gets no more of them
        what, more = "launches", math.ceil(estimate.launches * more / estimate.blocks)
    if what == "nothing":
        return "more work would hardly decide it: it is too close to a limit, or varies too much"
    how = {
        "prompts": "run again with a larger file (-w FILE)",
        "launches": f"run again with --launches {estimate.launches + more}",
        "blocks": "go on with `--resume RUN` and a longer `--budget`",
    }
    return f"it needs more {what}: {'run again without --quick' if quick else how[what]}"


def break_even(
    acceptance: Acceptance | None, *, output_tokens: int, speedup: float
) -> float | None:
    """Return the mean acceptance length at which it would be as fast as without speculation.

    A step takes (tokens per step / speedup) as long as one without drafts. Where some steps have no
    draft, as with n-grams, it is the drafted ones whose length would have to change. None if
    nothing was drafted. At least 1: drafts make a step faster only if the machine was busy.
    """
    if acceptance is None or not acceptance.drafts or speedup <= 0:
        return None
    steps = max(output_tokens - acceptance.accepted_tokens, acceptance.drafts)
    drafted = acceptance.drafts / steps
    per_step = 1 + acceptance.accepted_tokens / steps
    return max(1.0, 1 + (per_step / speedup - 1) / drafted)


def stops_paying(
    comparisons: Sequence[Comparison],
    cells: Mapping[tuple[str, Point], Cell],
    kv_cache_tokens: Mapping[str, int | None],
) -> dict[str, str]:
    """Return in a clause where each variant no longer pays, if several loads were measured."""
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for item in sorted(comparisons, key=lambda item: item.point.load):
        groups[f"{item.variant}, {item.point.workload}, {item.point.temperature:g}"].append(item)
    clauses = {}
    for key, found in groups.items():
        kind, loads = found[0].point.load_kind, [f"{item.point.load:g}" for item in found]
        pays = [place for place, item in enumerate(found, 1) if item.verdict.word == PAYS]
        if len(found) < 2:
            continue
        if pays and pays[-1] == len(found):
            clauses[key] = f"still pays at {kind} {loads[-1]}, the highest load measured"
            continue
        end = found[pays[-1] if pays else 0]
        clauses[key] = f"does not pay at {kind} {', '.join(loads)}"
        if pays:
            words = f"{end.verdict.word.lower()} at {end.point.load:g}"
            clauses[key] = f"pays up to {kind} {loads[pays[-1] - 1]}, {words}"
        mine, theirs = cells[end.variant, end.point], cells[end.against, end.point]
        clauses[key] += _lack_of_room(mine, theirs, kv_cache_tokens)
    return clauses


def _lack_of_room(mine: Cell, theirs: Cell, kv_cache_tokens: Mapping[str, int | None]) -> str:
    """Return the clause that its smaller KV cache is why, where requests waited for room."""
    own, other = mine.figures, theirs.figures
    room, other_room = kv_cache_tokens.get(mine.variant), kv_cache_tokens.get(theirs.variant)
    if own is None or other is None or not room or not other_room or room >= other_room:
        return ""
    waited, other_waited = own.queue_ms or 0.0, other.queue_ms or 0.0
    waits = waited > max(WAITING * own.e2e_ms.p50, 2 * other_waited)
    if not waits and own.preemptions <= other.preemptions:
        return ""
    rooms = f"{room:,} tokens, `{theirs.variant}` {other_room:,}"
    return f" because its KV cache is smaller ({rooms}), and requests waited {waited:.0f} ms for it"


def _promises(
    profile: Profile, passes: Sequence[Pass], own: Cell, comparisons: Sequence[Comparison]
) -> Iterator[Judged]:
    """Yield each limit of `expect` that holds at a point, held against what was measured there."""
    at, there = own.point, passes_of(passes, own.variant, own.point)
    speedups = [
        each.speedup
        for each in comparisons
        if (each.variant, each.against, each.point) == (own.variant, BASELINE, at)
    ]
    for limit in limits(profile, at.workload, at.temperature, at.concurrency or None):
        if limit.why_not is not None or (at.request_rate and limit.key == "min_speedup"):
            continue
        if limit.key == "min_speedup":
            measured = speedups[0] if speedups else None
        else:
            measured = _measured(limit.key, there) if own.invalid is None else None
        yield judge(limit, measured)


def _measured(key: str, passes: Sequence[Pass]) -> Estimate | None:
    """Return the figure that a limit of `expect` is about."""
    answers = [request for each in passes for request in each.answered]
    if key == "max_ttft_p99_ms":
        return p99([1000 * request.ttft_s for request in answers])
    if key == "max_tpot_p99_ms":
        return p99([1000 * tpot_s for each in answers if (tpot_s := each.tpot_s) is not None])
    parts = [(each, each.acceptance) for each in passes if each.acceptance]
    if key == "min_acceptance_rate":
        found = rate([sample(each, own.accepted_tokens, own.draft_tokens) for each, own in parts])
    else:  # tokens of a step
        found = rate([sample(p, own.drafts + own.accepted_tokens, own.drafts) for p, own in parts])
    return found.estimate if found else None


def _notes(plan: BenchPlan, passes: Sequence[Pass], cells: Collection[Cell]) -> Iterator[str]:
    """Yield what a reader must know of loads, of answers that recur, of promises not measured."""
    for cell in cells:
        there = passes_of(passes, cell.variant, cell.point)
        if cell.point.request_rate and _falls_behind(there):
            yield (
                f"`{cell.variant}` does not keep up with {cell.point}: requests wait ever longer, "
                "so that its latencies depend on how long a block is"
            )
    for variant in plan.variants:
        if variant.plan and (variant.plan.speculation or {}).get("method") == "suffix":
            yield (
                f"`{variant.name}` remembers answers (suffix decoding), and prompts recur in a "
                "launch: this is the acceptance of traffic that repeats itself"
            )
    if plan.profile is not None:
        judged = {each.limit.place for cell in cells for each in cell.promises}
        places = {limit.place for limit in limits(plan.profile, None, None, None)}
        for place in sorted(places - judged):
            yield f"the promise at {place} is for no point that was measured"
