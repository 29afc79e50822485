"""A report as a document: an answer and its blocks, charts among them, written in three forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TextIO

from specserve import __version__
from specserve.errors import FactError, without_user
from specserve.measure.verdict import Estimate
from specserve.report.console import escaped, in_one_line, styled, wrapped
from specserve.report.text import (
    TONES,
    Table,
    answer_line,
    bold,
    coloured,
    markdown,
    sentence_parts,
)

LEFT, RIGHT, TOP, BOTTOM = 46, 370, 12, 196
"""The edges of the drawing area, in a picture of 380 by 236."""
_COLOURS = 5
_MOST = 1e6
"""What is larger is not drawn."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A line for each variant or load, its values by load or K; 1 is no difference."""

    title: str
    unit: str
    x_title: str
    values: Mapping[str, Mapping[str, Estimate]]

    @property
    def groups(self) -> list[str]:
        """Return all loads or K, rising."""
        return sorted({group for values in self.values.values() for group in values}, key=float)

    def lines(self) -> Iterator[tuple[str, int, list[tuple[str, Estimate]]]]:
        """Yield each line's name, its colour, and its values that have an interval."""
        for at, (name, values) in enumerate(self.values.items()):
            known = [(group, values[group]) for group in self.groups if group in values]
            shown = [
                (group, each)
                for group, each in known
                if max(map(abs, (each.value, each.low, each.high))) <= _MOST
            ]
            yield name, 1 + at % _COLOURS, shown

    def ticks(self) -> list[float]:
        """Return four to eight round numbers around every value."""
        shown = [value for _, _, values in self.lines() for _, value in values]
        low = min([0.9, *(value.low for value in shown)])
        high = max([1.1, *(value.high for value in shown)])
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return [number * step for number in range(first, last + 1)]

    def x(self, group: str) -> float:
        """Return where a group stands."""
        groups = self.groups
        return round(LEFT + (RIGHT - LEFT) * (groups.index(group) + 0.5) / len(groups), 2)

    def y(self, value: float) -> float:
        """Return how far down a value stands."""
        ticks = self.ticks()
        return round(BOTTOM - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (BOTTOM - TOP), 2)


_LABEL = 24
"""Columns of a label whose neighbours line up with it."""


@dataclass(frozen=True, slots=True)
class Items:
    """Lines of a label and what is said of it; a verdict's word as label has its colour."""

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading. `is_folded`: text leaves them out, other forms hold them folded."""

    title: str
    blocks: Sequence[Block]
    is_folded: bool = False


Block = str | Items | Table | Chart | Section
"""A str is a sentence or more; names stand in backticks, here as in all blocks."""


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report. `kind`: what it is of, such as `benchmark`."""

    kind: str
    title: str
    blocks: Sequence[Block]
    answers: Sequence[tuple[str, str]] = ()
    """What text begins with: a verdict's word, or what is judged, and a sentence."""

    def text(self, stream: TextIO) -> str:
        """Return the report at 80 columns, coloured if the stream is a terminal."""
        lines = [answer_line(in_one_line(word), each, stream=stream) for word, each in self.answers]
        parts = filter(None, ["\n".join(lines), _text(self.blocks, stream)])
        return without_user("\n\n".join(parts) + "\n")

    def markdown(self) -> str:
        """Return the report for a pull request; everything from outside is escaped."""
        lines = [
            f"**{markdown(word)}**: {markdown(each)}" if word else markdown(each)
            for word, each in self.answers
        ]
        title = f"### {self.kind.capitalize()} of {markdown(self.title)}"
        return "\n\n".join(filter(None, [title, *lines, _markdown(self.blocks)])) + "\n"

    def html(self) -> str:
        """Return a whole file; everything from outside is escaped.

        Raises FactError without jinja2.
        """
        try:
            from jinja2 import Environment
            from markupsafe import Markup
        except ImportError as error:
            hint = "run `pip install 'specserve[measure]'`"
            raise FactError("a page needs jinja2", hint=hint) from error

        def visible(value: Any) -> Any:
            return value if isinstance(value, Markup) else escaped(without_user(str(value)))

        folder = files("specserve.report")
        environment = Environment(
            autoescape=True, finalize=visible, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters |= {
            "parts": sentence_parts,
            "tone": lambda word: TONES.get(word, ""),
            "kind": lambda block: type(block).__name__,
        }
        page = environment.from_string((folder / "page.html").read_text("utf-8"))
        style = Markup((folder / "page.css").read_text("utf-8"))  # noqa: S704 - our own file
        return page.render(document=self, version=__version__, style=style) + "\n"


def render(document: Document, *, form: str, stream: TextIO) -> str:
    """Return the report as `text`, `markdown` or `html`, with a line break at its end."""
    if form == "html":
        return document.html()
    return document.markdown() if form == "markdown" else document.text(stream)


def text_lines(block: Block, stream: TextIO) -> list[str]:
    """Return a block's lines at 80 columns, coloured if the stream is a terminal."""
    match block:
        case str():
            return [wrapped(in_one_line(block), stream=stream)]
        case Table():
            return block.text(stream=stream) if block.rows else []
        case Section(is_folded=False):
            title = wrapped(in_one_line(block.title), stream=stream)
            return [styled(title, "bold", stream=stream), _text(block.blocks, stream)]
        case Items():
            labels = [in_one_line(label) for label, _ in block.lines]
            width = max((len(label) for label in labels if len(label) <= _LABEL), default=0)
            lines = []
            for label, (_, words) in zip(labels, block.lines, strict=True):
                pad = " " * (max(width - len(label), 0) + 2) if label else ""
                shown = f"  {coloured(label, stream=stream)}{pad}"
                lead = f"  {label}{pad}"
                lines.append(wrapped(in_one_line(words), lead=lead, shown=shown, stream=stream))
            return lines
    return []


def _text(blocks: Sequence[Block], stream: TextIO) -> str:
    parts = ("\n".join(text_lines(block, stream)) for block in blocks)
    return "\n\n".join(filter(None, parts))


def _markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(filter(None, map(_markdown_block, blocks)))


def _markdown_block(block: Block) -> str:
    match block:
        case str():
            return markdown(block)
        case Items():
            return "\n".join(
                f"- {bold(label)}{': ' if label else ''}{markdown(words)}"
                for label, words in block.lines
            )
        case Table():
            return block.markdown() if block.rows else ""
        case Section(title, blocks, is_folded=True):
            head = f"<details>\n<summary>{markdown(title)}</summary>"
            return f"{head}\n\n{_markdown(blocks)}\n\n</details>"
        case Section(title, blocks):
            return f"**{markdown(title)}**\n\n{_markdown(blocks)}"
    return ""
