"""Two runs of a benchmark side by side, as text, markdown or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.comparison import PointChange, RunComparison
from specserve.report.benchrows import load, size, where
from specserve.report.document import Block, Document, Items, Paragraph, Section
from specserve.report.numbers import moment, number, rate, with_spread
from specserve.report.page import render
from specserve.report.serializer import json_document, json_values, picked
from specserve.report.table import Column, Table, distinct

_HEAD = (
    Column("load"), Column("arm", "code"), Column("old tok/s"), Column("new"), Column("ratio"),
    Column("old speedup"), Column("new"), Column("new/old, 95 %"),
)  # fmt: skip
_NAME_WIDTH = 12


def compared(comparison: RunComparison, *, form: str, stream: TextIO | None = None) -> str:
    """Returns the comparison as `text`, `markdown` or `json`, with a line break at its end."""
    if form == "json":
        return without_user(_json(comparison)) + "\n"
    width = _NAME_WIDTH if form == "text" else sys.maxsize
    return render(_document(comparison, width), form=form, stream=stream or sys.stdout)


def _document(comparison: RunComparison, width: int) -> Document:
    """`width`: characters that an arm's name may have."""
    runs = (("old", comparison.old), ("new", comparison.new))
    names = distinct(list(dict.fromkeys(item.arm for item in comparison.points)), width)
    changes = [(item.what, f"{item.old} → {item.new}") for item in comparison.changes]
    blocks: list[Block] = [
        Paragraph(_summary(comparison)),
        Items([(word, f"{moment(run.created)}, {run.name}") for word, run in runs]),
    ]
    if changes:
        blocks.append(Section("Changed", [Items(changes)]))
    for title, points in _groups(comparison).items():
        table = Table(_HEAD, [_cells(item, names[item.arm]) for item in points], keys=2)
        blocks.append(Section(title, [table, Items(list(_turns(points)))]))
    blocks.append(Items([*_refusals(comparison), *(("note", note) for note in comparison.notes)]))
    return Document("comparison", f"two runs: {comparison.new.name}", blocks)


def _cells(change: PointChange, name: str) -> tuple[str, ...]:
    return (
        load(change.point),
        name,
        rate(change.old_tokens_per_s),
        rate(change.new_tokens_per_s),
        number(change.tokens_per_s_ratio),
        number(change.old_speedup.value) if change.old_speedup else "",
        number(change.new_speedup.value) if change.new_speedup else "",
        with_spread(change.speedup_ratio) if change.speedup_ratio else "",
    )


def _groups(comparison: RunComparison) -> dict[str, list[PointChange]]:
    """The points that can be compared, by workload and temperature."""
    found: dict[str, list[PointChange]] = {}
    for change in sorted(comparison.points, key=lambda item: size(item.point)):
        if change.refused is None:
            point = change.point
            cache = "" if point.prefix_cache else ", prefix cache off"
            kind = "concurrency" if point.concurrency is not None else "requests/s"
            title = f"{point.workload}, temperature {point.temperature:g}{cache} (load: {kind})"
            found.setdefault(title, []).append(change)
    return found


def _turns(changes: Sequence[PointChange]) -> Iterator[tuple[str, str]]:
    """What the intervals allow to say."""
    for item in changes:
        if item.direction in ("rose", "fell"):
            old, new = (each.value if each else "none" for each in (item.old_verdict, item.new_verdict))
            after = f": {old}, now {new}" if old != new else ""
            yield f"{item.arm} at {load(item.point)}", f"the speedup {item.direction}{after}"


def _refusals(comparison: RunComparison) -> list[tuple[str, str]]:
    """What cannot be compared, the points of one workload and reason together."""
    if comparison.refused is not None:
        return [("not comparable", comparison.refused)]
    found: dict[tuple[str, str], list[PointChange]] = {}
    for item in comparison.points:
        if item.refused is not None:
            found.setdefault((item.point.workload, item.refused), []).append(item)
    return [
        ("not comparable", f"{_points(workload, items)}: {why}") for (workload, why), items in found.items()
    ]


def _points(workload: str, items: Sequence[PointChange]) -> str:
    if len(items) == 1:
        return f"{items[0].arm} on {where(items[0].point)}"
    return f"{len(items)} points of {workload}"


def _summary(comparison: RunComparison) -> str:
    known = [item.direction for item in comparison.points if item.direction]
    parts = [f"{word} at {known.count(word)}" for word in ("rose", "fell", "no change seen") if word in known]
    return f"speedup: {', '.join(parts)} of {len(known)} points" if known else "no speedup can be compared"


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
