"""Findings and the places they point to: the one type between the checks and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """error: will not start, or serves wrong output; warning: works, but worse; info: a fact."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Code(NamedTuple):
    """What a finding can be if no rule of the catalogue stands for it."""

    code: str
    name: str
    severity: Severity


class Span(NamedTuple):
    """A place in a file. Lines and columns are 1-based; `end_column` is the one after its end."""

    file: str
    line: int = 1
    column: int = 1
    end_line: int = 1
    end_column: int = 1
    path: str = ""
    """Dotted path of the value inside the profile, e.g. `speculation.num_speculative_tokens`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Related(NamedTuple):
    """A second place that a finding points to, with a few words on what stands there."""

    span: Span
    label: str = ""


class Finding(NamedTuple):
    """One problem of a profile: a fact (`message`), its place, and the way out (`help`)."""

    code: str
    name: str
    severity: Severity
    message: str
    span: Span
    label: str = ""
    related: tuple[Related, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    policy: bool = False
    """Whether vLLM takes it and specserve does not want it: a warning for a raw command."""

    @property
    def sort_key(self) -> tuple[str, int, int, str]:
        """File order, so that all problems of a file read from top to bottom."""
        return (self.span.file, self.span.line, self.span.column, self.code)


class Skipped(NamedTuple):
    """A group of rules that did not run, or not on everything, and why: never the same as ok."""

    profile: str
    group: str
    reason: str
    cause: str
    help: str = ""
    """How to have it run."""


@dataclass(frozen=True, slots=True)
class ProfileVerdict:
    """One profile in a line: `ok`, `warnings`, `errors`, `invalid` or `incomplete`."""

    file: str
    name: str | None
    fingerprint: str | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the checks found."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    verdicts: tuple[ProfileVerdict, ...] = ()
    suppressed: int = 0

    def count(self, severity: Severity) -> int:
        """How many findings have this severity."""
        return sum(finding.severity is severity for finding in self.findings)


class Notices:
    """Hears what a step noticed that does not stop it; this one forgets it."""

    def say(self, text: str) -> None:
        """Take a line about what happens."""

    def warn(self, text: str) -> None:
        """Take one warning, a lower-case sentence."""

    def show(self, findings: Sequence[Finding]) -> None:
        """Take findings that are not errors."""

    def progress(self, text: str) -> None:
        """Take what is being done now; an empty text: nothing any more."""
