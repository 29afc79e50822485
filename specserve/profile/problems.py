"""What can be wrong with a profile before any rule looks at it: the SD0xx codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specserve.diagnostics import Code, Finding, Severity, Span
from specserve.profile.secrets import hushed

NAMES = {
    "SD002": "unreadable-file",
    "SD004": "duplicate-key",
    "SD005": "unknown-key",
    "SD006": "wrong-value",
    "SD007": "missing-key",
    "SD009": "bad-extends",
}
CODES: tuple[Code, ...] = tuple(Code(*item, Severity.ERROR) for item in NAMES.items())


class Stop(Exception):
    """The file is not worth reading on: its last finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def problem(code: str, message: str, span: Span, **more: Any) -> Finding:
    """An error of the file itself, with `help`, `related` places, or as a `policy`."""
    return Finding(code, NAMES[code], Severity.ERROR, hushed(message), span, **more)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Each problem once, in file order; a value that several aliases bring in is one problem."""
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in sorted(findings, key=lambda item: (item.sort_key, item.message)):
        # two keys can be missing at one place; nothing else can be wrong twice there
        what = finding.message if finding.code == "SD007" else ""
        kept.setdefault((finding.sort_key, what), finding)
    return list(kept.values())
