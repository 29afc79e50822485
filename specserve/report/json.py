"""Reports as JSON, version 1: keys are never removed within a version."""

from __future__ import annotations

import json
from typing import Any

from specserve.diagnostics import Finding, Report, Severity, Span


def report_json(report: Report) -> str:
    """The whole report as one JSON document."""
    content = {
        "version": 1,
        "findings": [_finding(finding) for finding in report.findings],
        "skipped": [
            {
                "profile": item.profile,
                "group": item.group,
                "codes": list(item.codes),
                "reason": item.reason,
                "cause": item.cause,
            }
            for item in report.skipped
        ],
        "profiles": [
            {"file": item.file, "name": item.name, "fingerprint": item.fingerprint, "verdict": item.verdict}
            for item in report.verdicts
        ],
        "summary": {
            "profiles": report.profiles,
            "errors": report.count(Severity.ERROR),
            "warnings": report.count(Severity.WARNING),
            "infos": report.count(Severity.INFO),
            "suppressed": report.suppressed,
        },
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "message": finding.message,
        "location": _span(finding.span) | {"label": finding.label},
        "related": [_span(item.span) | {"label": item.label} for item in finding.related],
        "notes": list(finding.notes),
        "help": finding.help,
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
        "path": span.path,
    }
