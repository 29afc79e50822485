"""Two runs of a benchmark side by side, as text, markdown or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.comparison import PointChange, RunComparison
from specserve.report.bench import load, load_words, setting, size, where
from specserve.report.numbers import moment, number, rate, with_spread
from specserve.report.page import Block, Document, Items, Paragraph, Section, render
from specserve.report.serializer import json_document, json_values, picked
from specserve.report.table import Column, Table

_HEAD = (
    Column("load"), Column("variant", "code"), Column("old tok/s"), Column("new"), Column("ratio"),
    Column("old speedup"), Column("new"), Column("new/old, 95 %"),
)  # fmt: skip


def compared(comparison: RunComparison, *, form: str, stream: TextIO | None = None) -> str:
    """Returns the comparison as `text`, `markdown` or `json`, with a line break at its end."""
    if form == "json":
        return without_user(_json(comparison)) + "\n"
    return render(_document(comparison), form=form, stream=stream or sys.stdout)


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
            point = item.point
            title = f"{point.workload}, {setting(point)} (load: {load_words(point)})"
            groups.setdefault(title, []).append(item)
    for title, points in groups.items():
        table = Table(_HEAD, list(map(_cells, points)), keys=2)
        blocks.append(Section(title, [table, Items(list(_turns(points)))]))
    blocks.append(Items([*_refusals(comparison), *(("note", note) for note in comparison.notes)]))
    return Document("comparison", f"two runs: {comparison.new.name}", blocks)


def _cells(change: PointChange) -> tuple[str, ...]:
    """One row of the table, in the order of its head."""
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
    """What the intervals allow to say."""
    for item in changes:
        if item.direction in ("rose", "fell"):
            old, new = (each.value if each else "none" for each in (item.old_verdict, item.new_verdict))
            after = f": {old}, now {new}" if old != new else ""
            yield f"{item.arm} at {load(item.point)}", f"the speedup {item.direction}{after}"


def _refusals(comparison: RunComparison) -> Iterator[tuple[str, str]]:
    """What cannot be compared, the points of one workload and reason together."""
    if comparison.refused is not None:
        yield "not comparable", comparison.refused
        return
    found: dict[tuple[str, str], list[PointChange]] = {}
    for item in comparison.points:
        if item.refused is not None:
            found.setdefault((item.point.workload, item.refused), []).append(item)
    for (workload, why), items in found.items():
        points = f"{len(items)} points of {workload}"
        yield (
            "not comparable",
            f"{points if items[1:] else f'{items[0].arm} on {where(items[0].point)}'}: {why}",
        )


def _json(comparison: RunComparison) -> str:
    keys = ("name", "fingerprint", "created")
    return json_document(
        {
            "old": picked(comparison.old, *keys),
            "new": picked(comparison.new, *keys),
            **picked(comparison, "refused", "changes"),
            "points": [
                {**json_values(item), "direction": item.direction or None} for item in comparison.points
            ],
            "notes": comparison.notes,
        }
    )
