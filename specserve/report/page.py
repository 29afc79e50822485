"""A report as a document: its parts, and the one HTML page that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TextIO

from specserve import __version__
from specserve.errors import FactError, without_user
from specserve.report.charts import Chart, key
from specserve.report.console import escaped, in_one_line, styled, wrapped
from specserve.report.text import (
    TONES,
    Table,
    code,
    coloured,
    markdown,
    markdown_sentence,
    sentence_parts,
)

if TYPE_CHECKING:
    from jinja2 import Template

_LABEL = 24
"""Columns of a label whose neighbours line up with it."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or more; names stand in backticks."""

    text: str
    is_muted: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """Lines of a label and what is said of it; a verdict's word as label has its colour."""

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines that stand as they were written."""

    text: str


@dataclass(frozen=True, slots=True)
class Card:
    """The most important figure of one thing, with a line for each thing to know about it."""

    title: str
    figure: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Cards:
    """Cards side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True, slots=True)
class Charts:
    """Pictures, on a page only; the legend names the series of the first one."""

    charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a page and markdown hold folded, and text leaves out."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]


Block = Paragraph | Items | Verbatim | Cards | Charts | Details | Section | Table


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report. `kind`: what it is of, such as `benchmark`."""

    kind: str
    title: str
    blocks: Sequence[Block]
    has_answer: bool = False
    """The first block says it all: text begins with it, without a heading."""

    @property
    def heading(self) -> str:
        """`Benchmark of demo`."""
        return f"{self.kind[:1].upper()}{self.kind[1:]} of {self.title}"

    def text(self, stream: TextIO) -> str:
        """Returns the report at 80 columns, coloured if the stream is a terminal."""
        parts = [
            "\n".join(lines) for block in self.blocks if (lines := list(text_lines(block, stream)))
        ]
        heading = [] if self.has_answer and parts else [in_one_line(self.heading)]
        return without_user("\n\n".join([*heading, *parts]) + "\n")

    def markdown(self) -> str:
        """Returns the report for a pull request; everything from outside is escaped."""
        parts = ["\n".join(lines) for block in self.blocks if (lines := list(_markdown(block)))]
        return "\n\n".join([f"### {markdown(self.heading)}", *parts]) + "\n"


def text_lines(block: Block, stream: TextIO) -> Iterator[str]:
    """Yields a block's lines at 80 columns, coloured if the stream is a terminal."""
    match block:
        case Paragraph():
            yield wrapped(in_one_line(block.text), lead="", stream=stream)
        case Items():
            yield from _items(block, stream)
        case Verbatim():
            yield from (f"  {in_one_line(line)}" for line in block.text.splitlines())
        case Cards():
            for card in block.cards:
                sentence = in_one_line(f"{card.title}: {card.figure}; {'; '.join(card.lines)}")
                yield wrapped(sentence, lead="", stream=stream)
        case Table():
            if block.rows:
                yield from (
                    [wrapped(in_one_line(block.caption), lead="  ", stream=stream)]
                    if block.caption
                    else []
                )
                yield from block.text(stream=stream)
        case Section():
            title = wrapped(in_one_line(block.title), lead="", stream=stream)
            yield styled(title, "bold", stream=stream)
            parts = [lines for each in block.blocks if (lines := list(text_lines(each, stream)))]
            for index, lines in enumerate(parts):
                yield from ["", *lines] if index else lines


def _items(block: Items, stream: TextIO) -> Iterator[str]:
    labels = [in_one_line(label) for label, _ in block.lines]
    width = max((len(label) for label in labels if len(label) <= _LABEL), default=0)
    for label, (_, words) in zip(labels, block.lines, strict=True):
        pad = " " * (max(width - len(label), 0) + 2) if label else ""
        shown = f"  {coloured(label, stream=stream)}{pad}"
        yield wrapped(in_one_line(words), lead=f"  {label}{pad}", shown=shown, stream=stream)


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Paragraph():
            yield markdown_sentence(block.text)
        case Items():
            for label, words in block.lines:
                bold = (
                    f"**{markdown(label)}**: "
                    if label in TONES
                    else f"{markdown(label)}: "
                    if label
                    else ""
                )
                yield f"- {bold}{markdown_sentence(words)}"
        case Verbatim():
            yield "  \n".join(map(code, block.text.splitlines()))
        case Cards():
            for card in block.cards:
                sentence = "; ".join([card.figure, *card.lines])
                yield f"- **{markdown(card.title)}**: {markdown_sentence(sentence)}"
        case Table():
            if block.rows:
                yield from [f"{markdown_sentence(block.caption)}", ""] if block.caption else []
                yield block.markdown()
        case Details():
            yield from ["<details>", f"<summary>{markdown(block.summary)}</summary>"]
            yield from _apart(block.blocks)
            yield from ["", "</details>"]
        case Section():
            yield f"**{markdown(block.title)}**"
            yield from _apart(block.blocks)


def _apart(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        lines = list(_markdown(block))
        yield from ["", *lines] if lines else []


def render(document: Document, *, form: str, stream: TextIO) -> str:
    """Returns the report as `text`, `markdown` or `html`, with a line break at its end."""
    match form:
        case "html":
            return html_page(document)
        case "markdown":
            return document.markdown()
    return document.text(stream)


def html_page(document: Document) -> str:
    """Returns the whole file; everything from outside is escaped.

    Raises FactError without jinja2.
    """
    try:
        import jinja2  # noqa: F401 - the template needs it
    except ImportError as error:
        raise FactError(
            "a page needs jinja2", hint="run `pip install 'specserve[measure]'`"
        ) from error
    return _template().render(document=document, version=__version__)


@cache
def _template() -> Template:
    from jinja2 import Environment
    from markupsafe import Markup, escape

    def visible(value: Any) -> Any:
        return value if isinstance(value, Markup) else escaped(without_user(str(value)))

    def sentence(text: object) -> Markup:
        """Names in backticks become code."""
        parts = ((escape(visible(part)), is_code) for part, is_code in sentence_parts(text))
        return Markup("").join(
            Markup("<code>{}</code>").format(part) if is_code else part for part, is_code in parts
        )

    def picture(chart: Chart, number: int) -> Markup:
        return Markup(chart.svg(f"c{number}"))  # noqa: S704 - the chart escapes its texts

    environment = Environment(
        autoescape=True,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
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
