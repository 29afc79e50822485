"""Two runs of a benchmark side by side: what changed, and by how much; as text, markdown or JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.result import Cell, Comparison, Interval, Point, Result, Verdict
from specserve.report.bench import load, load_words, setting, size, where
from specserve.report.page import Block, Document, Items, Paragraph, Section, render
from specserve.report.text import Column, Table, json_document, moment, number, picked, rate, with_spread

_ARM_KEYS = ("model", "method", "draft_model", "num_speculative_tokens", "fingerprint", "url")
_HEAD = (
    Column("load"), Column("variant", "code"), Column("old tok/s"), Column("new"), Column("ratio"),
    Column("old speedup"), Column("new"), Column("new/old, 95 %"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not the same in both runs; `-` if a run has none."""

    what: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class PointChange:
    """One variant at one point of both runs."""

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
    direction: str | None = None
    """What the intervals allow to say of the speedup: `rose`, `fell`, `no change seen`; None without them."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs."""

    old: Result
    new: Result
    refused: str | None
    """Why the runs cannot be compared at all."""
    changes: tuple[Change, ...]
    points: tuple[PointChange, ...] = ()
    notes: tuple[str, ...] = ()


def compare(old: Result, new: Result) -> RunComparison:
    """Returns what changed from one run to the other. Runs of two targets, or without a common point, are refused."""
    changes = tuple(_changes(old, new))
    targets = [sorted({arm.model for arm in run.arms if arm.model}) for run in (old, new)]
    if all(targets) and targets[0] != targets[1]:
        names = [", ".join(f"`{model}`" for model in models) for models in targets]
        return RunComparison(old, new, f"the targets differ: {names[0]} and {names[1]}", changes)
    points = tuple(_points(old, new))
    if not points:
        return RunComparison(old, new, "no variant was measured at the same point in both runs", changes)
    return RunComparison(old, new, None, changes, points, tuple(_notes(old, new)))


def _points(old: Result, new: Result) -> Iterator[PointChange]:
    sums = {item.name: item.sha256 for item in old.workloads}
    other = {item.name for item in new.workloads if sums.get(item.name, item.sha256) != item.sha256}
    before, after = ({(cell.arm, cell.point): cell for cell in run.cells} for run in (old, new))
    compared = [{(item.arm, item.point): item for item in run.comparisons} for run in (old, new)]
    is_same_machine = _machine(old) == _machine(new)
    for key in [key for key in after if key in before]:
        cells = (("old", before[key]), ("new", after[key]))
        refused = next((why for word, cell in cells if (why := _invalid(word, cell))), None)
        if key[1].workload in other:
            refused = "the prompts or their max_tokens differ"
        if refused:
            yield PointChange(*key, refused=refused)
            continue
        rates = [cell.figures.output_tokens_per_s for _, cell in cells if cell.figures]
        first, second = (found.get(key) for found in compared)
        ratio = _ratio(first, second)
        yield PointChange(
            *key,
            old_tokens_per_s=rates[0],
            new_tokens_per_s=rates[1],
            tokens_per_s_ratio=rates[1] / rates[0] if is_same_machine and min(rates) > 0 else None,
            old_speedup=first.speedup if first else None,
            new_speedup=second.speedup if second else None,
            speedup_ratio=ratio,
            old_verdict=first.verdict if first else None,
            new_verdict=second.verdict if second else None,
            direction=_direction(ratio) if ratio else None,
        )


def _invalid(word: str, cell: Cell) -> str | None:
    if cell.invalid is None and cell.figures is not None:
        return None
    return f"invalid in the {word} run: {cell.invalid or 'not measured'}"


def _direction(ratio: Interval) -> str:
    return "rose" if ratio.low > 1 else "fell" if ratio.high < 1 else "no change seen"


def _ratio(before: Comparison | None, after: Comparison | None) -> Interval | None:
    """Returns new over old: the errors of two runs are independent, and add up as squares on the log scale."""
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
    """Yields all that has a name and another value, in the order of a result."""
    both = {arm.name for arm in old.arms} & {arm.name for arm in new.arms}
    before, after = (_facts(run, detailed=both) for run in (old, new))
    for name in dict.fromkeys([*before, *after]):
        values = before.get(name, "-"), after.get(name, "-")
        if values[0] != values[1]:
            yield Change(name, *values)


