"""What a sweep over K found: rates and speedups by point and K, with the half-widths that its own repeats give."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from sweepsteps import SEPARATOR, Load, Medians, Place, Taken, medians, plain_steps_s, rates, taken

from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass
from specserve.measure.bench.variants import BASELINE
from specserve.measure.statistics import quantile

WIDEST = 0.02
"""Half a 95 % interval of a K's tokens/s over all workloads, as a share, that is wanted where it may be the best."""
BEHIND = 0.03
"""A K that is behind the best by more than this and both half-widths gets no more blocks."""
ALL = "all"
"""Instead of a workload: the geometric mean over those that the sweep has."""
STEPS = "steps"
"""Instead of a workload: short prompts, of which only the steps are of use."""
_LEAST_BLOCKS = 1
_DRAWS = 60
_UNKNOWN = 9.0

Row = dict[str, Any]


def group_name(workload: str, load: int, number: int) -> str:
    """Of the prompts that make a block: the same ones come again, so that repeats can be told from prompts."""
    return SEPARATOR.join((workload, str(load), str(number)))


def place(point: Point) -> Place:
    """Workload, temperature, load."""
    return point.workload.partition(SEPARATOR)[0], point.temperature, point.concurrency or 0


def told(passes: Sequence[Pass]) -> dict[Place, list[Row]]:
    """The rows of every place and of all workloads together, K = 0 first.

    Half-widths are those of tokens/s against the server without speculation: by the times of steps, in which servers
    differ, and with what prefills take, one figure for all of them. Passes are drawn with replacement, of each server
    at each load as many as there were.
    """
    held = taken(passes)
    known = medians(held)
    measured, found = _as_measured(held), _with_all(rates(held, known))
    every = list(_drawn(held))
    steps = [_with_all(rates(held, replace(known, step_s=each.step_s))) for each in every]
    both = [_with_all(rates(held, each)) for each in every]
    return {
        at: [
            _row(
                at,
                arm,
                rate=rate,
                gain=rate / by_arm[BASELINE],
                raw=measured.get(at, {}).get(arm),
                halves=(_half(steps, held, at=at, arm=arm), _half(both, held, at=at, arm=arm)),
                blocks=sum(1 for each in held if each.arm == arm and _counts(each, at)),
            )
            for arm, rate in sorted(by_arm.items(), key=lambda item: _tokens(item[0]))
        ]
        for at, by_arm in found.items()
        if BASELINE in by_arm
    }


def _with_all(found: Mapping[Place, Mapping[str, float]]) -> dict[Place, Mapping[str, float]]:
    """With the geometric means over all workloads, of those servers that all of them had."""
    kept = {at: by_arm for at, by_arm in found.items() if at[0] != STEPS}
    return kept | _over_all(kept)


def _over_all(found: Mapping[Place, Mapping[str, float]]) -> dict[Place, dict[str, float]]:
    loads: dict[Load, list[Mapping[str, float]]] = {}
    for (_, temperature, at_once), by_arm in found.items():
        loads.setdefault((temperature, at_once), []).append(by_arm)
    return {
        (ALL, *load): {arm: statistics.geometric_mean(each[arm] for each in held) for arm in _in_all(held)}
        for load, held in loads.items()
    }


def _in_all(held: Sequence[Mapping[str, float]]) -> set[str]:
    return set.intersection(*(set(each) for each in held))


def _as_measured(held: Sequence[Taken]) -> dict[Place, dict[str, float]]:
    """Speedups by blocks: the geometric mean of passes right after one another."""
    plain = {(each.group, each.block): each.tokens / each.busy_s for each in held if each.arm == BASELINE}
    ratios: dict[Place, dict[str, list[float]]] = {}
    for each in held:
        if (each.group, each.block) in plain and each.place[0] != STEPS:
            gain = each.tokens / each.busy_s / plain[each.group, each.block]
            ratios.setdefault(each.place, {}).setdefault(each.arm, []).append(gain)
    found = {
        at: {arm: statistics.geometric_mean(some) for arm, some in by_arm.items()}
        for at, by_arm in ratios.items()
    }
    return found | _over_all(found)


def _drawn(held: Sequence[Taken]) -> Iterator[Medians]:
    """Steps by passes of each server at each load, drawn with replacement, prefills by those of each group."""
    plain_s = plain_steps_s(held)
    servers: dict[tuple[str, Load], list[Taken]] = {}
    groups: dict[str, list[Taken]] = {}
    for each in held:
        servers.setdefault((each.arm, each.load), []).append(each)
        groups.setdefault(each.group, []).append(each)
    rng = Random(0)
    for _ in range(_DRAWS):
        steps, waits = (
            medians(
                [each for some in of.values() for each in rng.choices(some, k=len(some))], plain_s=plain_s
            )
            for of in (servers, groups)
        )
        yield replace(steps, held_up_s=waits.held_up_s)


