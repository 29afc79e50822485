"""Passes to a result: figures, speedups with intervals and verdicts, promises, where it ends."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import median_high

from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import (
    Cell,
    Comparison,
    Figures,
    LengthPart,
    Point,
    Quantiles,
    Result,
)
from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.expect import Judged, judge, limits
from specserve.measure.intervals import (
    Estimate,
    LogEstimate,
    RateSample,
    p99,
    quantile,
    rate,
    ratio,
)
from specserve.measure.verdict import INCONCLUSIVE, PAYS, Verdict, needed, verdict, verdict_words
from specserve.metrics.counters import Acceptance, total_acceptance

SATURATED = 0.85
"""Share of a core above which the load generator, one thread, may hold the server up."""
MAX_FAILED = 0.02
WAITING = 0.05
"""Share of a request's time from which its wait for room counts."""
_MAX_CUT = 0.5
_LENGTHS, _LENGTH_PARTS = 4.0, 3
"""Prompts whose lengths differ by such a factor are also judged in so many parts."""


def figures(passes: Sequence[Pass]) -> Figures | None:
    """Return all passes together; None if no request was answered."""
    good = [request for each in passes for request in each.requests if request.ok]
    seconds = sum(each.duration_s for each in passes)
    tokens = sum(request.output_tokens for request in good)
    if not good or not tokens or seconds <= 0:
        return None
    gaps = [gap for request in good for gap in request.chunk_gaps_ms]
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
        inter_chunk_p99_ms=quantile(gaps, 0.99) if gaps else 0.0,
        acceptance=total_acceptance(parts) if parts else None,
        failed_requests=sum(not request.ok for each in passes for request in each.requests),
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


def _sample(done: Pass, amount: float, cost: float, prompt: str = "all") -> RateSample:
    return RateSample(prompt, str(done.block), amount, cost, launch=str(done.launch))


def token_samples(
    passes: Sequence[Pass], *, where: Callable[[Request], bool] = lambda _: True
) -> list[RateSample]:
    """Return output tokens and seconds by request: those of a pass are dealt by latency."""
    found = []
    for each in passes:
        good = [request for request in each.requests if request.ok]
        latencies_s = sum(request.latency_s for request in good)
        for request in filter(where, good):
            part = request.latency_s / latencies_s if latencies_s else 1 / len(good)
            seconds = each.duration_s * part
            found.append(_sample(each, request.output_tokens, seconds, request.prompt))
    return found


def step_samples(passes: Sequence[Pass]) -> list[RateSample]:
    """Return tokens and steps, by request if every request reports them, else by pass."""
    found = []
    for each in passes:
        own = [(request.acceptance, request.prompt) for request in each.requests if request.ok]
        if not all(part and part.drafts for part, _ in own):
            own = [(each.acceptance, "all")]
        found += [
            _sample(each, part.drafts + part.accepted_tokens, part.drafts, prompt)
            for part, prompt in own
            if part and part.drafts
        ]
    return found


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


def speedup(
    passes: Sequence[Pass],
    *,
    variant: str,
    against: str,
    at: Point,
    launched: int = 2,
    where: Callable[[Request], bool] = lambda _: True,
) -> LogEstimate | None:
    """Return output tokens/s of one variant over those of another, by the blocks that both have.

    `launched`: of the two, those that were started for this. None if one of them has nothing.
    """
    mine, theirs = (
        {(each.launch, each.block): each for each in of(passes, name, at)}
        for name in (variant, against)
    )
    both = mine.keys() & theirs.keys()
    sides = [
        token_samples([done for key, done in own.items() if key in both], where=where)
        for own in (mine, theirs)
    ]
    return ratio(sides[0], against=sides[1], launched=launched)


def of(passes: Sequence[Pass], variant: str | None, at: Point) -> list[Pass]:
    """Return those of a variant at a point."""
    return [each for each in passes if each.variant == variant and each.point == at]


