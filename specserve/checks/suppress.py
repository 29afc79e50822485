"""`# specserve: ignore[SD104] reason`: findings that the profile's author has answered."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from specserve.diagnostics import Finding, Severity, Span

_COMMENT = re.compile(r"(?:^|\s)#\s*specserve:\s*ignore\[([A-Z0-9,\s]+)\]")


def suppressed(findings: Iterable[Finding], *, files: Iterable[str]) -> tuple[list[Finding], int]:
    """The findings that no comment hides, a warning for each comment that hides nothing, and how many are hidden.

    Errors of the file itself (SD0xx) cannot be hidden.
    """
    comments = {key: comment for file in files for key, comment in _comments(file).items()}
    kept, hidden, used = [], 0, set()
    for finding in findings:
        places = [finding.span, *(related.span for related in finding.related)]
        keys = [(span.file, span.line, finding.code) for span in places]
        match = next((key for key in keys if key in comments), None)
        if match and not finding.code.startswith("SD0"):
            used.add(match)
            hidden += 1
        else:
            kept.append(finding)
    for key, span in comments.items():
        if key not in used:
            text = f"this comment hides no finding {key[2]}"
            kept.append(Finding("SD100", "unused-ignore", Severity.WARNING, text, span, help="remove it"))
    return kept, hidden


def _comments(file: str) -> dict[tuple[str, int, str], Span]:
    try:
        text = Path(file).read_text(encoding="utf-8") if file != "-" else ""
    except (OSError, UnicodeDecodeError):
        return {}
    if "specserve:" not in text:
        return {}
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _COMMENT.finditer(line):
            span = Span(file, number, match.start(1) + 1, number, match.end(1) + 1)
            for code in match[1].split(","):
                found[(file, number, code.strip())] = span
    return found
