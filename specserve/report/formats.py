"""Findings for other programs: JSON, SARIF 2.1.0, GitHub's workflow commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specserve import __version__
from specserve.diagnostics import Finding, ProfileVerdict, Related, Report, Severity, Skipped, Span
from specserve.report.console import escaped, json_text
from specserve.report.manual import HOME, Page, body, pages
from specserve.report.text import count, fields_of, json_document

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "recommendation"}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})


def report_json(report: Report) -> str:
    """Returns the whole report as one JSON document."""
    counts = {f"{severity}s": report.count(severity) for severity in Severity}
    content = {
        "findings": [
            {
                **fields_of(finding, "code", "name", "severity", "message"),
                "location": _labelled(finding),
                "related": [_labelled(item) for item in finding.related],
                **fields_of(finding, "notes", "help"),
            }
            for finding in report.findings
        ],
        "skipped": [
            fields_of(item, "profile", "group", "codes", "reason", "cause", "help")
            for item in report.skipped
        ],
        "profiles": [_profile(item) for item in report.verdicts],
        "summary": {"profiles": report.profiles, **counts, "suppressed": report.suppressed},
    }
    return json_document(content)


def _labelled(item: Finding | Related) -> dict[str, Any]:
    place = fields_of(item.span, "file", "line", "column", "end_line", "end_column", "path")
    return place | {"label": item.label}


def _profile(verdict: ProfileVerdict) -> dict[str, Any]:
    names = ["file", "name", "fingerprint", "verdict"]
    if type(verdict) is not ProfileVerdict:  # `lint` has none of these
        names += ["tokenizer", "memory", "alternatives", "vllm"]
    return fields_of(verdict, *names)


def _is_file(name: str) -> bool:
    """Whether a span's file is one.

    `-` is stdin, `--set key` and `<command>` are the command line.
    """
    return not name.startswith(("-", "<"))


def _from_root(name: str) -> str:
    """The path of a file seen from the root of its repository; absolute if it lies outside."""
    folder, base = os.path.split(os.path.abspath(name))  # noqa: PTH100 - a name that is not a file yet will do
    place = Path(os.path.realpath(folder)) / base
    root = _root(os.environ.get("GITHUB_WORKSPACE"), Path.cwd())
    return place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)


@lru_cache
def _root(workspace: str | None, here: Path) -> Path:
    """The checkout that a CI job works in.

    Else the repository around the working directory; else that one.
    """
    if workspace and here.is_relative_to(os.path.realpath(workspace)):
        return Path(os.path.realpath(workspace))
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def sarif(report: Report) -> str:
    """Returns the whole report as one SARIF log with one run.

    The rules are those of its findings.
    """
    known, seen = pages(), Counter[str]()
    codes = sorted({finding.code for finding in report.findings})
    driver = {
        "name": "specserve",
        "semanticVersion": __version__,
        "informationUri": HOME,
        "rules": [_descriptor(known[code]) for code in codes],
    }
    notifications = [
        {
            "level": "warning",
            "descriptor": {"id": f"skipped-{item.group}"},
            "message": {
                "text": escaped(
                    _plain(f"{item.profile}: {', '.join(item.codes)} did not run: {item.reason}")
                )
            },
        }
        for item in report.skipped
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": [
            _result(finding, codes.index(finding.code), seen) for finding in report.findings
        ],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_text(json.dumps(log, indent=2, ensure_ascii=False))


def _descriptor(page: Page) -> dict[str, Any]:
    text = "\n\n".join(f"{heading}\n{part}".strip() for heading, part in page.parts.items())
    return {
        "id": page.code,
        "name": page.name,
        "shortDescription": {"text": page.summary},
        "fullDescription": {
            "text": " ".join(page.parts.get("Why is this bad?", page.summary).split())
        },
        "help": {"text": text, "markdown": body(page, level=2)},
        "helpUri": page.url,
        "defaultConfiguration": {"level": _LEVELS[page.severity]},
        "properties": {"tags": ["vllm"], "problem.severity": _PROBLEMS[page.severity]},
    }


def _result(finding: Finding, index: int, seen: Counter[str]) -> dict[str, Any]:
    """One finding.

    Its fingerprint is the same in the next commit, on whatever line it then stands.
    """
    span = finding.span
    place = _uri(span.file) if _is_file(span.file) else span.file
    key = "\0".join((finding.code, place, span.path or finding.message))
    seen[key] += 1
    fingerprint = hashlib.sha256(
        f"{key}\0{seen[key]}".encode(errors="surrogateescape")
    ).hexdigest()[:32]
    related = enumerate(finding.related, start=1)
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_location(span, label=finding.label)],
        "relatedLocations": [
            {"id": at, **_location(item.span, label=item.label)} for at, item in related
        ],
        "partialFingerprints": {"specserve/v1": fingerprint},
    }


def _message(finding: Finding) -> str:
    """Message, both sides (the other ones as links to their places), evidence and the way out."""
    sides = [_plain(finding.label)] if finding.label else []
    for number, item in enumerate(finding.related, start=1):
        sides.append(f"[{_link_text(item.label or 'the other place')}]({number})")
    head = f"{_plain(finding.message)}{': ' if sides else ''}{'; '.join(sides)}"
    return "\n".join(map(escaped, [head, *map(_plain, _remarks(finding))]))


def _remarks(finding: Finding) -> list[str]:
    """The evidence, and the way out."""
    return [f"note: {note}" for note in finding.notes] + (
        [f"help: {finding.help}"] if finding.help else []
    )


def _plain(text: str) -> str:
    """Text in which nothing is a link: it quotes profiles.

    (SARIF 2.1.0, 3.11.6: `[text](destination)`)
    """
    return _link_text(text) if "](" in text else text


def _link_text(label: str) -> str:
    return re.sub(r"[\\\[\]]", r"\\\g<0>", label)


def _uri(name: str) -> str:
    """The path from the root as a percent-encoded URI reference; `file://` if it is absolute."""
    path = _from_root(name)
    return f"{'file://' if path.startswith('/') else ''}{quote(os.fsencode(path))}"


def _location(span: Span, *, label: str) -> dict[str, Any]:
    """A place; columns are 1-based, and `endColumn` is the one after the last character."""
    location: dict[str, Any] = {}
    if _is_file(span.file):
        artifact = {"uri": _uri(span.file)}
        if not artifact["uri"].startswith("file:"):
            artifact["uriBaseId"] = "%SRCROOT%"
        start, end = (
            {"startLine": span.line, "startColumn": span.column},
            (span.end_line, span.end_column),
        )
        region = {**start, "endLine": end[0], "endColumn": end[1]}
        location["physicalLocation"] = {"artifactLocation": artifact, "region": region}
    if span.path or not location:
        location["logicalLocations"] = [{"fullyQualifiedName": escaped(span.path or span.file)}]
    return location | ({"message": {"text": escaped(_plain(label))}} if label else {})


def github(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """Returns one `::error …::…` line a finding, with both sides of a mismatch in its text.

    A group of rules that did not run is a warning: a job must not look as if it had.
    """
    lines = []
    for finding in findings:
        span, sides = finding.span, (*((finding,) if finding.label else ()), *finding.related)
        place = {}
        if _is_file(span.file):
            place = {
                "file": _from_root(span.file),
                "line": str(span.line),
                "endLine": str(span.end_line),
            }
            if span.line == span.end_line:  # GitHub refuses columns if the lines differ
                place |= {"col": str(span.column), "endColumn": str(span.end_column)}
        text = [f"{span}: {finding.code} {finding.message}"]
        text += [f"{item.span}: {item.label}" for item in sides]
        command = _COMMANDS[finding.severity]
        lines.append(_command(command, finding.code, place, "\n".join([*text, *_remarks(finding)])))
    for item in skipped:
        place = {"file": _from_root(item.profile)} if _is_file(item.profile) else {}
        words = f"{item.profile}: {count(len(item.codes), 'rule')} did not run: {item.reason}"
        lines.append(_command("warning", item.group, place, words))
    return "".join(lines)


def _command(command: str, title: str, place: Mapping[str, str], text: str) -> str:
    properties = {"title": f"specserve ({title})", **place}
    head = ",".join(
        f"{name}={escaped(value).translate(_PROPERTY)}" for name, value in properties.items()
    )
    return f"::{command} {head}::{escaped(text).translate(_DATA)}\n"
