"""Two runs side by side: what changed, and by how much if they can be compared. Pure; draws nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from specserve.measure.bench.result import Comparison, Interval, Point, Result, Verdict

_ARM_KEYS = ("model", "method", "draft_model", "num_speculative_tokens", "fingerprint", "url")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not the same in both runs; `-` if a run has none."""

    what: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class PointChange:
    """One arm at one point of both runs."""

    arm: str
    point: Point
    old_tokens_per_s: float | None = None
    new_tokens_per_s: float | None = None
    tokens_per_s_ratio: float | None = None
    """New over old; None if the machines differ. It has no interval: two launches on two occasions."""
    old_speedup: Interval | None = None
    new_speedup: Interval | None = None
    speedup_ratio: Interval | None = None
    """New over old, each run's baseline being its own; the intervals of both runs taken together."""
    old_verdict: Verdict | None = None
    new_verdict: Verdict | None = None
    refused: str | None = None
    """Why the figures cannot be compared."""

    @property
    def direction(self) -> str:
        """What the intervals allow to say of the speedup: `rose`, `fell`, `no change seen`; nothing without them."""
        if self.speedup_ratio is None:
            return ""
        if self.speedup_ratio.low > 1:
            return "rose"
        return "fell" if self.speedup_ratio.high < 1 else "no change seen"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs."""

    old: Result
    new: Result
    changes: tuple[Change, ...]
    points: tuple[PointChange, ...]
    refused: str | None = None
    """Why the runs cannot be compared at all."""
    notes: tuple[str, ...] = ()


def compare(old: Result, new: Result) -> RunComparison:
    """What changed from one run to the other. Runs of two targets, or without a common point, are refused."""
    changes = tuple(_changes(old, new))
    targets = [sorted({arm.model for arm in run.arms if arm.model}) for run in (old, new)]
    if all(targets) and targets[0] != targets[1]:
        names = [", ".join(f"`{model}`" for model in models) for models in targets]
        return RunComparison(old, new, changes, (), f"the targets differ: {names[0]} and {names[1]}")
    points = tuple(_points(old, new))
    if not points:
        return RunComparison(old, new, changes, (), "no variant was measured at the same point in both runs")
    return RunComparison(old, new, changes, points, None, tuple(_notes(old, new)))


def _points(old: Result, new: Result) -> Iterator[PointChange]:
    sums = {item.name: item.sha256 for item in old.workloads}
    other = {item.name for item in new.workloads if sums.get(item.name, item.sha256) != item.sha256}
    before, after = ({(cell.arm, cell.point): cell for cell in run.cells} for run in (old, new))
    compared = [{(item.arm, item.point): item for item in run.comparisons} for run in (old, new)]
    for key in after:
        if key not in before:
            continue
        cells = {"old": before[key], "new": after[key]}
        wrong = {word: cell for word, cell in cells.items() if cell.invalid or cell.figures is None}
        if key[1].workload in other:
            yield PointChange(*key, refused="the prompts or their max_tokens differ")
        elif wrong:
            word, cell = next(iter(wrong.items()))
            yield PointChange(*key, refused=f"invalid in the {word} run: {cell.invalid or 'not measured'}")
        else:
            rates = [cell.figures.output_tokens_per_s if cell.figures else 0.0 for cell in cells.values()]
            is_same = _machine(old) == _machine(new) and min(rates) > 0
            ratio = rates[1] / rates[0] if is_same else None
            first, second = (found.get(key) for found in compared)
            yield PointChange(
                *key,
                old_tokens_per_s=rates[0],
                new_tokens_per_s=rates[1],
                tokens_per_s_ratio=ratio,
                old_speedup=first.speedup if first else None,
                new_speedup=second.speedup if second else None,
                speedup_ratio=_ratio(first, second),
                old_verdict=first.verdict if first else None,
                new_verdict=second.verdict if second else None,
            )


def _ratio(before: Comparison | None, after: Comparison | None) -> Interval | None:
    """New over old: the errors of two runs are independent, and add up as squares on the log scale."""
    if before is None or after is None or before.against != after.against:
        return None
    old, new = before.speedup, after.speedup
    if old is None or new is None:
        return None
    numbers = (old.value, old.low, old.high, new.value, new.low, new.high)
    if not all(math.isfinite(item) and item > 0 for item in numbers):
        return None
    log = math.log(new.value / old.value)
    below = math.hypot(math.log(new.value / new.low), math.log(old.high / old.value))
    above = math.hypot(math.log(new.high / new.value), math.log(old.value / old.low))
    return Interval(math.exp(log), math.exp(log - below), math.exp(log + above))


def _changes(old: Result, new: Result) -> Iterator[Change]:
    """All that has a name and another value, in the order of a result."""
    both = {arm.name for arm in old.arms} & {arm.name for arm in new.arms}
    before, after = (_facts(run, detailed=both) for run in (old, new))
    for name in dict.fromkeys([*before, *after]):
        values = before.get(name, "-"), after.get(name, "-")
        if values[0] != values[1]:
            yield Change(name, *values)


def _facts(run: Result, *, detailed: Collection[str]) -> dict[str, str]:
    """By name. `detailed`: the arms of which more is told than that they are there."""
    facts = {**run.versions, **run.host, **run.settings, "launches of each variant": str(run.launches)}
    for arm in run.arms:
        facts[f"arm {arm.name}"] = "there"
        for key in _ARM_KEYS if arm.name in detailed else ():
            value = str(getattr(arm, key) or "-")
            facts[f"{arm.name}: {key}"] = value[:12] if key == "fingerprint" else value
    return facts | {f"prompts of {item.name}": item.sha256[:12] for item in run.workloads}


def _machine(result: Result) -> dict[str, str]:
    return {key: value for key, value in result.host.items() if key in ("accelerator", "cpu", "cores")}


def _notes(old: Result, new: Result) -> Iterator[str]:
    if _machine(old) != _machine(new):
        yield "the machines differ: only the speedups are compared, each over its own baseline"
    if min(old.launches, new.launches) == 1:
        yield "a run has only one launch: another start can by itself change the result by a few %"
    if not (old.is_complete and new.is_complete):
        yield "a run is not complete: its figures may still change"
