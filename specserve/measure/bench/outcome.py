"""Everything that a run measured as one result, with the profile's promises held against it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from specserve.measure.bench.arms import BASELINE, PROFILE, Arm
from specserve.measure.bench.driver import Pass, Request
from specserve.measure.bench.figures import (
    compared,
    figures,
    invalid_reason,
    share,
    speedup,
    stops_paying,
)
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Cell, Interval, Point, Promise, Result, Verdict
from specserve.measure.bench.schedule import seeded
from specserve.measure.statistics import Share, interval, point, rate, scipy
from specserve.profile.schema import Expectation, Profile

_RESAMPLES = 1000
_KEYS = (
    "min_speedup",
    "min_mean_acceptance_length",
    "min_acceptance_rate",
    "max_ttft_p99_ms",
    "max_tpot_p99_ms",
)


def promises(
    profile: Profile, passes: Sequence[Pass], *, at: Sequence[Point], arm: str, against: str | None
) -> tuple[Promise, ...]:
    """Each limit of each promise at the point that it is for; `at`: those points, in the order of `expect`."""
    found = []
    for index, (expectation, place) in enumerate(zip(profile.expect, at, strict=True)):
        own = [each for each in passes if each.point == place and each.arm == arm]
        for key in _KEYS:
            promised = getattr(expectation, key)
            if promised is None:
                continue
            measured = _measured(key, own, passes, place=place, arm=arm, against=against)
            span = profile.span(f"expect[{index}].{key}")
            where = f"{span.file}:{span.line}" if span.line else span.file
            found.append(Promise(place, key, float(promised), measured, kept(key, promised, measured), where))
    return tuple(found)


def limits(profile: Profile | None, at: Sequence[Point]) -> dict[Point, Expectation]:
    """By point, what limits its requests: of several promises at one point the strictest limit of each kind."""
    found: dict[Point, Expectation] = {}
    for place, promise in zip(at, profile.expect if profile is not None else (), strict=True):
        both = (found.get(place, promise), promise)
        strictest: dict[str, Any] = {}
        for key in _KEYS:
            values = [value for each in both if (value := getattr(each, key)) is not None]
            strictest[key] = (min if key.startswith("max_") else max)(values, default=None)
        found[place] = replace(promise, **strictest)
    return found


def kept(key: str, promised: float, measured: Interval | None) -> bool | None:
    """Whether the whole interval keeps, or the whole interval misses; None between."""
    if measured is None:
        return None
    low, high = measured.low, measured.high
    if key.startswith("max_"):
        return True if high <= promised else False if low > promised else None
    return True if low >= promised else False if high < promised else None


def _measured(
    key: str, own: Sequence[Pass], passes: Sequence[Pass], *, place: Point, arm: str, against: str | None
) -> Interval | None:
    """None if a cell that it rests on counts for nothing."""
    if invalid_reason(own) is not None:
        return None
    if key.startswith("max_"):
        return tail(own, attrgetter("ttft_s" if key == "max_ttft_p99_ms" else "tpot_s"), at=0.99)
    if key == "min_speedup":
        theirs = [each for each in passes if each.point == place and each.arm == against]
        if against is None or invalid_reason(theirs) is not None:
            return None
        found = speedup(passes, arm=arm, against=against, at=place)
    else:
        found = rate((step_shares if key == "min_mean_acceptance_length" else rate_shares)(own))
    return None if found is None else interval(found)


def step_shares(passes: Sequence[Pass]) -> list[Share]:
    """Tokens over verification steps, by request if every request reports them, else by pass."""
    found = []
    for each in passes:
        own = [(request.prompt, request.acceptance) for request in each.requests if request.ok]
        known = [(prompt, part) for prompt, part in own if part is not None and part.drafts]
        if len(known) < len(own):
            known = [("all", each.acceptance)] if each.acceptance and each.acceptance.drafts else []
        found += [
            share(each, part.drafts + part.accepted_tokens, part.drafts, prompt=prompt)
            for prompt, part in known
        ]
    return found


def rate_shares(passes: Sequence[Pass]) -> list[Share]:
    """Accepted over drafted tokens by pass."""
    known = [(each, each.acceptance) for each in passes]
    return [
        share(each, found.accepted_tokens, found.draft_tokens)
        for each, found in known
        if found is not None and found.draft_tokens
    ]


def tail(
    passes: Sequence[Pass], value: Callable[[Request], float | None], *, at: float, seed: int = 1
) -> Interval | None:
    """A quantile over requests in milliseconds, with an interval that few requests make wide.

    Blocks are drawn again and requests in them; beyond that the bounds are those of order statistics, which know
    that the slowest of 50 requests says little of the slowest hundredth: with fewer than 370 P99 has no upper bound.
    """
    timed = [[value(request) for request in each.requests if request.ok] for each in passes]
    groups = [[took_s * 1000 for took_s in each if took_s is not None] for each in timed]
    groups = [group for group in groups if group]
    values = sorted(item for group in groups for item in group)
    if not values:
        return None
    rng = seeded(f"tail {seed}")
    drawn = []
    for _ in range(_RESAMPLES):
        again = rng.choices(groups, k=len(groups))
        drawn.append(point([item for group in again for item in rng.choices(group, k=len(group))], at))
    low, high = order_bounds(values, at)
    return Interval(point(values, at), min(low, point(drawn, 0.025)), max(high, point(drawn, 0.975)))


def order_bounds(values: Sequence[float], at: float) -> tuple[float, float]:
    """Order statistics between which a quantile lies with 95 %, whatever the distribution; sorted values in."""
    special, count = scipy("special"), len(values)
    # by rank: the chance that no more values lie below the quantile
    below = [float(special.bdtr(rank, count, at)) for rank in range(count)]
    first, after = bisect_right(below, 0.025), bisect_left(below, 0.975)
    return values[max(first - 1, 0)], values[after] if after < count else math.inf


_MOSTLY = 0.5


def outcome(plan: BenchPlan, passes: Sequence[Pass], *, about: Result) -> Result:
    """`about`, which has no figures yet, with what the passes say of the plan's points, arms and promises."""
    names, own = [arm.name for arm in plan.arms], _own(plan)
    limit = limits(plan.profile, plan.promised_at)
    cells: dict[tuple[str, Point], Cell] = {}
    for at in plan.points:
        for name in names:
            there = [each for each in passes if each.point == at and each.arm == name]
            cells[name, at] = Cell(name, at, figures(there, limits=limit.get(at)), invalid_reason(there))
    comparisons = tuple(
        compared(cells, passes, arm=name, against=names[0], at=point)
        for point in plan.points
        for name in names[1:]
        if cells[name, point].figures is not None
    )
    return replace(
        about,
        fingerprint=next((arm.plan.fingerprint for arm in plan.arms if arm.name == own and arm.plan), None),
        cells=tuple(cells.values()),
        comparisons=comparisons,
        promises=_promises(plan, passes),
        stops_paying=stops_paying(comparisons),
        notes=(*about.notes, *cut_answers(passes), *equal_texts(names, passes), *_remembering(plan.arms)),
    )