def _half(
    drawn: Sequence[Mapping[Place, Mapping[str, float]]], held: Sequence[Taken], *, at: Place, arm: str
) -> float:
    """Half a 95 % interval: by Student's t, with as many passes as the server had at this load."""
    found = [each[at][arm] for each in drawn if arm in each.get(at, {})]
    count = sum(1 for each in held if (each.arm, each.load) == (arm, at[1:]))
    if count < 2:
        return _UNKNOWN
    spread = statistics.stdev(map(math.log, found)) * math.sqrt(count / (count - 1))
    return min(_UNKNOWN, spread * quantile(0.975, freedom=count - 1))


def _counts(each: Taken, at: Place) -> bool:
    return each.load == at[1:] and at[0] in (ALL, each.place[0])


def wanted(passes: Sequence[Pass], arms: Collection[str], *, at: Place) -> frozenset[str]:
    """Of these servers, those that a place needs more blocks of; the one without speculation is among them, or none is.

    Of a workload one: how many steps there are is the same each time. Of short prompts, which only time steps, as many
    as it takes: of those servers that may have the best K.
    """
    alike = [done for done in passes if place(done.point)[1:] == at[1:]]
    if at[0] != STEPS:
        blocks = Counter(done.arm for done in alike if place(done.point) == at)
        need = {arm for arm in arms if arm != BASELINE and blocks[arm] < _LEAST_BLOCKS}
    else:
        need = _near_best(told(alike).get((ALL, *at[1:]), ()), arms)
    return frozenset(need | {BASELINE}) if need else frozenset()


def _near_best(rows: Sequence[Row], arms: Collection[str]) -> set[str]:
    """Those not behind, as long as one of them is in doubt; all where little is known."""
    by_arm = {arm_name(row["num_speculative_tokens"]): row for row in rows}
    unknown = {arm for arm in arms if arm not in by_arm} - {BASELINE}
    if unknown:
        return unknown
    best = max(rows, key=lambda row: row["speedup"])
    near = {arm for arm in arms if arm != BASELINE and not _is_behind(by_arm[arm], best)}
    return near if any(by_arm[arm]["half_width"] > WIDEST for arm in near) else set()


def arm_name(tokens: int) -> str:
    """Of the server with so many draft tokens."""
    return f"k{tokens}"


def data(passes: Sequence[Pass], about: Mapping[str, Any]) -> dict[str, Any]:
    """All rows, as they are kept."""
    points = [row for held in told(passes).values() for row in held]
    return {"version": 5, "what": "every K on the demo pair, measured", **about, "points": points}


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """For a person: speedups by workload and over all of them, the best marked."""
    for (workload, load), held in by_load(found["points"]).items():
        name = "all workloads" if workload == ALL else workload
        rate = (
            "" if workload == ALL else f": {held[0]['output_tokens_per_s']:.1f} tokens/s without speculation"
        )
        yield f"{name}, {load} at once{rate}"
        best = max(held, key=lambda row: row["speedup"])
        for row in held[1:]:
            mark = "*" if row is best else " "
            speedup = f"{row['speedup']:.3f}x, tokens/s ± {row['half_width']:.1%} in {row['blocks']} blocks"
            more = ", behind" if _is_behind(row, best) else ""
            measured = row["speedup_as_measured"]
            raw = f" ({measured:.3f}x beside neighbours)" if measured is not None else ""
            yield f"  {mark} K = {row['num_speculative_tokens']}: {speedup}{raw}{more}"


def by_load(points: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Rows by workload and load, in the order of K."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in points:
        found.setdefault((row["workload"], row["concurrency"]), []).append(row)
    return {at: sorted(held, key=lambda row: row["num_speculative_tokens"]) for at, held in found.items()}


def _is_behind(row: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    slack = BEHIND + row["half_width"] + best["half_width"]
    return bool(row["speedup"] < best["speedup"] * (1 - slack))


def _tokens(arm: str) -> int:
    return 0 if arm == BASELINE else int(arm.removeprefix("k"))


def _row(
    at: Place,
    arm: str,
    *,
    rate: float,
    gain: float,
    raw: float | None,
    halves: tuple[float, float],
    blocks: int,
) -> Row:
    workload, temperature, load = at
    return {
        "workload": workload,
        "temperature": temperature,
        "concurrency": load,
        "num_speculative_tokens": _tokens(arm),
        "output_tokens_per_s": None if workload == ALL else round(rate, 3),
        "speedup": round(gain, 4),
        "half_width": round(halves[0], 4),
        "half_width_with_prefills": round(halves[1], 4),
        "speedup_as_measured": None if raw is None else round(raw, 4),
        "blocks": blocks,
    }