def compared(
    cells: Mapping[tuple[str, Point], Cell],
    passes: Sequence[Pass],
    *,
    variant: str,
    against: str,
    at: Point,
    launched: int = 2,
    quick: bool = False,
    budget_s: float | None = None,
) -> Comparison:
    """Return one variant compared with another at one point.

    `launched`: of the two, those that were started for this. `quick`: with few prompts on purpose.
    `budget_s`: what there was for measuring.
    """
    mine, theirs = cells[variant, at], cells[against, at]
    is_invalid = bool(mine.invalid or theirs.invalid)
    found = None
    if not is_invalid:
        found = speedup(passes, variant=variant, against=against, at=at, launched=launched)
    if found is None or mine.figures is None or theirs.figures is None:
        missing = f"it needs {'a valid cell' if is_invalid else 'more blocks'}"
        return Comparison(variant, against, at, None, Verdict(INCONCLUSIVE, "open", missing))
    own, other, judged = mine.figures, theirs.figures, verdict(found)
    if judged.level == "open":
        block_s = sum(
            each.duration_s for name in (variant, against) for each in of(passes, name, at)
        )
        block_s /= max(1, found.blocks)
        advice = _advice(found, quick=quick, block_s=block_s, budget_s=budget_s)
        judged = replace(judged, sentence=f"{judged.sentence}; {advice}")
    even = None
    if not (other.acceptance and other.acceptance.drafts):  # else its own drafts count, too
        tokens = own.output_tokens
        even = break_even(own.acceptance, output_tokens=tokens, speedup=found.value)
    return Comparison(
        variant=variant,
        against=against,
        point=at,
        speedup=found.estimate,
        verdict=judged,
        e2e_p99_ratio=own.e2e_ms.p99 / other.e2e_ms.p99 if other.e2e_ms.p99 > 0 else None,
        break_even_mean_acceptance_length=even,
        mean_acceptance_length=own.acceptance.mean_acceptance_length if own.acceptance else None,
        by_length=tuple(
            _by_length(passes, variant=variant, against=against, at=at, launched=launched)
        ),
    )


def _advice(estimate: LogEstimate, *, quick: bool, block_s: float, budget_s: float | None) -> str:
    """Return what would decide a comparison, as an option, in one clause."""
    what, more = needed(estimate)
    if what == "nothing":
        return "more work would hardly decide it: it is too close to a limit, or varies too much"
    noun = what if more > 1 else what.removesuffix("s").removesuffix("e" * (what == "launches"))
    text = f"it needs about {more} more {noun}: "
    if quick:
        return f"{text}run again without --quick"
    if what == "prompts":
        return f"{text}run again with a larger file (-w FILE)"
    if what == "launches":
        return f"{text}run again with --launches {estimate.launches + more}"
    minutes = math.ceil(((budget_s or 0.0) + more * block_s) / 60)
    return f"{text}go on with `--resume RUN --budget {minutes}m`"


