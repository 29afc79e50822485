"""What all reports are made of.

Figures as short words, tables of 80 columns, sentences and names, JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TextIO

from specserve.errors import without_user
from specserve.report.console import WIDTH, in_one_line, json_text, styled, wrapped

if TYPE_CHECKING:
    from specserve.measure.bench.result import Quantiles
    from specserve.measure.intervals import Estimate

TONES: Mapping[str, str] = {
    **dict.fromkeys(("PAYS", "kept", "LOSSLESS", "NO FAULT FOUND", "ok", "agree"), "good"),
    **dict.fromkeys(("COSTS", "missed", "LOSSY", "not ok", "failed", "differ"), "bad"),
    **dict.fromkeys(("INCONCLUSIVE", "not decided"), "open"),
    **dict.fromkeys(("STEADY", "fits"), "good"),
    **dict.fromkeys(("does not fit", "not ready", "not checked"), "bad"),
    **dict.fromkeys(("may not fit", "not known whether it fits"), "open"),
    **dict.fromkeys(("COLLAPSED", "MISSED"), "bad"),
    **dict.fromkeys(("UNSEEN", "OFF", "UNDECIDED"), "open"),
}
"""How a verdict is shown, by its word: its colour on a terminal and on a page."""
STYLES = {"good": "green", "bad": "red", "open": "yellow"}
_GAP = 2
_MARKDOWN = re.compile(r"[\\`*\[\]|~$!{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+#=]|^\d+[.)]")
_LINKS = re.compile(r"@|#(?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=GH)(?=-\d)", re.IGNORECASE)
"""What GitHub makes a mention, a reference or a link of, escaped or not.

A blank of no width keeps it from that.
"""
_TICKS = re.compile(r"`+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head and what its cells are.

    `number`, `name`, `code`, `verdict` or long `text`.
    """

    name: str
    kind: Literal["number", "name", "code", "verdict", "text"] = "number"
    is_detail: bool = False
    """Left out of text."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain text under their columns. Columns without any figure are left out."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    keys: int = 0
    """The first columns, which name a row."""

    def filled(self, *, has_details: bool = True) -> Table:
        """Returns the table without the columns in which nothing stands."""
        shown = [
            at for at, column in enumerate(self.columns) if has_details or not column.is_detail
        ]
        kept = [at for at in shown if any(row[at] not in ("", DASH) for row in self.rows)]
        rows = [tuple(row[at] for at in kept) for row in self.rows]
        keys = sum(at < self.keys for at in kept)
        return Table([self.columns[at] for at in kept], rows, self.caption, keys)

    def text(
        self, *, stream: TextIO | None = None, width: int = WIDTH, indent: int = 2
    ) -> list[str]:
        """Returns the lines; if they are wider than `width`, a list of rows."""
        table, stream = self.filled(has_details=False), stream or sys.stdout
        cells = [tuple(column.name for column in table.columns)]
        cells += [tuple(in_one_line(cell) for cell in row) for row in table.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lead = " " * indent
        if indent + sum(widths) + _GAP * (len(widths) - 1) > width:
            return [line for row in cells[1:] for line in table._listed(row, lead, stream)]
        lines, above = [], ""
        for row in cells:
            first = "" if table.keys > 1 and row[0] == above else row[0]
            shown = [
                table._padded(at, cell, widths[at], stream)
                for at, cell in enumerate((first, *row[1:]))
            ]
            lines.append((lead + (" " * _GAP).join(shown)).rstrip())
            above = row[0]
        return lines

    def _listed(self, row: Sequence[str], lead: str, stream: TextIO) -> Iterator[str]:
        """A row of a table that is too wide: what names it, and below it its figures."""
        keys = max(1, self.keys)
        pairs = list(zip(self.columns, row, strict=True))
        yield lead + ", ".join(cell for _, cell in pairs[:keys] if cell)
        words = ", ".join(
            f"{column.name} {cell}" for column, cell in pairs[keys:] if cell not in ("", DASH)
        )
        yield wrapped(words, lead=f"{lead}  ", stream=stream)

    def _padded(self, at: int, cell: str, width: int, stream: TextIO) -> str:
        if self.columns[at].kind == "number":
            return cell.rjust(width)
        shown = coloured(cell, stream=stream) if self.columns[at].kind == "verdict" else cell
        return shown + " " * (width - len(cell))

    def markdown(self) -> str:
        """Returns the table for a pull request."""
        table = self.filled()
        head = [markdown(column.name) for column in table.columns]
        rule = ["---:" if column.kind == "number" else "---" for column in table.columns]
        rows = [
            [_markdown_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)]
            for row in table.rows
        ]
        return markdown_table(head, rows, rule=rule)


def markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, rule: Sequence[str] | None = None
) -> str:
    """Returns a table of cells that are markdown already."""
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (head, rule or ["---"] * len(head), *rows)
    )


def _markdown_cell(column: Column, cell: str) -> str:
    if not cell:
        return ""
    match column.kind:
        case "number":
            return cell
        case "code":
            return code_cell(cell)
        case "verdict":
            return f"**{markdown(cell)}**"
    return markdown_sentence(cell)


def coloured(word: str, *, stream: TextIO | None = None) -> str:
    """Returns a verdict's word in its colour."""
    tone = TONES.get(word)
    return styled(word, STYLES[tone], stream=stream) if tone else word


