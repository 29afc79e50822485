"""The catalogue of codes as a list, as JSON and as a document. Knows no profile."""

from __future__ import annotations

import json
from collections.abc import Iterable
from textwrap import fill

from specserve.report.manual import Page, blocks

_GROUPS = {
    "SD0": "The file itself",
    "SD1": "The profile alone",
    "SD2": "Models, tokenizers and locks",
    "SD3": "Memory and hardware",
    "SD4": "This host and vLLM's versions",
    "SD5": "What vLLM's own code says",
}


def listing(pages: Iterable[Page]) -> str:
    """Two lines a code: what it is, and its first sentence."""
    return "".join(f"{_head(page)}\n{_below(page.summary)}\n" for page in pages)


def _head(page: Page) -> str:
    return f"{page.code}  {page.severity:<7}  needs {page.needs:<8}  {page.name}"


def _below(text: str) -> str:
    indent = " " * 7
    return fill(text, 80, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def listing_json(pages: Iterable[Page]) -> str:
    """The same for scripts; keys are never removed within a version."""
    rules = [
        {
            "code": page.code,
            "name": page.name,
            "severity": page.severity.value,
            "needs": page.needs,
            "summary": page.summary,
            "url": page.url,
        }
        for page in pages
    ]
    return json.dumps({"version": 1, "rules": rules}, indent=2, ensure_ascii=False)


def document(pages: Iterable[Page]) -> str:
    """docs/rules.md: a table of all, then each page."""
    pages = list(pages)
    lines = [
        "# Rules",
        "",
        "Every finding of `specserve lint` and `specserve check`. `specserve explain CODE` shows a page on the",
        "terminal, `specserve rules` the list. An *error* will not start, or serves wrong or crippled output; a",
        "*warning* works, but slower, riskier or not as the profile reads; an *info* is worth knowing. What a rule",
        "*needs* besides the profile decides where it runs: `lint` runs those that need nothing, `check` all that",
        "have what they need. A *policy* is an error of specserve's own, which vLLM does not refuse: for a raw command",
        "(`specserve lint -- vllm serve …`) it is a warning. One finding is silenced by a comment on one of its lines:",
        "`# specserve: ignore[SD104] reason`.",
        "",
        "<!-- Written by scripts/gen_rules.py from the rules' docstrings: change those, then run it. -->",
    ]
    for prefix, title in _GROUPS.items():
        of_group = [page for page in pages if page.code.startswith(prefix)]
        if of_group:
            lines += ["", f"## {title}", "", "| code | name | severity | needs | |", "|---|---|---|---|---|"]
            lines += [_row(page) for page in of_group]
    for page in pages:
        lines += ["", f"## {page.code} {page.name}", "", _facts(page), "", body(page, level=3)]
    return "\n".join(lines) + "\n"


def _row(page: Page) -> str:
    summary = page.summary.replace("|", "\\|")
    return f"| [{page.code}](#{page.anchor}) | {page.name} | {page.severity} | {page.needs} | {summary} |"


def _facts(page: Page) -> str:
    silence = f"silenced by `{page.silence}`" if page.silence else "cannot be silenced"
    policy = ", a policy" if page.policy else ""
    return f"*{page.severity}{policy}, needs {page.needs}, {silence}*"


def body(page: Page, *, level: int) -> str:
    """A page's text in Markdown, its headings on this level."""
    lines: list[str] = []
    for heading, text in page.parts.items():
        if heading:
            lines += [f"{'#' * level} {heading}", ""]
        for kind, block in blocks(text):
            if kind == "code":
                language = "console" if block.startswith("$ ") else "yaml"
                lines += [f"```{language}", block, "```", ""]
            else:
                lines += [f"- {block}"] if kind == "item" else [block, ""]
        if lines and lines[-1]:
            lines.append("")
    return "\n".join(lines).rstrip("\n")
