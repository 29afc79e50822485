"""What a sweep over K found: rates by point and K, with the half-widths that its own repeats give."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sweepcalm import Server, calm, doubts

from specserve.measure.bench.arms import BASELINE
from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Point
from specserve.measure.student import quantile

WIDEST = 0.02
"""Half a 95 % interval of a K's speedup over all workloads, as a share, that is wanted where it may be the best."""
BEHIND = 0.03
"""A K that is behind the best by more than this and both half-widths gets no more blocks."""
FAR_BEHIND = 0.2
"""The same while nothing is known of the widths, after two blocks."""
_LEAST_BLOCKS = 2
_HUBER = 1.345
_ROUNDS = 20
_SEPARATOR = "."
_UNKNOWN = 9.0

Row = dict[str, Any]
Floats = NDArray[np.float64]
Place = tuple[str, float, int]


def group_name(workload: str, load: int, number: int) -> str:
    """Of the prompts that make a block: the same ones come again, so that repeats can be told from prompts."""
    return _SEPARATOR.join((workload, str(load), str(number)))


def place(point: Point) -> Place:
    """Workload, temperature, load."""
    return point.workload.partition(_SEPARATOR)[0], point.temperature, point.concurrency or 0


def by_place(passes: Sequence[Pass]) -> dict[Place, list[Pass]]:
    """Passes by their place, in its order."""
    found: dict[Place, list[Pass]] = {}
    for done in sorted(passes, key=lambda each: place(each.point)):
        found.setdefault(place(done.point), []).append(done)
    return found


def told(passes: Sequence[Pass]) -> dict[Place, list[Row]]:
    """The rows of every place, on the calm machine."""
    doubt = doubts(passes)
    return {at: rows(at, held, doubt) for at, held in by_place(calm(passes)).items()}


def rows(at: Place, passes: Sequence[Pass], doubt: Mapping[Server, float]) -> list[Row]:
    """One for each K of a place, K = 0 first. `doubt`: half-widths of the calm steps.

    Within a group of prompts a pass's log rate is one of its server plus one of its block, and noise (a two-way
    layout), which is taken to be alike in all groups of a place but for a few passes in which the machine stood still
    (Huber's M-estimate). A K that has not been measured in a group is taken to be as far from the K that was measured
    most as it is elsewhere.
    """
    groups, spread = _robust([held for held in _rates(passes).values() if len({arm for _, arm in held}) > 1])
    if not groups:
        return []
    arms = sorted(set().union(*(group.arms for group in groups)) - {BASELINE}, key=_tokens)
    most = max(arms, key=lambda arm: _blocks(groups, arm))
    groups = [group for group in groups if most in group.arms]
    plain = _together(group.level for group in groups)
    found = [_row(at, 0, plain, 1.0, 0.0, _blocks(groups, BASELINE))]
    for arm in arms:
        held = [group for group in groups if arm in group.arms]
        if not held:
            continue
        off = statistics.fmean(group.gain[arm] - group.gain[most] for group in held)
        rate = _together(group.level + group.gain.get(arm, group.gain[most] + off) for group in groups)
        width = math.sqrt(math.fsum(group.variance[arm] for group in held)) / len(held)
        half = spread * width if math.isfinite(spread) else _UNKNOWN
        steps = math.hypot(*(doubt.get((each, *at[1:]), 0.0) for each in (BASELINE, arm)))
        found.append(_row(at, _tokens(arm), rate, rate / plain, half, _blocks(groups, arm), steps=steps))
    return found


def wanted(found: Sequence[Row], arms: Collection[str], *, workloads: int) -> frozenset[str]:
    """Of these servers, those that a place needs more blocks of: those that may have the best K, or are hardly known.

    None where half-widths are small enough (over so many workloads), or where none comes near to no speculation; else
    the one without speculation is among them.
    """
    blocks = {arm_name(row["num_speculative_tokens"]): row["blocks"] for row in found}
    need = {arm for arm in arms if arm != BASELINE and blocks.get(arm, 0) < _LEAST_BLOCKS}
    if found:
        best = max(found, key=lambda row: row["speedup"])
        near = [row for row in found if row["num_speculative_tokens"] and not _is_behind(row, best)]
        if any(_joint([row] * workloads) > WIDEST for row in near):
            need |= {arm_name(row["num_speculative_tokens"]) for row in near}.intersection(arms)
    return frozenset(need | {BASELINE}) if need else frozenset()


