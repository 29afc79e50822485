"""The manual page of every code, and the list of all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from textwrap import dedent
from typing import TextIO

from specserve.checks.gather import UNREADABLE
from specserve.checks.rule import Need
from specserve.checks.rules import RETIRED, all_rules
from specserve.checks.run import UNUSED_IGNORE
from specserve.diagnostics import Code, Severity
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.profile.problems import CODES
from specserve.report.console import styled, wrapped
from specserve.report.text import fields_of, json_document

HOME = "https://github.com/specserve/specserve"
NEEDED: Mapping[Need, str] = {
    "nothing": "only the profile",
    "models": "the models",
    "hardware": "the accelerator",
    "host": "this host",
    "vllm": "vLLM itself",
}
"""What a rule needs, in words."""
_POLICY = (
    "Only specserve refuses this; vLLM would start it. In a command instead of a profile, it is a "
    "warning."
)


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
        return " ".join(self.parts[""].split("\n\n", maxsplit=1)[0].split())

    @property
    def parts(self) -> Mapping[str, str]:
        """The text under each heading; under "" what stands above the first."""
        head, *rest = re.split(r"^## +(.+)$", cleandoc(self.doc), flags=re.M)
        parts = {rest[i]: rest[i + 1].strip("\n") for i in range(0, len(rest), 2)}
        if "\n" in parts.get("Source", ""):
            parts["Source"] = "- " + parts["Source"].replace("\n", "\n- ")
        return {"": head.strip(), **parts}

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
    besides: list[tuple[Code, Need]] = [(code, "nothing") for code in (*CODES, UNUSED_IGNORE)]
    besides.append((UNREADABLE, "models"))
    plain = [Page(code.code, code.name, code.severity, needs, code.doc) for code, needs in besides]
    rules = [
        Page(rule.code, rule.name, rule.severity, rule.needs, rule.doc, rule.policy)
        for rule in all_rules()
    ]
    return {page.code: page for page in sorted([*plain, *rules], key=lambda page: page.code)}


def find(word: str) -> Page:
    """Returns the page of a code or name, in any case. Raises UsageError if there is none."""
    everything = pages()
    names = {page.name: page for page in everything.values()}
    found = everything.get(word.strip().upper()) or names.get(
        word.strip().lower().replace("_", "-")
    )
    if found:
        return found
    if reason := RETIRED.get(word.strip().upper()):
        hint = (
            "remove the comments that ignore it; `specserve check --vllm installed` lets vLLM judge"
        )
        raise UsageError(f"{word.strip().upper()} is no longer a rule: {reason}", hint=hint)
    # letters that look like digits
    digits = word.strip().upper().translate(str.maketrans("OIL", "011"))
    guess = digits if digits in everything else did_you_mean(word, [*everything, *names])
    hint = f"did you mean `specserve rules {guess}`?" if guess else "`specserve rules` lists them"
    raise UsageError(f"there is no rule {quoted(word)}", hint=hint)


def manual(page: Page, *, stream: TextIO | None = None) -> str:
    """Returns the page as text of at most 80 columns; code stands as it was written."""
    stream = stream or sys.stdout
    needs = NEEDED[page.needs]
    lines = [
        f"{styled(page.code, 'bold', stream=stream)}  {page.name}  ({page.severity}, needs {needs})"
    ]
    silence = page.silence or "It cannot be silenced."
    for heading, text in {**page.parts, "Silence it": f"    {silence}"}.items():
        lines += ["", styled(heading, "bold", stream=stream)] if heading else [""]
        for number, (kind, block) in enumerate(blocks(text)):
            lines += [""] if number and kind != "item" else []
            lead, indent = ("- ", 2) if kind == "item" else ("", 0)
            lead, indent = (f"  {lead}", indent + 2) if heading else (lead, indent)
            if kind == "code":
                lines += [f"{lead}{line}".rstrip() for line in block.split("\n")]
            else:
                lines.append(wrapped(block, lead=lead, indent=indent, stream=stream))
        if page.policy and not heading:
            lines += ["", wrapped(_POLICY, stream=stream)]
    return "\n".join(lines) + "\n"


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The pieces of a page's text in order.

    `text` (a paragraph), `item` (of a list) or `code` (lines).
    """
    for chunk in re.split(r"\n\n(?! {4})", text.strip("\n")):
        at = re.search(r"^ {4}", chunk, re.MULTILINE)
        prose, code = (chunk[: at.start()], chunk[at.start() :]) if at else (chunk, "")
        for part in re.split(r"\n(?=- )", prose) if prose.strip() else ():
            words = " ".join(part.split())
            yield ("item", words[2:]) if words.startswith("- ") else ("text", words)
        if code:
            yield "code", dedent(code)


def listing(pages: Iterable[Page]) -> str:
    """Returns two lines a code: what it is, and its first sentence."""
    return "".join(
        f"{page.code}  {page.severity:<7}  needs {page.needs:<8}  {page.name}\n"
        f"{wrapped(page.summary, lead=' ' * 7, stream=sys.stdout)}\n"
        for page in pages
    )


def listing_json(pages: Iterable[Page]) -> str:
    """Returns the same for scripts; keys are never removed within a version."""
    names = ("code", "name", "severity", "needs", "summary", "url")
    return json_document({"rules": [fields_of(page, *names) for page in pages]})


def body(page: Page, *, level: int) -> str:
    """Returns a page's text in Markdown, its headings on this level."""
    parts: list[str] = []
    for heading, text in page.parts.items():
        parts += [f"{'#' * level} {heading}"] if heading else []
        before = ""
        for kind, block in blocks(text):
            language = "console" if block.startswith("$ ") else "yaml"
            shown = f"```{language}\n{block}\n```" if kind == "code" else block
            if kind == before == "item":
                parts[-1] += f"\n- {block}"
            else:
                parts.append(f"- {block}" if kind == "item" else shown)
            before = kind
    return "\n\n".join(parts)
