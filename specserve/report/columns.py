"""Columns of text that fit 80 characters. Knows nothing of what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 80
_GAP = "  "


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = (), indent: int = 2
) -> list[str]:
    """The table's lines, numbers to the right; the columns named in `left` to the left."""
    widths = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(head)]
    lines = []
    for cells in (head, *rows):
        parts = [
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(head, cells, widths, strict=True)
        ]
        lines.append(" " * indent + _GAP.join(parts).rstrip())
    return lines


def once(cells: Iterable[str]) -> list[str]:
    """The cells of a column; what repeats the one above is left empty."""
    listed = list(cells)
    return ["" if at and listed[at - 1] == cell else cell for at, cell in enumerate(listed)]


def width_of(lines: Sequence[str]) -> int:
    """That of the longest line."""
    return max(map(len, lines), default=0)


def short(text: str, most: int) -> str:
    """The text, or its end behind `…`: names of one kind differ at their ends."""
    return text if len(text) <= most else f"…{text[-(most - 1) :]}"


def distinct(names: Sequence[str], most: int) -> dict[str, str]:
    """Short forms that differ from each other as the names do."""
    forms: dict[str, str] = {}
    for name in names:
        form, count = short(name, most), 1
        while form in forms.values():
            count += 1
            form = f"{short(name, most - len(str(count)) - 1)}#{count}"
        forms[name] = form
    return forms