def arm_name(tokens: int) -> str:
    """Of the server with so many draft tokens."""
    return f"k{tokens}"


def data(passes: Sequence[Pass], about: Mapping[str, Any]) -> dict[str, Any]:
    """All rows, as they are kept."""
    points = [row for held in told(passes).values() for row in held]
    return {"version": 3, "what": "every K on the demo pair, measured", **about, "points": points}


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """For a person: speedups by workload and over all of them, the best marked."""
    places = by_load(found["points"])
    loads = sorted({load for _, load in places})
    for (workload, load), held in places.items():
        yield f"{workload}, {load} at once: {held[0]['output_tokens_per_s']:.1f} tokens/s without speculation"
        yield from _lines(held)
    for load in loads:
        yield f"all workloads, {load} at once"
        yield from _lines(over_all([held for (_, each), held in places.items() if each == load]))


def _lines(held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    best = max(held, key=lambda row: row["speedup"])
    for row in held[1:]:
        mark = "*" if row is best else " "
        speedup = f"{row['speedup']:.3f}x ± {row['half_width']:.1%} in {row['blocks']} blocks"
        more = ", behind" if _is_behind(row, best) else ""
        yield f"  {mark} K = {row['num_speculative_tokens']}: {speedup}{more}"


def over_all(workloads: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Rows of one load over its workloads: geometric means, K that all of them have."""
    shared = set.intersection(*({row["num_speculative_tokens"] for row in held} for held in workloads))
    found = []
    for tokens in sorted(shared):
        rows_of = [row for held in workloads for row in held if row["num_speculative_tokens"] == tokens]
        found.append(
            {
                "num_speculative_tokens": tokens,
                "speedup": math.exp(statistics.fmean(math.log(row["speedup"]) for row in rows_of)),
                "half_width": _joint(rows_of),
                "blocks": sum(row["blocks"] for row in rows_of),
            }
        )
    return found


def _joint(rows_of: Sequence[Mapping[str, Any]]) -> float:
    """Of workloads together: what is in doubt of a step is so in all of them."""
    own = math.fsum(row["half_width"] ** 2 - row["half_width_of_steps"] ** 2 for row in rows_of)
    return math.hypot(
        math.sqrt(own) / len(rows_of), statistics.fmean(row["half_width_of_steps"] for row in rows_of)
    )


def by_load(points: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Rows by workload and load, in the order of K."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in points:
        found.setdefault((row["workload"], row["concurrency"]), []).append(row)
    return {at: sorted(held, key=lambda row: row["num_speculative_tokens"]) for at, held in found.items()}


@dataclass(frozen=True, slots=True)
class _Group:
    """The repeats of one group of prompts. `variance`: of a gain, in units of the noise's."""

    arms: frozenset[str]
    level: float
    gain: Mapping[str, float]
    variance: Mapping[str, float]
    blocks: Mapping[str, int]
    rest: Floats
    """What the effects leave of each pass's log rate, as far as it would vary were they known."""
    tells: NDArray[np.bool_]
    """Which passes leave anything at all: a server's only pass in a group is met exactly."""
    freedom: int


def _rates(passes: Sequence[Pass]) -> dict[str, dict[tuple[int, str], float]]:
    """Log tokens/s by block and server, for each group; blocks without a baseline are left out."""
    found: dict[str, dict[tuple[int, str], float]] = {}
    for done in passes:
        if done.output_tokens:
            rate = math.log(done.output_tokens / done.duration_s)
            found.setdefault(done.point.workload, {})[done.block, done.arm] = rate
    whole = {
        name: {key: rate for key, rate in held.items() if (key[0], BASELINE) in held}
        for name, held in found.items()
    }
    return {name: held for name, held in whole.items() if held}


def _robust(places: Sequence[Mapping[tuple[int, str], float]]) -> tuple[list[_Group], float]:
    """The groups by Huber's M-estimate, and half a 95 % interval for a variance of 1; infinite without repeats.

    Of residuals beyond 1.345 deviations only the sign counts: 95 % of the efficiency of least squares on normal noise.
    Variance as in Huber & Ronchetti, Robust Statistics (2009), 7.6; residuals by the median of their absolutes.
    """
    groups = [_fitted(held, np.ones(len(held))) for held in places]
    freedom = sum(group.freedom for group in groups)
    if not freedom:
        return groups, math.inf
    edge = math.inf
    for _ in range(_ROUNDS):
        rest = np.concatenate([group.rest[group.tells] for group in groups])
        edge = max(_HUBER * 1.4826 * float(np.median(np.abs(rest))), 1e-12)
        groups = [
            _fitted(held, edge / np.maximum(np.abs(group.rest), edge))
            for held, group in zip(places, groups, strict=True)
        ]
    rest = np.abs(np.concatenate([group.rest[group.tells] for group in groups]))
    inside = float(np.mean(rest <= edge))
    deviation = math.sqrt(float(np.mean(np.minimum(rest, edge) ** 2))) / inside
    correction = 1 + (1 - freedom / rest.size) * (1 - inside) / inside
    return groups, correction * deviation * quantile(0.975, freedom=freedom)


def _fitted(rates: Mapping[tuple[int, str], float], weights: Floats) -> _Group:
    """By weighted least squares; `variance` is that of equal weights."""
    arms = sorted({arm for _, arm in rates}, key=_tokens)
    blocks = sorted({block for block, _ in rates})
    design = np.zeros((len(rates), len(arms) + len(blocks)))
    for line, (block, arm) in enumerate(rates):
        design[line, arms.index(arm)] = 1.0
        design[line, len(arms) + blocks.index(block)] = 1.0
    measured = np.array(list(rates.values()))
    weighted = design * weights[:, None]
    effects = np.linalg.pinv(weighted.T @ design) @ weighted.T @ measured
    others = [arm for arm in arms if arm != BASELINE]
    contrasts = np.zeros((len(others), design.shape[1]))
    for line, arm in enumerate(others):
        contrasts[line, arms.index(arm)] = 1.0
        contrasts[line, arms.index(BASELINE)] = -1.0
    inverse = np.linalg.pinv(design.T @ design)
    variances = np.einsum("ij,jk,ik->i", contrasts, inverse, contrasts)
    varies = 1 - np.einsum("ij,jk,ik->i", design, inverse, design)
    tells = varies > 1e-6
    return _Group(
        arms=frozenset(arms),
        level=float(effects[arms.index(BASELINE)] + np.mean(effects[len(arms) :])),
        gain=dict(zip(others, map(float, contrasts @ effects), strict=True)),
        variance=dict(zip(others, map(float, variances), strict=True)),
        blocks={arm: sum(1 for _, each in rates if each == arm) for arm in arms},
        rest=np.where(tells, (measured - design @ effects) / np.sqrt(np.where(tells, varies, 1.0)), 0.0),
        tells=tells,
        freedom=len(rates) - (len(arms) + len(blocks) - 1),
    )


def _together(log_rates: Iterable[float]) -> float:
    """Tokens/s over groups that write as many tokens each: their times add up."""
    return 1 / statistics.fmean(math.exp(-rate) for rate in log_rates)


def _blocks(groups: Sequence[_Group], arm: str) -> int:
    return sum(group.blocks.get(arm, 0) for group in groups)


def _is_behind(row: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    if row["half_width"] >= _UNKNOWN:
        return bool(row["speedup"] < best["speedup"] * (1 - FAR_BEHIND))
    slack = BEHIND + row["half_width"] + best["half_width"]
    return bool(row["speedup"] < best["speedup"] * (1 - slack))


def _tokens(arm: str) -> int:
    return 0 if arm == BASELINE else int(arm.removeprefix("k"))


def _row(
    at: Place, tokens: int, value: float, gain: float, half: float, blocks: int, *, steps: float = 0.0
) -> Row:
    workload, temperature, load = at
    return {
        "workload": workload,
        "temperature": temperature,
        "concurrency": load,
        "num_speculative_tokens": tokens,
        "output_tokens_per_s": round(value, 3),
        "speedup": round(gain, 4),
        "half_width": round(min(math.hypot(half, steps), _UNKNOWN), 4),
        "half_width_of_steps": round(steps, 4),
        "blocks": blocks,
    }