def _facts(run: Result, *, detailed: Collection[str]) -> dict[str, str]:
    """Returns facts by name. `detailed`: the variants of which more is shown than that they are there."""
    facts = {**run.versions, **run.host, **run.settings, "launches of each variant": str(run.launches)}
    for arm in run.arms:
        facts[f"variant {arm.name}"] = "there"
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


def compared(comparison: RunComparison, *, form: str, stream: TextIO | None = None) -> str:
    """Returns the comparison as `text`, `markdown` or `json`, with a line break at its end."""
    if form != "json":
        return render(_document(comparison), form=form, stream=stream or sys.stdout)
    runs = {word: getattr(comparison, word) for word in ("old", "new")}
    content = {word: picked(run, "name", "fingerprint", "created") for word, run in runs.items()}
    return (
        without_user(json_document(content | picked(comparison, "refused", "changes", "points", "notes")))
        + "\n"
    )


def _document(comparison: RunComparison) -> Document:
    known = [item.direction for item in comparison.points if item.direction]
    parts = [f"{word} at {known.count(word)}" for word in ("rose", "fell", "no change seen") if word in known]
    summary = f"speedup: {', '.join(parts)} of {len(known)} points" if known else "no speedup can be compared"
    runs = (("old", comparison.old), ("new", comparison.new))
    blocks: list[Block] = [
        Paragraph(summary),
        Items([(word, f"{moment(run.created)}, {run.name}") for word, run in runs]),
    ]
    if comparison.changes:
        changes = [(item.what, f"{item.old} → {item.new}") for item in comparison.changes]
        blocks.append(Section("Changed", [Items(changes)]))
    groups: dict[str, list[PointChange]] = {}
    for item in sorted(comparison.points, key=lambda item: size(item.point)):
        if item.refused is None:
            groups.setdefault(f"{setting(item.point)} (load: {load_words(item.point)})", []).append(item)
    for title, points in groups.items():
        table = Table(_HEAD, list(map(_cells, points)), keys=2)
        blocks.append(Section(title, [table, Items(list(_turns(points)))]))
    blocks.append(Items([*_refusals(comparison), *(("note", note) for note in comparison.notes)]))
    return Document("comparison", f"two runs: {comparison.new.name}", blocks)


def _cells(change: PointChange) -> tuple[str, ...]:
    """Returns one row of the table, in the order of its head."""
    speedups = (change.old_speedup, change.new_speedup)
    return (
        load(change.point),
        change.arm,
        rate(change.old_tokens_per_s),
        rate(change.new_tokens_per_s),
        number(change.tokens_per_s_ratio),
        *(number(speedup.value) if speedup else "" for speedup in speedups),
        with_spread(change.speedup_ratio) if change.speedup_ratio else "",
    )


def _turns(changes: Sequence[PointChange]) -> Iterator[tuple[str, str]]:
    """Yields what the intervals allow to say."""
    for item in changes:
        if item.direction in ("rose", "fell"):
            old, new = (each.value if each else "none" for each in (item.old_verdict, item.new_verdict))
            after = f": {old}, now {new}" if old != new else ""
            yield f"{item.arm} at {load(item.point)}", f"the speedup {item.direction}{after}"


def _refusals(comparison: RunComparison) -> Iterator[tuple[str, str]]:
    """Yields what cannot be compared, the points of one workload and reason together."""
    found: dict[tuple[str, str], list[PointChange]] = {}
    for item in comparison.points:
        if item.refused is not None:
            found.setdefault((item.point.workload, item.refused), []).append(item)
    reasons = [comparison.refused] if comparison.refused else []
    for (workload, why), items in found.items():
        one = f"{items[0].arm} on {where(items[0].point)}"
        reasons.append(f"{f'{len(items)} points of {workload}' if items[1:] else one}: {why}")
    yield from (("not comparable", why) for why in reasons)
