"""The manual page of every code, and the list of all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specserve import checks
from specserve.checks.collect import UNREADABLE
from specserve.checks.rule import Need
from specserve.checks.rules import all_rules
from specserve.checks.run import UNUSED_IGNORE
from specserve.diagnostics import Severity
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.profile.tree import CODES
from specserve.report.console import wrapped

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
        return self.doc.partition("\n")[0]

    @property
    def anchor(self) -> str:
        """Where it stands in docs/rules.md."""
        return f"{self.code.lower()}-{self.name}"

    @property
    def url(self) -> str:
        """Its page on the web."""
        return f"{HOME}/blob/main/docs/rules.md#{self.anchor}"

    @property
    def can_be_silenced(self) -> bool:
        """Whether a comment hides such a finding."""
        return not self.code.startswith("SD0") and self.code != UNUSED_IGNORE.code


def pages() -> dict[str, Page]:
    """Returns every page by its code, in the order of the codes."""
    whole = Path(checks.__file__).with_name("pages.md").read_text(encoding="utf-8")
    parts = (part.partition("\n\n") for part in whole.split("\n## ")[1:])
    texts = {tuple(heading.split(" ", 1)): text.strip() for heading, _, text in parts}
    rules, codes = all_rules(), (*CODES, UNUSED_IGNORE, UNREADABLE)
    wanted = {*((one.code, one.name) for one in rules), *((one.code, one.name) for one in codes)}
    if wrong := sorted(wanted ^ texts.keys()):
        named = ", ".join(f"## {' '.join(heading)}" for heading in wrong)
        raise LookupError(f"checks/pages.md has one page for each rule, `## CODE name`: {named}")
    found = [
        Page(one.code, one.name, one.severity, one.needs, texts[one.code, one.name], one.policy)
        for one in rules
    ]
    for code in codes:
        needs: Need = "models" if code is UNREADABLE else "nothing"
        text = texts[code.code, code.name]
        found.append(Page(code.code, code.name, code.severity, needs, text))
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


def manual(page: Page) -> str:
    """Returns the page in Markdown, as it stands in docs/rules.md."""
    silence = f"# specserve: ignore[{page.code}] reason"
    silenced = f"silenced by `{silence}`" if page.can_be_silenced else "cannot be silenced"
    policy = ", a policy" if page.policy else ""
    about = f"*{page.severity}{policy}, needs {page.needs}, {silenced}*"
    text = re.sub(r"\n(Instead|Source): ", r"\n\n**\1:** ", page.doc)
    text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)  # a paragraph is one line
    return f"## {page.code} {page.name}\n\n{about}\n\n{text}\n"


def manual_text(page: Page) -> str:
    """Returns the same with paragraphs of at most 80 columns."""
    return "\n".join(wrapped(line, stream=sys.stdout) for line in manual(page).split("\n"))


def listing(pages: Iterable[Page]) -> str:
    """Returns two lines a code: what it is, and its first sentence."""
    return "".join(
        f"{page.code}  {page.severity:<7}  needs {page.needs:<8}  {page.name}\n"
        f"{wrapped(page.summary, lead=' ' * 7, stream=sys.stdout)}\n"
        for page in pages
    )
