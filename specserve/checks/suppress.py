"""`# specserve: ignore[SD104] reason`: findings that the profile's author has answered."""

from __future__ import annotations

import re
from collections.abc import Iterable

from specserve.diagnostics import Code, Finding, Severity, Span
from specserve.profile.texts import recall

UNUSED_IGNORE = Code(
    "SD100",
    "unused-ignore",
    Severity.WARNING,
    """A `# specserve: ignore[…]` comment that hides nothing.

    ## Why is this bad?
    What it answered is gone, or the code was misspelt: one day it hides something that nobody has looked at.
    A comment for a rule that did not run, such as one about models in `lint`, is not called unused.

    ## Example
        target: {model: org/target}  # specserve: ignore[SD104] patched build

    ## Use instead
        target: {model: org/target}

    ## Source
    specserve, checks/suppress.py
    """,
)

_COMMENT = re.compile(r"(?:^|\s)#\s*specserve:\s*ignore\[([A-Z0-9,\s]+)\]")


def suppressed(
    findings: Iterable[Finding], *, file: str, parents: Iterable[str], not_run: Iterable[str] = ()
) -> tuple[list[Finding], int]:
    """The findings that no comment hides, a warning for each comment that hides nothing, and how many are hidden.

    Comments of parents hide too, and are never called unused: another child may need them; nor are those for
    rules that did not run. Errors of the file itself (SD0xx) cannot be hidden.
    """
    own = _comments(file)
    comments = own | {key: comment for parent in parents for key, comment in _comments(parent).items()}
    kept, hidden, used = [], 0, set()
    for finding in findings:
        places = [finding.span, *(related.span for related in finding.related)]
        keys = [(span.file, span.line, finding.code) for span in places]
        match = next((key for key in keys if key in comments), None)
        if match:
            used.add(match)
        if match and not finding.code.startswith("SD0"):
            hidden += 1
        else:
            kept.append(finding)
    unused = [key for key in own if key not in used]
    spared = set(not_run) if unused else set()  # who the other rules are is asked only where it matters
    for key, span in own.items():
        if key in unused and key[2] not in spared:
            text = f"this comment hides no finding {key[2]}"
            kept.append(
                Finding(
                    UNUSED_IGNORE.code,
                    UNUSED_IGNORE.name,
                    UNUSED_IGNORE.severity,
                    text,
                    span,
                    help="remove it",
                )
            )
    return kept, hidden


def _comments(file: str) -> dict[tuple[str, int, str], Span]:
    try:
        data = recall(file)
        text = data.decode("utf-8-sig") if b"specserve:" in data else ""
    except (OSError, ValueError):
        return {}  # an override of the command line, or no longer there
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _COMMENT.finditer(line):
            start = match.start(1)
            for part in match[1].split(","):
                code = part.strip()
                column = start + part.index(code) + 1 if code else start + 1
                span = Span(file, number, column, number, column + max(1, len(code)))
                found[(file, number, code)] = span
                start += len(part) + 1
    return found
