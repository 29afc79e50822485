"""Findings for other programs: JSON, SARIF 2.1.0, GitHub's workflow commands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specserve import __version__
from specserve.diagnostics import Finding, Report, Severity, Skipped, Span
from specserve.report.console import escaped
from specserve.report.manual import Page, pages
from specserve.report.text import json_document, json_values

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def report_json(report: Report) -> str:
    """Returns the dump of the report; a profile's findings stand once, in the list of all."""
    content = json_values(report)
    for verdict in content["verdicts"]:
        for name in ("findings", "skipped", "unread"):
            verdict.pop(name, None)
    return json_document(content)


def _is_file(name: str) -> bool:
    """Whether a span's file is one: stdin is `-`, the command line `--set key` and `<command>`."""
    return not name.startswith(("-", "<"))


def _from_root(name: str) -> str:
    """The path of a file seen from the root of its repository; absolute if it lies outside."""
    folder, base = os.path.split(os.path.abspath(name))  # noqa: PTH100 - it may not be there
    place = Path(os.path.realpath(folder)) / base
    root = _root(Path.cwd())
    return place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)


@lru_cache
def _root(here: Path) -> Path:
    """The repository around a folder; without one, the folder."""
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _message(finding: Finding) -> list[str]:
    """What is wrong, both sides of a mismatch with their places, the evidence, the way out."""
    lines = [finding.message]
    if finding.label:
        lines.append(f"{finding.span}: {finding.label}")
    lines += [f"{item.span}: {item.label}" for item in finding.related]
    lines += [f"note: {note}" for note in finding.notes]
    return [*lines, *([f"help: {finding.help}"] if finding.help else [])]


def sarif(report: Report) -> str:
    """Returns the report as a SARIF log with one run; its rules are those of its findings."""
    known = pages()
    codes = sorted({finding.code for finding in report.findings})
    notifications = []
    for item in report.skipped:
        text = f"{item.profile}: not fully checked ({item.group}): {item.reason}"
        notifications.append({"level": "warning", "message": _sarif_text(text)})
    run = {
        "tool": {
            "driver": {
                "name": "specserve",
                "semanticVersion": __version__,
                "rules": [_sarif_rule(known[code]) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": [
            {
                "ruleId": finding.code,
                "level": "note" if finding.severity is Severity.INFO else finding.severity,
                "message": _sarif_text("\n".join(_message(finding))),
                "locations": [_sarif_location(finding.span)],
            }
            for finding in report.findings
        ],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_document(log)


def _sarif_text(text: str) -> dict[str, str]:
    """A message in which nothing is a link: it quotes profiles. (SARIF 2.1.0, 3.11.6)"""
    if "](" in text:
        text = re.sub(r"[\\\[\]]", r"\\\g<0>", text)
    return {"text": escaped(text)}


def _sarif_rule(page: Page) -> dict[str, Any]:
    return {
        "id": page.code,
        "name": page.name,
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": page.summary},
        "help": {"text": f"{page.summary} {page.url}"},
        "helpUri": page.url,
    }


def _sarif_location(span: Span) -> dict[str, Any]:
    """A place; columns are 1-based, and `endColumn` is the one after the last character."""
    if not _is_file(span.file):
        return {"logicalLocations": [{"fullyQualifiedName": escaped(span.path or span.file)}]}
    path = _from_root(span.file)
    uri = quote(os.fsencode(path))
    region = {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }
    is_inside = not path.startswith("/")
    artifact = {"uri": uri, "uriBaseId": "%SRCROOT%"} if is_inside else {"uri": f"file://{uri}"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def github(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """Returns one `::error …::…` line a finding, with both sides of a mismatch in its text.

    What was not fully checked is a warning: a job must not look as if it had been.
    """
    lines = []
    for finding in findings:
        span = finding.span
        place = {"line": str(span.line), "endLine": str(span.end_line)}
        if span.line == span.end_line:  # GitHub refuses columns if the lines differ
            place |= {"col": str(span.column), "endColumn": str(span.end_column)}
        place = {"file": _from_root(span.file), **place} if _is_file(span.file) else {}
        text = f"{span}: {finding.code} " + "\n".join(_message(finding))
        level = "notice" if finding.severity is Severity.INFO else finding.severity
        lines.append(_command(level, finding.code, place, text))
    for item in skipped:
        place = {"file": _from_root(item.profile)} if _is_file(item.profile) else {}
        text = f"{item.profile}: not fully checked ({item.group}): {item.reason}"
        lines.append(_command("warning", item.group, place, text))
    return "".join(lines)


def _command(command: str, title: str, place: dict[str, str], text: str) -> str:
    """A workflow command, escaped as GitHub's runner reads it."""
    data = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    inside = data | str.maketrans({":": "%3A", ",": "%2C"})
    properties = {"title": f"specserve ({title})", **place}
    pairs = [f"{name}={escaped(value).translate(inside)}" for name, value in properties.items()]
    return f"::{command} {','.join(pairs)}::{escaped(text).translate(data)}\n"
