"""The SD0xx findings: what can be wrong with a file before any rule looks at it. Knows no schema."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from specserve.diagnostics import Finding, Related, Severity, Span

NAMES = {
    "SD001": "unreadable-file",
    "SD002": "invalid-yaml",
    "SD003": "not-a-mapping",
    "SD004": "duplicate-key",
    "SD005": "unknown-key",
    "SD006": "wrong-value",
    "SD007": "missing-key",
    "SD008": "too-complex",
    "SD009": "bad-extends",
    "SD010": "unknown-schema",
    "SD011": "ambiguous-scalar",
}


def problem(
    code: str,
    message: str,
    span: Span,
    *,
    label: str = "",
    help: str | None = None,  # the field's own name
    related: tuple[Related, ...] = (),
) -> Finding:
    """An error of the file itself."""
    return Finding(code, NAMES[code], Severity.ERROR, message, span, label=label, help=help, related=related)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest to this one, if any is near enough."""
    lowered = {name.lower(): name for name in known}
    candidate = word.lower().replace("-", "_")
    found = get_close_matches(candidate, lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None
