"""Two runs of a benchmark side by side, as text, markdown or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.comparison import PointChange, RunComparison
from specserve.measure.bench.result import plain
from specserve.report.bench import table as markdown_table
from specserve.report.benchview import load, where
from specserve.report.console import (
    columns,
    distinct,
    filled,
    in_one_line,
    json_text,
    moment,
    number,
    rate,
    spread,
    styled,
)
from specserve.report.html import (
    code_cell,
    markdown,
    markdown_sentence,
)

HEAD = ("load", "arm", "old tok/s", "new", "ratio", "old speedup", "new", "new/old, 95 %")


def compared(comparison: RunComparison, *, form: str, stream: TextIO | None = None) -> str:
    """The comparison in the form that is asked for. Ends with a line break."""
    match form:
        case "json":
            return without_user(_json(comparison))
        case "markdown":
            return markdown_comparison(comparison)
    return without_user(_text(comparison, stream or sys.stdout))


def cells(change: PointChange) -> tuple[str, ...]:
    """One line's figures, from the load on."""
    ratio = (
        f"{number(change.speedup_ratio.value)} ({spread(change.speedup_ratio)})"
        if change.speedup_ratio
        else ""
    )
    return (
        load(change.point),
        change.arm,
        rate(change.old_tokens_per_s),
        rate(change.new_tokens_per_s),
        number(change.tokens_per_s_ratio),
        number(change.old_speedup.value) if change.old_speedup else "",
        number(change.new_speedup.value) if change.new_speedup else "",
        ratio,
    )


def groups(comparison: RunComparison) -> list[tuple[str, list[PointChange]]]:
    """The points that can be compared, by workload and temperature."""
    found: dict[str, list[PointChange]] = {}
    for change in comparison.points:
        if change.refused is None:
            point = change.point
            cache = "" if point.prefix_cache else ", prefix cache off"
            kind = "requests at once" if point.concurrency is not None else "requests/s"
            title = f"{point.workload}, temperature {point.temperature:g}{cache} (load: {kind})"
            found.setdefault(title, []).append(change)
    for changes in found.values():
        changes.sort(key=lambda item: item.point.concurrency or item.point.request_rate or 0)
    return list(found.items())


def refusals(comparison: RunComparison) -> list[str]:
    """Points that cannot be compared, those of one workload and reason together."""
    if comparison.refused is not None:
        return [f"not comparable: {comparison.refused}"]
    found: dict[tuple[str, str], list[PointChange]] = {}
    for item in comparison.points:
        if item.refused is not None:
            found.setdefault((item.point.workload, item.refused), []).append(item)
    return [f"not comparable: {_points(workload, items)}: {why}" for (workload, why), items in found.items()]


def _points(workload: str, items: Sequence[PointChange]) -> str:
    if len(items) == 1:
        return f"{items[0].arm} on {where(items[0].point)}"
    return f"{len(items)} points of {workload}"


def turns(changes: Sequence[PointChange]) -> list[str]:
    """What the intervals allow to say."""
    told = []
    for item in changes:
        if item.direction in ("rose", "fell"):
            verdicts = [each.value if each else "none" for each in (item.old_verdict, item.new_verdict)]
            after = f": {verdicts[0]}, now {verdicts[1]}" if verdicts[0] != verdicts[1] else ""
            told.append(f"{item.arm} at {load(item.point)}: the speedup {item.direction}{after}")
    return told


def summary(comparison: RunComparison) -> str:
    """The last line."""
    known = [item.direction for item in comparison.points if item.direction]
    if not known:
        return "no speedup can be compared"
    parts = [f"{word} at {known.count(word)}" for word in ("rose", "fell") if word in known]
    still = known.count("no change seen")
    parts += [f"no change seen at {still}"] if still else []
    return f"speedup: {', '.join(parts)} of {len(known)} points"


def _text(comparison: RunComparison, stream: TextIO) -> str:
    old, new = comparison.old, comparison.new
    lines = ["Two runs", *(f"  {word}  {in_one_line(f'{moment(run.created)}, {run.name}')}"
                           for word, run in (("old", old), ("new", new)))]  # fmt: skip
    parts = ["\n".join(lines)]
    if comparison.changes:
        width = min(32, max(len(in_one_line(item.what)) for item in comparison.changes))
        told = [
            filled(
                in_one_line(f"{item.old} → {item.new}"),
                lead=f"  {in_one_line(item.what).ljust(width)}  ",
                stream=stream,
            )
            for item in comparison.changes
        ]
        parts.append("\n".join([styled("Changed", "bold", stream=stream), *told]))
    names = distinct(list(dict.fromkeys(in_one_line(item.arm) for item in comparison.points)), 12)
    for title, changes in groups(comparison):
        rows = [(row[0], names[in_one_line(row[1])], *row[2:]) for row in map(cells, changes)]
        table = columns(HEAD, rows, left=("arm",))
        after = [filled(in_one_line(line), lead="  ", stream=stream) for line in turns(changes)]
        parts.append(
            "\n".join(
                [styled(in_one_line(title), "bold", stream=stream), *table, *([""] if after else []), *after]
            )
        )
    notes = [*refusals(comparison), *(f"note: {item}" for item in comparison.notes)]
    parts.append("\n".join(filled(in_one_line(note), lead="", stream=stream) for note in notes))
    parts.append(summary(comparison))
    return "\n\n".join(part for part in parts if part) + "\n"


def _json(comparison: RunComparison) -> str:
    def run(result: object, keys: Sequence[str]) -> dict[str, object]:
        return {key: getattr(result, key) for key in keys}

    keys = ("name", "fingerprint", "created")
    content = {
        "version": 1,
        "old": run(comparison.old, keys),
        "new": run(comparison.new, keys),
        "refused": comparison.refused,
        "changes": [dataclasses.asdict(item) for item in comparison.changes],
        "points": [
            {**dataclasses.asdict(item), "direction": item.direction or None} for item in comparison.points
        ],
        "notes": list(comparison.notes),
    }
    return json_text(json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def markdown_comparison(comparison: RunComparison) -> str:
    """For a pull request; everything from outside is escaped."""
    parts = [
        f"### {markdown(comparison.new.name)}: two runs",
        f"{markdown(_when(comparison))}. {markdown(summary(comparison))}",
    ]
    if comparison.changes:
        rows = [
            (markdown(item.what), code_cell(item.old), code_cell(item.new)) for item in comparison.changes
        ]
        parts.append(markdown_table(("changed", "old", "new"), rows))
    for title, changes in groups(comparison):
        numbers = frozenset(HEAD) - {"arm"}
        found = [(row[0], code_cell(row[1]), *row[2:]) for row in map(cells, changes)]
        parts.append(f"**{markdown(title)}**\n\n{markdown_table(HEAD, found, numbers=numbers)}")
        parts.append("\n".join(f"- {markdown(line)}" for line in turns(changes)))
    parts.append(
        "\n".join(f"- {markdown_sentence(line)}" for line in (*refusals(comparison), *comparison.notes))
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _when(comparison: RunComparison) -> str:
    return f"Old: {moment(comparison.old.created)}. New: {moment(comparison.new.created)}"
