"""The manual page of every code, and the list of all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from textwrap import dedent
from typing import TextIO

from specserve.checks.gather import UNREADABLE
from specserve.checks.rule import Need
from specserve.checks.rules import all_rules
from specserve.checks.run import UNUSED_IGNORE
from specserve.diagnostics import Severity
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.profile.problems import CODES
from specserve.report.console import styled, wrapped

HOME = "https://github.com/specserve/specserve"


@dataclass(frozen=True, slots=True)
class Page:
    """What is written about one code. `needs`: what has to be known before it can be found."""

    code: str
    name: str
    severity: Severity
    needs: Need
    doc: str
    policy: bool = False
    """Whether it is specserve's own policy: a warning for a raw command."""

    @property
    def summary(self) -> str:
        """The first sentence: the finding's message, in general."""
        return " ".join(cleandoc(self.doc).split("\n\n", maxsplit=1)[0].split())

    @property
    def anchor(self) -> str:
        """Where it stands in docs/rules.md."""
        return f"{self.code.lower()}-{self.name}"

    @property
    def url(self) -> str:
        """Its page on the web."""
        return f"{HOME}/blob/main/docs/rules.md#{self.anchor}"

    @property
    def silence(self) -> str | None:
        """The comment that hides such a finding; None for what cannot be hidden."""
        if self.code.startswith("SD0") or self.code == UNUSED_IGNORE.code:
            return None
        return f"# specserve: ignore[{self.code}] reason"


def pages() -> dict[str, Page]:
    """Returns every page by its code, in the order of the codes."""
    found = [
        Page(rule.code, rule.name, rule.severity, rule.needs, rule.doc, rule.policy)
        for rule in all_rules()
    ]
    for code in (*CODES, UNUSED_IGNORE, UNREADABLE):
        needs: Need = "models" if code is UNREADABLE else "nothing"
        found.append(Page(code.code, code.name, code.severity, needs, code.doc))
    return {page.code: page for page in sorted(found, key=lambda page: page.code)}


def find(word: str) -> Page:
    """Returns the page of a code or name, in any case. Raises UsageError if there is none."""
    known = pages()
    code = word.strip().upper()
    by_name = {page.name: page for page in known.values()}
    if found := known.get(code) or by_name.get(code.lower().replace("_", "-")):
        return found
    guess = did_you_mean(word, [*known, *by_name])
    hint = f"did you mean `specserve rules {guess}`?" if guess else "`specserve rules` lists them"
    raise UsageError(f"there is no rule {quoted(word)}", hint=hint)


def blocks(page: Page) -> Iterator[tuple[str, str]]:
    """The pieces of a page: `heading`, `text` (a paragraph), `item` (of a list), `code` (lines)."""
    head, *rest = re.split(r"^## +(.+)$", cleandoc(page.doc), flags=re.MULTILINE)
    yield from _pieces(head)
    for heading, text in zip(rest[::2], rest[1::2], strict=True):
        yield "heading", heading
        sources = text.strip("\n").split("\n")
        if heading == "Source" and len(sources) > 1:
            yield from (("item", source) for source in sources)
        else:
            yield from _pieces(text)


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    for chunk in re.split(r"\n\n(?! {4})", text.strip("\n")):
        at = re.search(r"^ {4}", chunk, re.MULTILINE)
        prose, code = (chunk[: at.start()], chunk[at.start() :]) if at else (chunk, "")
        for part in re.split(r"\n(?=- )", prose) if prose.strip() else ():
            words = " ".join(part.split())
            yield ("item", words[2:]) if words.startswith("- ") else ("text", words)
        if code:
            yield "code", dedent(code)


def manual(page: Page, *, stream: TextIO | None = None) -> str:
    """Returns the page as text of at most 80 columns; code stands as it was written."""
    stream = stream or sys.stdout
    policy = ", a policy" if page.policy else ""
    about = f"({page.severity}{policy}, needs {page.needs})"
    lines = [f"{styled(page.code, 'bold', stream=stream)}  {page.name}  {about}"]
    silence = page.silence or "It cannot be silenced."
    for kind, text in (*blocks(page), ("heading", "Silence it"), ("code", silence)):
        lines += [""] if kind != "item" else []
        match kind:
            case "heading":
                lines.append(styled(text, "bold", stream=stream))
            case "code":
                lines += [f"    {line}".rstrip() for line in text.split("\n")]
            case _:
                lines.append(wrapped(text, lead="- " if kind == "item" else "", stream=stream))
    return "\n".join(lines) + "\n"


def listing(pages: Iterable[Page]) -> str:
    """Returns two lines a code: what it is, and its first sentence."""
    return "".join(
        f"{page.code}  {page.severity:<7}  needs {page.needs:<8}  {page.name}\n"
        f"{wrapped(page.summary, lead=' ' * 7, stream=sys.stdout)}\n"
        for page in pages
    )
