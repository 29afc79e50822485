"""What all reports are made of: figures as short words, tables of 80 columns, markdown, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from specserve.errors import without_user
from specserve.report.console import WIDTH, in_one_line, json_text, styled, wrapped

if TYPE_CHECKING:
    from specserve.measure.verdict import Estimate

_WORDS = {
    "good": "BETTER, SAME, PAYS, LOSSLESS, NO FAULT FOUND, STEADY, kept, ok, agree, fits",
    "bad": "bad, COSTS, WORSE, LOSSY, COLLAPSED, MISSED, missed, not ok, invalid, not ready, "
    "not checked, does not fit",
    "open": "note, INCONCLUSIVE, UNDECIDED, UNSEEN, OFF, undecided, may not fit, "
    "not known whether it fits",
}
TONES = {word: tone for tone, words in _WORDS.items() for word in words.split(", ")}
"""How a verdict is shown, by its word: its colour on a terminal and on a page."""
STYLES = {"good": "green", "bad": "red", "open": "yellow"}
_GAP = "  "
_MARKDOWN = r"[\\`*\[\]|~$!{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+#=]|^\d+[.)]"
_LINKS = r"(?i)@|#(?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=GH)(?=-\d)"
"""What GitHub makes a mention, a reference or a link, escaped or not; a blank of no width helps."""
DASH = "-"
GIB = 1 << 30
VERSION = 1


class Column(NamedTuple):
    """A column's head, and what its cells are: only `text` is broken on a page."""

    name: str
    kind: Literal["number", "name", "text"] = "number"


class Table(NamedTuple):
    """Rows of plain text under their columns; the first `keys` columns name a row."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    keys: int = 1

    def filled(self) -> Table:
        """Return the table without the columns in which nothing stands."""
        every = range(len(self.columns))
        kept = [at for at in every if any(row[at] not in ("", DASH) for row in self.rows)]
        rows = [[row[at] for at in kept] for row in self.rows]
        return Table([self.columns[at] for at in kept], rows, sum(at < self.keys for at in kept))

    def text(self, *, stream: TextIO | None = None, indent: int = 2) -> list[str]:
        """Return the lines; if they are wider than 80 columns, a list of rows."""
        table, stream = self.filled(), stream or sys.stdout
        cells = [[column.name for column in table.columns]]
        cells += [list(map(in_one_line, row)) for row in table.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lead, lines, above = " " * indent, list[str](), ""
        if indent + sum(widths) + len(_GAP) * (len(widths) - 1) > WIDTH:
            keys = max(1, table.keys)
            for row in cells[1:]:
                lines.append(lead + ", ".join(filter(None, row[:keys])))
                pairs = list(zip(cells[0], row, strict=True))[keys:]
                words = ", ".join(f"{name} {cell}" for name, cell in pairs if cell not in ("", "-"))
                lines.append(wrapped(words, lead=f"{lead}  ", stream=stream))
            return lines
        for row in cells:
            shown = list[str]()
            for column, cell, columns in zip(table.columns, row, widths, strict=True):
                is_repeated = not shown and table.keys > 1 and cell == above
                pad = " " * (columns - len(cell))
                word = " " * len(cell) if is_repeated else coloured(cell, stream=stream)
                shown.append(pad + word if column.kind == "number" else word + pad)
            lines.append((lead + _GAP.join(shown)).rstrip())
            above = row[0]
        return lines

    def markdown(self) -> str:
        """Return the table for a pull request."""
        table = self.filled()
        rows = [
            [column.name for column in table.columns],
            ["---:" if column.kind == "number" else "---" for column in table.columns],
        ]
        for row in table.rows:
            pairs = zip(table.columns, row, strict=True)
            rows.append([cell if each.kind == "number" else bold(cell) for each, cell in pairs])
        return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def coloured(word: str, *, stream: TextIO | None = None) -> str:
    """Return a verdict's word in its colour, and any other text as it is."""
    return styled(word, STYLES[TONES[word]], stream=stream) if word in TONES else word


def answer_line(word: str, rest: str, *, lead: str = "", stream: TextIO) -> str:
    """Return `PAYS: 1.8 times as fast …`: the line that answers, its word in its colour."""
    colon = ": " if word and rest else ""
    shown = f"{lead}{coloured(word, stream=stream)}{colon}"
    return wrapped(
        in_one_line(rest), lead=f"{lead}{word}{colon}", shown=shown, indent=0, stream=stream
    )


def markdown(text: object) -> str:
    """Return a sentence within markdown, with code for the names in backticks.

    No link, no mention, no picture, no HTML, no new cell comes from it.
    """
    parts = list[str]()
    for part, is_code in sentence_parts(str(text).strip()):
        plain = in_one_line(without_user(part))
        if is_code and "|" not in plain:
            parts.append(f"`{plain}`")
            continue
        safe = re.sub(_MARKDOWN, lambda match: f"{match[0][:-1]}\\{match[0][-1]}", plain)
        safe = safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts.append(re.sub(_LINKS, lambda match: f"{match[0]}&#8203;", safe))
    return "".join(parts)


def bold(word: str) -> str:
    """Return a verdict's word in bold, and any other text as it is, within markdown."""
    return f"**{word}**" if word in TONES else markdown(word)


def sentence_parts(text: str) -> list[tuple[str, bool]]:
    """Return the pieces of a sentence and whether each stood in backticks."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return [(text, False)]
    return [(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece]


def count(number: int, word: str) -> str:
    """Return `1 model`, `2 models`, `1,204 tokens`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def figure(value: float | None, digits: int = 2) -> str:
    """Return the value with that many decimals: `4.21`, `1,204.3`."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def with_spread(interval: Estimate | None, unit: str = "") -> str:
    """Return the value and its bounds, `2.17x (2.08-2.25)`, or `2.17x (2.08 or more)`."""
    if interval is None:
        return DASH
    high = f"-{interval.high:.2f}" if math.isfinite(interval.high) else " or more"
    return f"{figure(interval.value)}{unit} ({figure(interval.low)}{high})"


def duration(seconds: float) -> str:
    """Return `3.1 s`, `42 s`, `2.5 min`, `12 min`, `3 h 07 min`, `5 d 02 h`."""
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


def json_document(content: object, *, indent: int | None = 2) -> str:
    """Return the JSON of a mapping or a data class; no character in it steers a terminal."""
    values = {"version": VERSION, **json_values(content)}
    return json_text(json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False))


def json_values(value: Any) -> Any:
    """Return the value as JSON holds it; what is not finite is null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if dataclasses.is_dataclass(value):
        return {
            each.name: json_values(getattr(value, each.name)) for each in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [json_values(item) for item in value]
    return str(value)
