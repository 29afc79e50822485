"""Reports as SARIF 2.1.0, for code scanning. Knows no rule but its manual page.

What a comment in the profile hides is left out: code scanning shows suppressed results as open alerts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from specserve import __version__
from specserve.diagnostics import Finding, Report, Severity, Span
from specserve.report.catalogue import body
from specserve.report.console import clean, json_text
from specserve.report.manual import HOME, Page, pages
from specserve.report.place import is_file, uri

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "recommendation"}


def sarif(report: Report) -> str:
    """The whole report as one SARIF log with one run; the rules are those of its findings."""
    known = pages()
    codes = sorted({finding.code for finding in report.findings})
    seen: Counter[str] = Counter()
    run = {
        "tool": {
            "driver": {
                "name": "specserve",
                "semanticVersion": __version__,
                "informationUri": HOME,
                "rules": [_descriptor(known[code]) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _skipped(report)}],
        "results": [_result(finding, codes.index(finding.code), seen) for finding in report.findings],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_text(json.dumps(log, indent=2, ensure_ascii=False))


def _descriptor(page: Page) -> dict[str, Any]:
    text = "\n\n".join(f"{heading}\n{part}".strip() for heading, part in page.parts.items())
    return {
        "id": page.code,
        "name": page.name,
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": " ".join(page.parts.get("Why is this bad?", page.summary).split())},
        "help": {"text": text, "markdown": body(page, level=2)},
        "helpUri": page.url,
        "defaultConfiguration": {"level": _LEVELS[page.severity]},
        "properties": {"tags": ["vllm"], "problem.severity": _PROBLEMS[page.severity]},
    }


def _skipped(report: Report) -> list[dict[str, Any]]:
    """What was not looked at: no result of a group that did not run means nothing."""
    return [
        {
            "level": "warning",
            "descriptor": {"id": f"skipped-{item.group}"},
            "message": {
                "text": clean(_plain(f"{item.profile}: {', '.join(item.codes)} did not run: {item.reason}"))
            },
        }
        for item in report.skipped
    ]


def _result(finding: Finding, index: int, seen: Counter[str]) -> dict[str, Any]:
    """One finding; columns are 1-based, and `endColumn` is the one after the last character."""
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": _text(finding)},
        "locations": [_location(finding.span, label=finding.label)],
        "relatedLocations": [
            {"id": number, **_location(item.span, label=item.label)}
            for number, item in enumerate(finding.related, start=1)
        ],
        "partialFingerprints": {"specserve/v1": _fingerprint(finding, seen)},
    }


def _text(finding: Finding) -> str:
    """Message, both sides (the other ones as links to their places), evidence and the way out."""
    sides = [_plain(finding.label)] if finding.label else []
    sides += [
        f"[{_link_text(item.label or 'the other place')}]({number})"
        for number, item in enumerate(finding.related, start=1)
    ]
    lines = [f"{_plain(finding.message)}{': ' if sides else ''}{'; '.join(sides)}"]
    lines += [f"note: {_plain(note)}" for note in finding.notes]
    if finding.help:
        lines.append(f"help: {_plain(finding.help)}")
    return "\n".join(clean(line) for line in lines)


def _plain(text: str) -> str:
    """Text in which nothing is a link: it quotes profiles. (SARIF 2.1.0, 3.11.6: `[text](destination)`)"""
    return _link_text(text) if "](" in text else text


def _link_text(label: str) -> str:
    return label.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")


def _location(span: Span, *, label: str) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if is_file(span.file):
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri(span.file), "uriBaseId": "%SRCROOT%"},
            "region": {
                "startLine": span.line,
                "startColumn": span.column,
                "endLine": span.end_line,
                "endColumn": span.end_column,
            },
        }
        if location["physicalLocation"]["artifactLocation"]["uri"].startswith("file:"):
            del location["physicalLocation"]["artifactLocation"]["uriBaseId"]
    if span.path or not location:
        location["logicalLocations"] = [{"fullyQualifiedName": clean(span.path or span.file)}]
    if label:
        location["message"] = {"text": clean(_plain(label))}
    return location


def _fingerprint(finding: Finding, seen: Counter[str]) -> str:
    """The same finding in the next commit has the same one, on whatever line it then stands."""
    place = uri(finding.span.file) if is_file(finding.span.file) else finding.span.file
    key = "\0".join((finding.code, place, finding.span.path or finding.message))
    seen[key] += 1
    return hashlib.sha256(f"{key}\0{seen[key]}".encode(errors="surrogateescape")).hexdigest()[:32]