def _promises(plan: BenchPlan, passes: Sequence[Pass]) -> tuple[Promise, ...]:
    if plan.profile is None:
        return ()
    own, first = _own(plan), plan.arms[0]
    against = first.name if first.is_baseline and first.name != own else None
    return promises(plan.profile, passes, at=plan.promised_at, arm=own, against=against)


def _own(plan: BenchPlan) -> str:
    """The arm that the profile itself is: if it does not speculate, the one without speculation."""
    if plan.profile is None:
        return plan.arms[0].name
    return PROFILE if plan.profile.speculation is not None else BASELINE


def equal_texts(arms: Sequence[str], passes: Sequence[Pass]) -> list[str]:
    """How many greedy answers of each arm are those of the first: speculation must not change them."""
    texts: dict[str, dict[tuple[str, Point], str]] = defaultdict(dict)
    for each in passes:
        if each.point.temperature == 0:
            good = [request for request in each.requests if request.ok]
            texts[each.arm].update({(request.prompt, each.point): request.text_sha256 for request in good})
    found = []
    for arm in arms[1:]:
        mine, theirs = texts[arm], texts[arms[0]]
        both = mine.keys() & theirs.keys()
        same = sum(mine[key] == theirs[key] for key in both)
        if both and same == len(both):
            found.append(f"`{arm}` gave all {same} greedy answers word for word as `{arms[0]}` did")
        elif both:
            found.append(
                f"`{arm}` gave {same} of {len(both)} greedy answers word for word as `{arms[0]}` did; a few "
                "that differ are rounding, `specserve verify` judges it"
            )
    return found


def cut_answers(passes: Sequence[Pass]) -> list[str]:
    """Workloads most of whose answers never came to their end."""
    ends: dict[str, list[str | None]] = defaultdict(list)
    for each in passes:
        ends[each.point.workload] += [request.finish_reason for request in each.requests if request.ok]
    cut = {name: found.count("length") / len(found) for name, found in ends.items() if found}
    return [
        f"{name}: {part:.0%} of the answers were cut off at their max_tokens"
        for name, part in cut.items()
        if part > _MOSTLY
    ]


def _remembering(arms: Sequence[Arm]) -> list[str]:
    """Arms whose answers depend on what they were asked before."""
    return [
        f"`{arm.name}` remembers answers (suffix decoding), and prompts recur in a launch: "
        "this is the acceptance of traffic that repeats itself"
        for arm in arms
        if arm.plan and (arm.plan.speculation or {}).get("method") == "suffix"
    ]


def is_missed(result: Result) -> bool:
    """Whether the whole interval of some promise misses it."""
    return any(promise.kept is False for promise in result.promises)


def is_open(result: Result) -> bool:
    """Whether anything is not decided, for `--strict`."""
    return (
        not result.is_complete
        or any(promise.kept is None for promise in result.promises)
        or any(item.verdict is Verdict.INCONCLUSIVE for item in result.comparisons)
    )
