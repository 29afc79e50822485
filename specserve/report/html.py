"""The page of a report: one file that loads nothing, for any screen, light and dark, and for paper. Holds no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from specserve import __version__
from specserve.report.markup import escaped

_CHIPS = {
    "PAYS": "good",
    "kept": "good",
    "COSTS": "bad",
    "missed": "bad",
    "INCONCLUSIVE": "open",
    "not decided": "open",
}


_BREAK, _BLANK = "\n", " "
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head, which may have two lines; `is_name`: text to the left, not a number; `wraps`: long text."""

    name: str
    is_name: bool = False
    wraps: bool = False


def page(*, kind: str, title: str, lead: Iterable[str], body: Iterable[str]) -> str:
    """The whole file. `lead` and `body` are HTML; `kind` and `title` are text."""
    style = (files("specserve.report") / "page.css").read_text(encoding="utf-8")
    return (
        "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="referrer" content="no-referrer">',
                f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
                f'<meta name="generator" content="specserve {escaped(__version__)}">',
                f"<title>{escaped(title)} · {escaped(kind)}</title>",
                f"<style>\n{style}</style>",
                "</head>",
                "<body>",
                "<header>",
                f'<p class="kind">specserve · {escaped(kind)}</p>',
                f"<h1>{escaped(title)}</h1>",
                *lead,
                "</header>",
                "<main>",
                *body,
                "</main>",
                f"<footer><p>Written by specserve {escaped(__version__)}. This file loads nothing.</p></footer>",
                "</body>",
                "</html>",
            ]
        )
        + "\n"
    )


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    starts: Iterable[int] = (),
    stacks: bool = False,
    kind: str = "",
) -> str:
    """Cells are HTML already. `starts`: rows at which a group begins. `stacks`: on a phone a row is a small list."""
    beginnings = set(starts)
    head = "".join(f'<th scope="col"{_kind(column)}>{_broken(column.name)}</th>' for column in columns)
    names = " ".join(filter(None, [kind, "stacks" if stacks else ""]))
    lines = [f'<p class="caption">{escaped(caption)}</p>'] if caption else []
    lines.append(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption or columns[0].name)}">'
    )
    lines.append(f'<table class="{names}">' if names else "<table>")
    lines += [f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for index, row in enumerate(rows):
        cells = "".join(
            f'<td{_kind(column)} data-name="{escaped(column.name.replace(_BREAK, _BLANK))}">{cell}</td>'
            for column, cell in zip(columns, row, strict=True)
        )
        lines.append(f'<tr class="first">{cells}</tr>' if index in beginnings else f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def chip(word: str) -> str:
    """A verdict as a small sign: its word says it, its colour repeats it."""
    return f'<span class="chip {_CHIPS.get(word, "flat")}">{escaped(word)}</span>' if word else ""


def listed(items: Iterable[str]) -> str:
    """A list of HTML items; nothing where there is none."""
    lines = [f"<li>{item}</li>" for item in items]
    return "\n".join(["<ul>", *lines, "</ul>"]) if lines else ""


def pairs(values: Mapping[str, str]) -> str:
    """Terms (text) with what they are (HTML)."""
    lines = [f"<dt>{escaped(term)}</dt><dd>{words}</dd>" for term, words in values.items()]
    return "\n".join(["<dl>", *lines, "</dl>"]) if lines else ""


def figure(title: str, unit: str, picture: str) -> str:
    """A chart with its caption."""
    return f"<figure><figcaption><b>{escaped(title)}</b>{escaped(unit)}</figcaption>\n{picture}\n</figure>"


def _broken(name: str) -> str:
    return "<br>".join(escaped(line) for line in name.split(_BREAK))


def _kind(column: Column) -> str:
    if column.wraps:
        return ' class="wrap name"'
    return ' class="name"' if column.is_name else ""
