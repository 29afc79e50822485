"""Two runs side by side: what changed, and by how much if they can be compared. Pure; draws nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specserve.measure.bench.result import ArmInfo, Cell, Comparison, Interval, Point, Result, Verdict

_Z95 = 1.959964
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
        return RunComparison(
            old, new, changes, (), f"the targets differ: {_names(targets[0])} and {_names(targets[1])}"
        )
    points = tuple(_points(old, new))
    if not points:
        return RunComparison(old, new, changes, (), "no arm was measured at the same point in both runs")
    return RunComparison(old, new, changes, points, None, tuple(_notes(old, new)))


def _points(old: Result, new: Result) -> Iterator[PointChange]:
    before = {(cell.arm, cell.point): cell for cell in old.cells}
    same_machine = _machine(old) == _machine(new)
    sums = {item.name: item.sha256 for item in old.workloads}
    other = {item.name for item in new.workloads if sums.get(item.name, item.sha256) != item.sha256}
    speedups = [{(item.arm, item.point): item for item in run.comparisons} for run in (old, new)]
    for cell in new.cells:
        key = (cell.arm, cell.point)
        if key in before:
            refused = (
                "the prompts or their max_tokens differ"
                if cell.point.workload in other
                else _invalid(before[key], cell)
            )
            if refused:
                yield PointChange(cell.arm, cell.point, refused=refused)
            else:
                change = _change(before[key], cell, speedups[0].get(key), speedups[1].get(key))
                yield change if same_machine else dataclasses.replace(change, tokens_per_s_ratio=None)


def _invalid(old: Cell, new: Cell) -> str | None:
    for word, cell in (("old", old), ("new", new)):
        if cell.invalid is not None or cell.figures is None:
            return f"invalid in the {word} run: {cell.invalid or 'not measured'}"
    return None


def _change(old: Cell, new: Cell, before: Comparison | None, after: Comparison | None) -> PointChange:
    assert old.figures is not None and new.figures is not None
    rates = (old.figures.output_tokens_per_s, new.figures.output_tokens_per_s)
    same_rival = before is not None and after is not None and before.against == after.against
    return PointChange(
        arm=new.arm,
        point=new.point,
        old_tokens_per_s=rates[0],
        new_tokens_per_s=rates[1],
        tokens_per_s_ratio=rates[1] / rates[0] if min(rates) > 0 else None,
        old_speedup=before.speedup if before else None,
        new_speedup=after.speedup if after else None,
        speedup_ratio=_ratio(before.speedup, after.speedup) if before and after and same_rival else None,
        old_verdict=before.verdict if before else None,
        new_verdict=after.verdict if after else None,
    )


def _ratio(old: Interval | None, new: Interval | None) -> Interval | None:
    """New over old: the errors of two runs are independent, and add up as squares on the log scale."""
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
    for name in ("versions", "host", "settings"):
        yield from _of_mapping(getattr(old, name), getattr(new, name))
    if old.launches != new.launches:
        yield Change("launches of each arm", str(old.launches), str(new.launches))
    arms = [{arm.name: arm for arm in run.arms} for run in (old, new)]
    for name in dict.fromkeys([*arms[0], *arms[1]]):
        yield from _of_arms(name, arms[0].get(name), arms[1].get(name))
    sums = [{item.name: item.sha256[:12] for item in run.workloads} for run in (old, new)]
    for name in dict.fromkeys([*sums[0], *sums[1]]):
        found = [one.get(name, "-") for one in sums]
        if found[0] != found[1]:
            yield Change(f"prompts of {name}", *found)


def _of_mapping(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key, "-"), new.get(key, "-"))


def _of_arms(name: str, old: ArmInfo | None, new: ArmInfo | None) -> Iterator[Change]:
    if old is None or new is None:
        yield Change(f"arm {name}", "there" if old else "-", "there" if new else "-")
        return
    for key in _ARM_KEYS:
        found = [str(value)[:12] if key == "fingerprint" and value else str(value or "-")
                 for value in (getattr(old, key), getattr(new, key))]  # fmt: skip
        if found[0] != found[1]:
            yield Change(f"{name}: {key}", *found)


def _machine(result: Result) -> dict[str, str]:
    return {key: value for key, value in result.host.items() if key in ("accelerator", "cpu", "cores")}


def _notes(old: Result, new: Result) -> Iterator[str]:
    if _machine(old) != _machine(new):
        yield "the machines differ: only the speedups are compared, each over its own baseline"
    if min(old.launches, new.launches) == 1:
        yield "a run of one launch: a change of some per cent can come from another start alone"
    if not (old.is_complete and new.is_complete):
        yield "a run is not complete: its figures may still change"


def _names(models: list[str]) -> str:
    return ", ".join(f"`{model}`" for model in models)
