"""Two runs side by side as markdown and as an HTML page. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.measure.bench.comparison import RunComparison
from specserve.report.benchcompare import HEAD, cells, groups, refusals, summary, turns
from specserve.report.benchmarkdown import table as markdown_table
from specserve.report.figures import moment
from specserve.report.html import Column, listed, page, table
from specserve.report.markup import code_cell, escaped, html_sentence, markdown, markdown_sentence


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


def html_comparison(comparison: RunComparison) -> str:
    """One file; everything from outside is escaped."""
    lead = [f"<p>{escaped(_when(comparison))}.</p>", f"<p>{escaped(summary(comparison).capitalize())}.</p>"]
    return page(kind="two benchmarks", title=comparison.new.name, lead=lead, body=_body(comparison))


def _body(comparison: RunComparison) -> Iterator[str]:
    if comparison.changes:
        yield "<h2>What changed</h2>"
        columns = (
            Column("what", is_name=True),
            Column("old", is_name=True, wraps=True),
            Column("new", is_name=True, wraps=True),
        )
        yield table(
            columns,
            [tuple(map(escaped, (item.what, item.old, item.new))) for item in comparison.changes],
            stacks=True,
        )
    for title, changes in groups(comparison):
        yield f"<h2>{escaped(title)}</h2>"
        yield table(
            [Column(name, is_name=name == "arm") for name in HEAD],
            [tuple(map(escaped, cells(item))) for item in changes],
        )
        yield listed(map(escaped, turns(changes)))
    notes = [*refusals(comparison), *comparison.notes]
    if notes:
        yield "<h2>Notes</h2>"
        yield listed(map(html_sentence, notes))


def _when(comparison: RunComparison) -> str:
    return f"Old: {moment(comparison.old.created)}. New: {moment(comparison.new.created)}"