def _by_length(
    passes: Sequence[Pass], *, variant: str, against: str, at: Point, launched: int
) -> Iterator[LengthPart]:
    """Yield the speedup of shorter and longer prompts, where prompts differ fourfold in length."""
    requests = [request for each in of(passes, variant, at) for request in each.requests]
    tokens = {each.prompt: each.prompt_tokens for each in requests if each.prompt_tokens}
    lengths = sorted(tokens.values())
    if len(lengths) < 2 * _LENGTH_PARTS or lengths[-1] < _LENGTHS * lengths[0]:
        return
    edges = [
        lengths[len(lengths) * part // _LENGTH_PARTS - 1] for part in range(1, _LENGTH_PARTS + 1)
    ]
    low = 0
    for high in dict.fromkeys(edges):
        names = {name for name, count in tokens.items() if low < count <= high}
        found = speedup(
            passes,
            variant=variant,
            against=against,
            at=at,
            launched=launched,
            where=lambda request, names=names: request.prompt in names,  # type: ignore[misc]
        )
        if found is not None:
            shortest = min(tokens[name] for name in names)
            yield LengthPart(shortest, high, found.estimate, verdict(found))
        low = high


def stops_paying(
    comparisons: Sequence[Comparison],
    cells: Mapping[tuple[str, Point], Cell],
    kv_cache_tokens: Mapping[str, int | None],
) -> dict[str, str]:
    """Return in a clause where each variant no longer pays, if several loads were measured."""
    groups: dict[str, dict[int, Comparison]] = defaultdict(dict)
    for item in comparisons:
        at = item.point
        groups[f"{item.variant}, {at.workload}, {at.temperature:g}"][at.concurrency] = item
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
        end = found[first]
        mine, theirs = cells[end.variant, end.point], cells[end.against, end.point]
        why = _lack_of_room(mine, theirs, kv_cache_tokens)
        if pays:
            words = verdict_words(end.verdict)
            clauses[key] = f"pays up to concurrency {pays[-1]}, {words} at {first}{why}"
        else:
            clauses[key] = f"does not pay at concurrency {', '.join(map(str, loads))}{why}"
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
    return (
        f" because its KV cache is smaller ({room:,} tokens, `{theirs.variant}` {other_room:,}): "
        f"requests waited {waited:.0f} ms (`{theirs.variant}` {other_waited:.0f} ms), "
        f"{own.preemptions} were preempted (`{theirs.variant}` {other.preemptions})"
    )


def _promises(plan: BenchPlan, passes: Sequence[Pass], at: Point) -> Iterator[Judged]:
    """Yield each limit of `expect` that holds at a point, held against what was measured there."""
    if plan.profile is None:
        return
    own, first = plan.own_variant, plan.variants[0]
    mine, theirs = of(passes, own, at), of(passes, first.name, at)
    for limit in limits(plan.profile, at.workload, at.temperature, at.concurrency):
        measured: Estimate | LogEstimate | None = None
        if limit.why_not is not None:
            continue
        if invalid_reason(mine) is None:
            if limit.key == "max_ttft_p99_ms":
                measured = p99_ms(mine, attrgetter("ttft_s"))
            elif limit.key == "max_tpot_p99_ms":
                measured = p99_ms(mine, attrgetter("tpot_s"))
            elif limit.key == "min_mean_acceptance_length":
                measured = rate(step_samples(mine))
            elif limit.key == "min_acceptance_rate":
                parts = [(each, each.acceptance) for each in mine if each.acceptance]
                accepted = [_sample(p, a.accepted_tokens, a.draft_tokens) for p, a in parts]
                measured = rate(accepted)
            elif first.is_baseline and first.name != own and invalid_reason(theirs) is None:
                launched = plan.launched(own, first.name)
                measured = speedup(
                    passes, variant=own, against=first.name, at=at, launched=launched
                )
        yield judge(limit, measured.estimate if isinstance(measured, LogEstimate) else measured)


def p99_ms(passes: Sequence[Pass], value: Callable[[Request], float | None]) -> Estimate | None:
    """Return P99 over requests, in milliseconds."""
    seconds = [value(request) for each in passes for request in each.requests if request.ok]
    return p99([1000 * each for each in seconds if each is not None])


def summarise(plan: BenchPlan, passes: Sequence[Pass], *, about: Result) -> Result:
    """Return `about`, which has no figures yet, with what the passes say of the plan's points."""
    cells: dict[tuple[str, Point], Cell] = {}
    for at in plan.points:
        for variant in plan.variants:
            there = of(passes, variant.name, at)
            promises = (
                tuple(_promises(plan, passes, at)) if variant.name == plan.own_variant else ()
            )
            reason = invalid_reason(there)
            cells[variant.name, at] = Cell(variant.name, at, figures(there), reason, promises)
    against, *others = (variant.name for variant in plan.variants)
    comparisons = tuple(
        compared(
            cells,
            passes,
            variant=name,
            against=against,
            at=at,
            launched=plan.launched(name, against),
            quick=plan.request.quick,
            budget_s=plan.budget_s,
        )
        for at in plan.points
        for name in others
        if cells[name, at].figures is not None
    )
    own = next(
        (variant.plan for variant in plan.variants if variant.name == plan.own_variant), None
    )
    room = {variant.name: variant.kv_cache_tokens for variant in about.variants}
    return replace(
        about,
        fingerprint=own.fingerprint if own else None,
        cells=tuple(cells.values()),
        comparisons=comparisons,
        stops_paying=stops_paying(comparisons, cells, room),
        notes=(*about.notes, *_notes(plan, passes)),
    )


def _notes(plan: BenchPlan, passes: Sequence[Pass]) -> Iterator[str]:
    """Yield what a reader must know of the answers, and of promises that were not measured."""
    yield from cut_answers(passes)
    for variant in plan.variants:
        if variant.plan and (variant.plan.speculation or {}).get("method") == "suffix":
            yield (
                f"`{variant.name}` remembers answers (suffix decoding), and prompts recur in a "
                "launch: this is the acceptance of traffic that repeats itself"
            )
    holding: dict[str, bool] = {}
    for at in plan.points if plan.profile is not None else ():
        assert plan.profile is not None
        for limit in limits(plan.profile, at.workload, at.temperature, at.concurrency):
            holding[limit.place] = holding.get(limit.place, False) or limit.why_not is None
    yield from (
        f"the promise at {place} is for no point that was measured"
        for place, holds in holding.items()
        if not holds
    )


def cut_answers(passes: Sequence[Pass]) -> list[str]:
    """Return a note for each workload most of whose answers were cut off."""
    ends: dict[str, list[str | None]] = defaultdict(list)
    for each in passes:
        good = [request for request in each.requests if request.ok]
        ends[each.point.workload] += [request.finish_reason for request in good]
    cut = {name: found.count("length") / len(found) for name, found in ends.items() if found}
    return [
        f"{name}: {part:.0%} of the answers were cut off at their max_tokens"
        for name, part in cut.items()
        if part > _MAX_CUT
    ]
