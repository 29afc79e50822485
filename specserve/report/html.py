"""The page of a report: one file that loads nothing, for any screen, light and dark, and for paper."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from specserve import __version__
from specserve.errors import without_user
from specserve.report.console import clean, in_one_line

_MARKDOWN = re.compile(r"[\\`*\[\]|~$!{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+#=]|^\d+[.)]")
_LINKS = re.compile(r"@|#(?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=GH)(?=-\d)", re.IGNORECASE)
"""What GitHub makes a mention, a reference or a link of, escaped or not: a blank of no width keeps it from that."""
_TICKS = re.compile(r"`+")


def escaped(text: object) -> str:
    """For HTML and SVG, in content and in quoted attributes; control characters and bidi overrides made visible."""
    return html.escape(clean(without_user(str(text))), quote=True)


def markdown(text: object) -> str:
    """Plain text within markdown: no link, no mention, no picture, no HTML, no new cell comes from it."""
    plain = in_one_line(without_user(str(text))).strip()
    safe = _MARKDOWN.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", plain)
    safe = safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKS.sub(lambda match: f"{match[0]}&#8203;", safe)


def code(text: object) -> str:
    """A code span."""
    plain = in_one_line(without_user(str(text))).strip() or " "
    fence = "`" * (max((len(run) for run in _TICKS.findall(plain)), default=0) + 1)
    pad = " " if "`" in (plain[0], plain[-1]) else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def code_cell(text: object) -> str:
    """The same in a table's cell, which a bar would end."""
    if "|" not in str(text):
        return code(text)
    return "<code>" + markdown(text).replace("\\|", "&#124;") + "</code>"


def html_sentence(text: object) -> str:
    """A sentence of specserve's own, in which names stand in backticks: they become code."""
    return "".join(
        f"<code>{escaped(part)}</code>" if is_code else escaped(part) for part, is_code in _parts(text)
    )


def markdown_sentence(text: object) -> str:
    """The same for markdown."""
    return "".join(code(part) if is_code else _inner(part) for part, is_code in _parts(text)).strip()


def _inner(part: str) -> str:
    """Markdown of a piece, with the blanks around it."""
    words = markdown(part)
    return f"{' ' if part[:1] == ' ' else ''}{words}{' ' if words and part[-1:] == ' ' else ''}"


def _parts(text: object) -> list[tuple[str, bool]]:
    """The pieces of a sentence and whether each stood in backticks; one tick alone is a character."""
    pieces = str(text).split("`")
    if len(pieces) % 2 == 0:
        return [(str(text), False)]
    return [(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece]


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
