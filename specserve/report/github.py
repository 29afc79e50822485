"""Findings as workflow commands: GitHub shows them at their lines in a pull request. Knows no rule."""

from __future__ import annotations

from collections.abc import Iterable

from specserve.diagnostics import Finding, Severity, Skipped
from specserve.report.console import clean
from specserve.report.place import from_root, is_file

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def github(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """One `::error …::…` line a finding, with both sides of a mismatch in its text.

    A group of rules that did not run is a warning: a job must not look as if it had.
    """
    return "".join([*(_command(finding) for finding in findings), *(_skipped(item) for item in skipped)])


def _skipped(item: Skipped) -> str:
    title = f"title=specserve ({item.group})".translate(_PROPERTY)
    place = f",file={from_root(item.profile).translate(_PROPERTY)}" if is_file(item.profile) else ""
    text = clean(f"{item.profile}: {len(item.codes)} rules did not run: {item.reason}")
    return f"::warning {title}{place}::{text.translate(_DATA)}\n"


def _command(finding: Finding) -> str:
    properties = {"title": f"specserve ({finding.code})", **_place(finding)}
    head = ",".join(f"{name}={value.translate(_PROPERTY)}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {head}::{_text(finding).translate(_DATA)}\n"


def _place(finding: Finding) -> dict[str, str]:
    span = finding.span
    if not is_file(span.file):
        return {}
    place = {"file": from_root(span.file), "line": str(span.line)}
    if span.line == span.end_line:  # GitHub refuses columns where the lines differ
        place["col"] = str(span.column)
    place["endLine"] = str(span.end_line)
    if span.line == span.end_line:
        place["endColumn"] = str(span.end_column)
    return place


def _text(finding: Finding) -> str:
    lines = [f"{finding.span}: {finding.code} {finding.message}"]
    if finding.label:
        lines.append(f"{finding.span}: {finding.label}")
    lines += [f"{item.span}: {item.label}" for item in finding.related]
    lines += [f"note: {note}" for note in finding.notes]
    if finding.help:
        lines.append(f"help: {finding.help}")
    return "\n".join(clean(line) for line in lines)
