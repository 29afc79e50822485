"""Findings as text: full, with the lines they point to, or one line each. Plain first, coloured on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from specserve.diagnostics import Finding, Report, Severity, Skipped, Span
from specserve.report.console import clean, filled, styled
from specserve.report.snippet import Sources, snippet

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def render(findings: Iterable[Finding], *, stream: TextIO | None = None) -> str:
    """Each finding with its source lines, as rustc draws them; what looks like a secret is starred out.

    What is only worth knowing comes last, without its lines, and the same help once.
    """
    findings, stream = list(findings), stream or sys.stderr
    sources = Sources(finding.span for finding in findings if finding.name == "secret-in-profile")
    full = [item for item in findings if item.severity is not Severity.INFO]
    blocks = [_full(finding, sources, stream) for finding in full]
    infos = _brief([item for item in findings if item.severity is Severity.INFO], stream)
    return "\n\n".join([*blocks, *infos]) + "\n"


def concise(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """One line a finding: `file:line:column: severity[CODE] message`; and one for each group that did not run."""
    lines = [
        f"{clean(str(finding.span))}: {finding.severity}[{finding.code}] {clean(finding.message)}\n"
        for finding in findings
    ]
    lines += [f"{clean(item.profile)}:1:1: skipped[{item.group}] {clean(item.reason)}\n" for item in skipped]
    return "".join(lines)


def summary(report: Report) -> str:
    """The last line: what was found in how many profiles; what was left out is never passed."""
    profiles = _count(report.profiles, "profile")
    infos = report.count(Severity.INFO)
    left_out = len({code for item in report.skipped for code in item.codes})
    hidden = f", {_count(left_out, 'rule')} skipped" if left_out else ""
    hidden += f", {report.suppressed} ignored" if report.suppressed else ""
    hidden += _not_judged(report)
    if len(report.findings) == infos:
        noted = f", {_count(infos, 'info')}" if infos else ""
        if left_out:
            return f"No errors found in {profiles}{noted}{hidden}"
        return f"All checks passed: {profiles}, {report.rules} rules{noted}{hidden}"
    counts = [(report.count(severity), severity.value) for severity in Severity]
    found = [_count(number, word) for number, word in counts if number]
    return f"Found {', '.join(found[:-1])}{' and ' if found[1:] else ''}{found[-1]} in {profiles}{hidden}"


def _not_judged(report: Report) -> str:
    """How many rules a broken file kept from running; where there is no file, nothing was kept."""
    absent = {finding.span.file for finding in report.findings if finding.code == "SD001"}
    counts = [
        report.rules if verdict.not_run is None else len(verdict.not_run)
        for verdict in report.verdicts
        if verdict.not_run or (verdict.not_run is None and verdict.verdict == "invalid")
        if verdict.file not in absent
    ]
    if not any(counts):
        return ""
    broken = any(verdict.verdict == "invalid" for verdict in report.verdicts)
    where = "" if report.profiles == 1 else f" on {len(counts)} of them"
    most = "up to " if len(set(counts)) > 1 else ""
    rules = _count(max(counts), "rule")
    were = "was" if max(counts) == 1 else "were"
    why = f" because {'the file is' if len(counts) == 1 else 'the files are'} invalid" if broken else ""
    return f"; {most}{rules} {were} not run{where}{why}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _head(finding: Finding, stream: TextIO) -> str:
    head = styled(f"{finding.severity}[{finding.code}]", _COLOURS[finding.severity], stream=stream)
    return f"{head}: {clean(finding.message)}"


def _brief(findings: list[Finding], stream: TextIO) -> list[str]:
    """Infos of one code in one block, with the help that they share at its end."""
    blocks = []
    for code in dict.fromkeys(finding.code for finding in findings):
        of_code = [finding for finding in findings if finding.code == code]
        lines = []
        for finding in of_code:
            lines += [_head(finding, stream), f" --> {clean(str(finding.span))}"]
            lines += [_after("note", note, "", stream) for note in finding.notes]
        ways_out = dict.fromkeys(finding.help for finding in of_code if finding.help)
        blocks.append("\n".join([*lines, *(_after("help", way_out, "", stream) for way_out in ways_out)]))
    return blocks


def _after(word: str, text: str, pad: str, stream: TextIO) -> str:
    """A line below the source, ` = note: …`."""
    lead = f"{pad or ' '} = {word}: "
    colour = f"{pad or ' '} = {styled(word, 'cyan', stream=stream)}: " if word == "help" else lead
    return filled(clean(text), lead=lead, shown=colour, stream=stream)


def _full(finding: Finding, sources: Sources, stream: TextIO) -> str:
    marked = [(finding.span, finding.label, "^"), *((item.span, item.label, "-") for item in finding.related)]
    width = max(len(str(span.line)) for span, _, _ in marked)
    pad = " " * width
    lines = [_head(finding, stream), f"{pad}--> {clean(str(finding.span))}"]
    body = _body(finding, marked, sources, width)
    lines += [f"{pad} |", *body] if body else []
    after = [_after("note", note, pad, stream) for note in finding.notes]
    if finding.help:
        after.append(_after("help", finding.help, pad, stream))
    if body and after:
        lines.append(f"{pad} |")
    return "\n".join(lines + after)


def _body(finding: Finding, marked: list[tuple[Span, str, str]], sources: Sources, width: int) -> list[str]:
    """The marked lines: those of the finding's own file first, each in file order."""
    places: dict[tuple[bool, str, int], list[tuple[Span, str, str]]] = {}
    for item in marked:
        span = item[0]
        places.setdefault((span.file != finding.span.file, span.file, span.line), []).append(item)
    body: list[str] = []
    previous: tuple[bool, str, int] | None = None
    for place, marks in sorted(places.items(), key=lambda entry: entry[0]):
        text = sources.line(marks[0][0])
        if text is None or not text.strip():
            continue
        pad = " " * width
        if place[0] and (previous is None or previous[1] != place[1]):
            body += [f"{pad}::: {clean(str(marks[0][0]))}", f"{pad} |"]
        elif previous and place[2] > previous[2] + 1:
            body.append("...")
        body += snippet(text, marks, number=place[2], width=width)
        previous = place
    return body
