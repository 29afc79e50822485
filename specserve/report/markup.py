"""Text from elsewhere made safe for markdown, HTML and SVG. Knows nothing of what it says."""

from __future__ import annotations

import html
import re

from specserve.errors import without_user
from specserve.report.console import clean, in_one_line

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$:/@-])")
_TICKS = re.compile(r"`+")


def escaped(text: object) -> str:
    """For HTML and SVG, in content and in quoted attributes; control characters and bidi overrides made visible."""
    return html.escape(clean(without_user(str(text))), quote=True)


def markdown(text: object) -> str:
    """Plain text within markdown: no link, no mention, no picture, no HTML, no new cell comes from it."""
    plain = in_one_line(without_user(str(text)))
    return _MARKDOWN.sub(lambda match: f"&#{ord(match[0])};", plain)


def code(text: object) -> str:
    """A code span; in a table too."""
    plain = in_one_line(without_user(str(text))) or " "
    fence = "`" * (max((len(run) for run in _TICKS.findall(plain)), default=0) + 1)
    pad = " " if plain[0] in "` " or plain[-1] in "` " else ""
    return f"{fence}{pad}{plain}{pad}{fence}".replace("|", "\\|")
