"""Text from elsewhere made safe for markdown, HTML and SVG. Knows nothing of what it says."""

from __future__ import annotations

import html
import re

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
