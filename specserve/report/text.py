"""Findings as text: full, with the lines they point to, or one line each. Plain first, coloured on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from specserve.diagnostics import Finding, Report, Severity, Span
from specserve.report.console import clean, styled

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def render(findings: Iterable[Finding], *, stream: TextIO | None = None) -> str:
    """Each finding with its source lines, as rustc draws them."""
    lines = _Lines()
    return "\n\n".join(_full(finding, lines, stream or sys.stderr) for finding in findings) + "\n"


def concise(findings: Iterable[Finding]) -> str:
    """One line a finding: `file:line:column: severity[CODE] message`."""
    return "".join(
        f"{clean(str(finding.span))}: {finding.severity}[{finding.code}] {clean(finding.message)}\n"
        for finding in findings
    )


def summary(report: Report) -> str:
    """The last line: what was found in how many profiles."""
    profiles = _count(report.profiles, "profile")
    if not report.findings:
        hidden = f", {report.suppressed} ignored" if report.suppressed else ""
        return f"All checks passed: {profiles}, {report.rules} rules{hidden}"
    counts = [(report.count(severity), severity.value) for severity in Severity]
    found = [_count(number, "info" if word == "info" else word) for number, word in counts if number]
    return f"Found {' and '.join(found)} in {profiles}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


class _Lines:
    """The text of the files that findings point to, read once."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def get(self, span: Span) -> str | None:
        """The line of a span, or None where there is none to show."""
        if span.file not in self._files:
            try:
                text = Path(span.file).read_text(encoding="utf-8-sig") if span.file != "-" else ""
            except (OSError, UnicodeDecodeError, ValueError):
                text = ""
            self._files[span.file] = text.split("\n")
        lines = self._files[span.file]
        return lines[span.line - 1].rstrip("\r") if 0 < span.line <= len(lines) else None


def _full(finding: Finding, lines: _Lines, stream: TextIO) -> str:
    head = styled(f"{finding.severity}[{finding.code}]", _COLOURS[finding.severity], stream=stream)
    marked = sorted(
        [(finding.span, finding.label, "^"), *((item.span, item.label, "-") for item in finding.related)],
        key=lambda item: (item[0].file != finding.span.file, item[0].file, item[0].line),
    )
    width = max(len(str(span.line)) for span, _, _ in marked)
    pad = " " * width
    body = [f"{head}: {clean(finding.message)}", f"{pad}--> {clean(str(finding.span))}"]
    drawn = False
    previous = finding.span
    for span, label, mark in marked:
        text = lines.get(span)
        if text is None or not text.strip():
            continue
        if not drawn:
            body.append(f"{pad} |")
        elif span.file != previous.file:
            body += [f"{pad}::: {clean(str(span))}", f"{pad} |"]
        elif span.line > previous.line + 1:
            body.append("...")
        body += _snippet(span, text, label=label, mark=mark, width=width)
        drawn, previous = True, span
    if drawn:
        body.append(f"{pad} |")
    body += [f"{pad} = note: {clean(note)}" for note in finding.notes]
    if finding.help:
        body.append(f"{pad} = {styled('help', 'cyan', stream=stream)}: {clean(finding.help)}")
    if body[-1] == f"{pad} |":
        body.pop()
    return "\n".join(body)


def _snippet(span: Span, text: str, *, label: str, mark: str, width: int) -> list[str]:
    """A source line and the marks under it. Tabs become one space, so that the marks stand right."""
    shown = clean(text.replace("\t", " "))
    end = span.end_column if span.end_line == span.line else len(text) + 1
    stretch = text[span.column - 1 : end - 1].rstrip()
    marks = " " * (span.column - 1) + mark * max(1, len(stretch))
    return [
        f"{span.line:>{width}} | {shown}",
        f"{' ' * width} | {marks}{f' {clean(label)}' if label else ''}".rstrip(),
    ]
