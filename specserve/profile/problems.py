"""How an SD0xx finding is made, and words of a file that may stand in one. Knows no schema."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.profile.codes import CODES

NAMES = {code.code: code.name for code in CODES}
_LONGEST_WORD = 60
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Stop(Exception):
    """The file is not worth reading on: its last finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def problem(
    code: str,
    message: str,
    span: Span,
    *,
    label: str = "",
    help: str | None = None,  # the field's own name
    related: tuple[Related, ...] = (),
    policy: bool = False,
) -> Finding:
    """An error of the file itself. `policy`: vLLM takes it, or a plug-in of vLLM may."""
    return Finding(
        code,
        NAMES[code],
        Severity.ERROR,
        message,
        span,
        label=label,
        help=help,
        related=related,
        policy=policy,
    )


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Each problem once, in file order; a value that several aliases bring in is one problem."""
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in sorted(findings, key=lambda item: (item.sort_key, item.message)):
        # two keys can be missing at one place; nothing else can be wrong twice there
        what = finding.message if finding.code == "SD007" else ""
        kept.setdefault((finding.sort_key, what), finding)
    return list(kept.values())


def quoted(text: str) -> str:
    """Text of a file as it may stand in a message: in backticks, short, and harmless to a terminal."""
    short = text if len(text) <= _LONGEST_WORD else text[:_LONGEST_WORD] + "…"
    return f"`{CONTROL.sub(_escaped, short)}`"


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest to this one, if any is near enough."""
    if len(word) > _LONGEST_WORD:
        return None
    lowered = {name.lower(): name for name in known}
    candidate = word.lower().replace("-", "_")
    found = get_close_matches(candidate, lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None
