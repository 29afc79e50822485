"""A table as text of 80 columns and as markdown; names from outside stay names in both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from specserve.errors import without_user
from specserve.report.console import WIDTH, in_one_line, styled
from specserve.report.numbers import NONE

TONES: Mapping[str, str] = {
    **dict.fromkeys(("PAYS", "kept", "LOSSLESS", "NO FAULT FOUND", "SAME", "ok", "agree"), "good"),
    **dict.fromkeys(("COSTS", "missed", "LOSSY", "DIFFERENT", "not ok", "failed", "differ"), "bad"),
    **dict.fromkeys(("INCONCLUSIVE", "not decided", "CLOSE"), "open"),
    **dict.fromkeys(("KEPT", "STEADY", "PROMOTE", "better", "no worse"), "good"),
    **dict.fromkeys(("COLLAPSED", "MISSED", "ROLL BACK", "worse"), "bad"),
    **dict.fromkeys(("UNSEEN", "OFF", "UNDRAFTED", "FALLEN", "UNDECIDED"), "open"),
}
"""How a verdict is shown, by its word: its colour on a terminal and on a page."""
STYLES = {"good": "green", "bad": "red", "open": "yellow"}
_GAP = 2
_MARKDOWN = re.compile(r"[\\`*\[\]|~$!{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+#=]|^\d+[.)]")
_LINKS = re.compile(r"@|#(?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=GH)(?=-\d)", re.IGNORECASE)
"""What GitHub makes a mention, a reference or a link of, escaped or not: a blank of no width keeps it from that."""
_TICKS = re.compile(r"`+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head and what its cells are: `number`, `name`, `code`, `verdict` or long `text`."""

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
    """The first columns that name a row; a table that is too wide goes on below with these again."""

    def filled(self, *, has_details: bool = True) -> Table:
        """Returns the table without the columns in which nothing stands."""
        shown = [at for at, column in enumerate(self.columns) if has_details or not column.is_detail]
        kept = [at for at in shown if any(row[at] not in ("", NONE) for row in self.rows)]
        rows = [tuple(row[at] for at in kept) for row in self.rows]
        keys = sum(at < self.keys for at in kept)
        return Table([self.columns[at] for at in kept], rows, self.caption, keys)

    def text(self, *, stream: TextIO | None = None, width: int = WIDTH, indent: int = 2) -> list[str]:
        """Returns the lines; verdicts are coloured if `stream` is a terminal."""
        table = self.filled(has_details=False)
        cells = [tuple(column.name for column in table.columns)]
        cells += [tuple(in_one_line(cell) for cell in row) for row in table.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines: list[str] = []
        for part in table._parts(widths, room=width - indent):
            lines += [""] if lines else []
            above = ""
            for row in cells:
                if not lines or any(row[at] not in ("", NONE) for at in part[table.keys :]):
                    first = "" if table.keys > 1 and row[0] == above else row[0]
                    shown = [
                        table._padded(at, first if at == 0 else row[at], widths[at], stream) for at in part
                    ]
                    lines.append((" " * indent + (" " * _GAP).join(shown)).rstrip())
                    above = row[0]
        return lines

    def _parts(self, widths: Sequence[int], *, room: int) -> Iterator[list[int]]:
        """The columns of each part, the keys first."""
        keys = list(range(self.keys))
        part = list(keys)
        for at in range(self.keys, len(widths)):
            needed = sum(widths[each] + _GAP for each in (*part, at)) - _GAP
            if needed > room and len(part) > len(keys):
                yield part
                part = list(keys)
            part.append(at)
        yield part

    def _padded(self, at: int, cell: str, width: int, stream: TextIO | None) -> str:
        if self.columns[at].kind == "number":
            return cell.rjust(width)
        shown = toned(cell, stream=stream) if stream and self.columns[at].kind == "verdict" else cell
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
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule or ["---"] * len(head), *rows))


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


def toned(word: str, *, stream: TextIO | None = None) -> str:
    """Returns a verdict's word in its colour."""
    tone = TONES.get(word)
    return styled(word, STYLES[tone], stream=stream) if tone else word


def markdown(text: object) -> str:
    """Returns plain text within markdown: no link, no mention, no picture, no HTML, no new cell comes from it."""
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
    """Returns the pieces of a sentence and whether each stood in backticks; one tick alone is a character."""
    pieces = str(text).split("`")
    if len(pieces) % 2 == 0:
        return [(str(text), False)]
    return [(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece]
