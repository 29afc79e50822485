"""Arms compared at each point: speedup with its interval, verdict, where it stops paying. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from specserve.measure.bench.figures import break_even, invalid, shares
from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Cell, Comparison, Figures, Point, Verdict
from specserve.measure.statistics import Estimate, ratio
from specserve.measure.verdict import interval, needed, verdict

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
    told = verdict(found)
    return Comparison(
        arm=arm,
        against=against,
        point=at,
        speedup=interval(found),
        verdict=told,
        needed=needed(found) if told is Verdict.INCONCLUSIVE else None,
        tpot_p50_ratio=_over(mine.figures.tpot_ms.p50, theirs.figures.tpot_ms.p50),
        ttft_p99_ratio=_over(mine.figures.ttft_ms.p99, theirs.figures.ttft_ms.p99),
        e2e_p99_ratio=_over(mine.figures.e2e_ms.p99, theirs.figures.e2e_ms.p99),
        break_even_mean_acceptance_length=break_even(
            mine.figures.acceptance, output_tokens=mine.figures.output_tokens, speedup=found.value
        ),
        mean_acceptance_length=_length(mine.figures),
    )


def speedup(passes: Sequence[Pass], *, arm: str, against: str, at: Point) -> Estimate | None:
    """Output tokens/s of one arm over those of another; None where one of them has nothing."""
    by_arm: dict[str, list[Pass]] = defaultdict(list)
    for each in passes:
        if each.point == at:
            by_arm[each.arm].append(each)
    both = {(each.launch, each.block) for each in by_arm[arm]} & {
        (each.launch, each.block) for each in by_arm[against]
    }
    mine, theirs = (
        shares([each for each in by_arm[name] if (each.launch, each.block) in both])
        for name in (arm, against)
    )
    return ratio(mine, against=theirs)


def invalid_reason(passes: Sequence[Pass]) -> str | None:
    """Why a cell of these passes counts for nothing."""
    return invalid(passes) if passes else "it was not measured"


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
        return f"pays at none of {', '.join(map(str, loads))} requests at once"
    last = max(pays)
    if last == loads[-1]:
        return f"still pays at {_at_once(last)}, the highest load measured"
    after = items[loads.index(last) + 1]
    even = crossing(items)
    about = f"; the two are even at about {even:.0f}" if even is not None else ""
    return f"pays up to {_at_once(last)}, {_WORDS[after.verdict]} at {after.point.concurrency}{about}"


def _at_once(load: int) -> str:
    return f"{load} request{'' if load == 1 else 's'} at once"


def crossing(items: Sequence[Comparison]) -> float | None:
    """The concurrency at which the speedup falls to 1, between two measured ones on logarithmic scales."""
    known = [(item.point.concurrency, item.speedup.value) for item in items if item.speedup is not None]
    for (load, value), (next_load, next_value) in pairwise(known):
        if load and next_load and value >= 1 > next_value > 0:
            part = math.log(value) / (math.log(value) - math.log(next_value))
            return float(load * (next_load / load) ** part)
    return None


def _length(figures: Figures) -> float | None:
    return figures.acceptance.mean_acceptance_length if figures.acceptance else None


def _over(value: float, other: float) -> float | None:
    return value / other if other > 0 and value > 0 else None