def answer_line(word: str, rest: str, *, lead: str = "", stream: TextIO) -> str:
    """Returns `PAYS: 1.8 times as fast …`: the line that answers, its word in its colour."""
    colon = ": " if rest else ""
    shown = f"{lead}{coloured(word, stream=stream)}{colon}"
    return wrapped(
        in_one_line(rest), lead=f"{lead}{word}{colon}", shown=shown, indent=0, stream=stream
    )


def markdown(text: object) -> str:
    """Returns plain text within markdown.

    No link, no mention, no picture, no HTML, no new cell comes from it.
    """
    plain = in_one_line(without_user(str(text))).strip()
    safe = _MARKDOWN.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", plain)
    safe = safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKS.sub(lambda match: f"{match[0]}&#8203;", safe)


def code(text: object) -> str:
    """Returns a code span."""
    plain = in_one_line(without_user(str(text))).strip() or " "
    fence = "`" * (max((len(run) for run in _TICKS.findall(plain)), default=0) + 1)
    pad = " " if "`" in (plain[0], plain[-1]) else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def code_cell(text: object) -> str:
    """Returns the same for a table's cell, which a bar would end."""
    if "|" not in str(text):
        return code(text)
    return "<code>" + markdown(text).replace("\\|", "&#124;") + "</code>"


def markdown_sentence(text: object) -> str:
    """Returns a sentence in which names stand in backticks: they become code spans."""
    return "".join(
        code_cell(part) if is_code else _inner(part) for part, is_code in sentence_parts(text)
    ).strip()


def _inner(part: str) -> str:
    words = markdown(part)
    return f"{' ' if part[:1] == ' ' else ''}{words}{' ' if words and part[-1:] == ' ' else ''}"


def sentence_parts(text: object) -> list[tuple[str, bool]]:
    """Returns the pieces of a sentence and whether each stood in backticks.

    One tick alone is a character.
    """
    pieces = str(text).split("`")
    if len(pieces) % 2 == 0:
        return [(str(text), False)]
    return [(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece]


DASH = "-"
GIB, MIB = 1 << 30, 1 << 20


def count(number: int, word: str) -> str:
    """Returns `1 model`, `2 models`, `1,204 tokens`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def rate(value: float | None) -> str:
    """Returns three digits or more: `4.21`, `82.6`, `1,204`."""
    if value is None or not math.isfinite(value):
        return DASH
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 999.95 else 0
    return f"{value:,.{digits}f}"


def decimals(value: float | None, digits: int = 2) -> str:
    """Returns the value with that many decimals."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Returns a share of 1 as `65 %`."""
    return DASH if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def spread(interval: Estimate | None, digits: int = 2) -> str:
    """Returns the bounds, `2.08-2.25`.

    `2.08 or more` if too little was measured for an upper one.
    """
    if interval is None:
        return DASH
    low = decimals(interval.low, digits)
    return (
        f"{low}-{decimals(interval.high, digits)}"
        if math.isfinite(interval.high)
        else f"{low} or more"
    )


def with_spread(interval: Estimate | None, digits: int = 2, unit: str = "") -> str:
    """Returns the value and its bounds, `2.17 (2.08-2.25)`."""
    return (
        f"{decimals(interval.value, digits)}{unit} ({spread(interval, digits)})"
        if interval
        else DASH
    )


def low_to_high(low: str, high: str, *, between: str = "-") -> str:
    """Returns both ends of a range, or one if they read the same."""
    return low if low == high else f"{low}{between}{high}"


def quantiles_words(quantiles: Quantiles | None, *, divisor: float = 1) -> str:
    """Returns P50, P90 and P99, `26.2/28.8/31.5`."""
    if quantiles is None:
        return DASH
    return "/".join(
        rate(value / divisor) for value in (quantiles.p50, quantiles.p90, quantiles.p99)
    )


def gib(size_bytes: float) -> str:
    """Returns bytes in GiB, without the unit."""
    return f"{size_bytes / GIB:.2f}"


def duration(seconds: float) -> str:
    """Returns how long something takes.

    `3.1 s`, `42 s`, `2.5 min`, `12 min`, `3 h 07 min`, `5 d 02 h`.
    """
    if not math.isfinite(seconds):
        return DASH
    seconds = max(0.0, seconds)
    if seconds < 89.5:
        return f"{seconds:.1f} s" if 0 < seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 599:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60:02d} h"


def moment(created: str) -> str:
    """Returns `2026-11-21 12:00 UTC`; a day, or a text that is not a time, as it is."""
    if len(created) <= len("2026-11-21"):
        return created
    try:
        return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


VERSION = 1


def json_document(content: object, *, indent: int | None = 2) -> str:
    """Returns the text of a document; `content` is a mapping or a data class.

    No character in it steers a terminal.
    """
    values = {"version": VERSION, **json_values(content)}
    return json_text(json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False))


def json_values(value: Any, *, digits: int | None = None) -> Any:
    """Returns the value as JSON holds it.

    What is not finite is null, floats have `digits` significant digits.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, str | int) or value is None:
        return value
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_values(item, digits=digits) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [json_values(item, digits=digits) for item in value]
    return str(value)


def fields_of(source: object, *names: str) -> dict[str, Any]:
    """Returns these attributes of an object by their names, as JSON holds them."""
    return {name: json_values(getattr(source, name)) for name in names}
