"""A report in each of its forms; the page is one file that loads nothing, for any screen, light, dark and paper."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TextIO

from specserve import __version__
from specserve.errors import FactError, without_user
from specserve.report.charts import Chart, key
from specserve.report.console import clean
from specserve.report.document import Document
from specserve.report.table import TONES, sentence_parts

if TYPE_CHECKING:
    from jinja2 import Template


def render(document: Document, *, form: str, stream: TextIO) -> str:
    """Returns the report as `text`, `markdown` or `html`, with a line break at its end."""
    match form:
        case "html":
            return html_page(document)
        case "markdown":
            return document.markdown()
    return document.text(stream)


def html_page(document: Document) -> str:
    """Returns the whole file; everything from outside is escaped. Raises FactError without jinja2."""
    try:
        import jinja2  # noqa: F401 - the template needs it
    except ImportError as error:
        raise FactError("a page needs jinja2", hint="`pip install 'specserve[measure]'`") from error
    return _template().render(document=document, version=__version__)


@cache
def _template() -> Template:
    from jinja2 import Environment
    from markupsafe import Markup, escape

    def visible(value: Any) -> Any:
        return value if isinstance(value, Markup) else clean(without_user(str(value)))

    def sentence(text: object) -> Markup:
        """Names in backticks become code."""
        parts = ((escape(visible(part)), is_code) for part, is_code in sentence_parts(text))
        return Markup("").join(
            Markup("<code>{}</code>").format(part) if is_code else part for part, is_code in parts
        )

    def picture(chart: Chart, number: int) -> Markup:
        return Markup(chart.svg(f"c{number}"))  # noqa: S704 - the chart escapes its texts

    environment = Environment(
        autoescape=True, finalize=visible, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "sentence": sentence,
        "svg": picture,
        "key": lambda colour: Markup(key(colour)),  # noqa: S704 - a number
        "tone": lambda word: TONES.get(str(word), ""),
        "kind": lambda block: type(block).__name__,
    }
    page, style = (
        (files("specserve.report") / name).read_text("utf-8") for name in ("page.html", "page.css")
    )
    environment.globals["style"] = Markup(style)  # noqa: S704 - our own file
    return environment.from_string(page)
