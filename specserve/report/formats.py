"""Findings for other programs: JSON, SARIF 2.1.0, GitHub's workflow commands."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from specserve import __version__
from specserve.diagnostics import Finding, Report, Severity, Skipped, Span, Verdict
from specserve.report.console import clean, json_text
from specserve.report.manual import HOME, Page, body, pages

if TYPE_CHECKING:
    from specserve.memory.estimate import Bounds as Interval
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.tokenizercompare import TokenizerComparison


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
        "profiles": [_profile(item) for item in report.verdicts],
        "summary": {
            "profiles": report.profiles,
            "errors": report.count(Severity.ERROR),
            "warnings": report.count(Severity.WARNING),
            "infos": report.count(Severity.INFO),
            "suppressed": report.suppressed,
        },
    }
    return json_text(json.dumps(content, indent=2, ensure_ascii=False))


def _profile(verdict: Verdict) -> dict[str, Any]:
    content: dict[str, Any] = {
        "file": verdict.file,
        "name": verdict.name,
        "fingerprint": verdict.fingerprint,
        "verdict": verdict.verdict,
    }
    if type(verdict) is Verdict:  # of `lint`, which must not pay for the imports of `check`
        return content
    from specserve.checks.check import Checked

    if isinstance(verdict, Checked):
        content["tokenizer"] = _tokenizer(verdict.tokenizer)
        content["memory"] = _memory(verdict.memory)
        if verdict.vllm:
            from specserve.report.effective import effective_json

            content["vllm"] = effective_json(verdict.vllm)
    return content


def _tokenizer(comparison: TokenizerComparison | None) -> dict[str, Any]:
    from specserve.models.tokenizercompare import TokenizerComparison

    if comparison is None:
        comparison = TokenizerComparison("not_applicable")
    first = comparison.first_difference
    return {
        "verdict": comparison.verdict,
        "overlap": comparison.overlap,
        "mismatch_by_occurrence": comparison.mismatch_by_occurrence,
        "first_difference": {"id": first.id, "target": first.target, "draft": first.draft} if first else None,
        "reasons": list(comparison.reasons),
    }


def _memory(estimate: MemoryEstimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    per_gpu, alone = estimate.per_gpu_bytes, estimate.without_speculation_kv_cache_tokens
    return {
        "verdict": estimate.verdict,
        "rank": estimate.rank,
        "per_gpu_bytes": {
            "total": per_gpu.total,
            "budget": per_gpu.budget,
            "target_weights": per_gpu.target_weights,
            "draft_weights": None if estimate.unknown_draft else per_gpu.draft_weights,
            "activation": _bytes(per_gpu.activation),
            "other": _bytes(per_gpu.other),
            "kv_cache": _bytes(per_gpu.kv_cache),
        },
        "max_model_len": estimate.max_model_len,
        **_kv_cache(estimate),
        "without_speculation": {"kv_cache_tokens": _bytes(alone)} if alone else None,
        "knobs": [
            {"path": knob.path, "value": knob.value, "frees_bytes": knob.frees_bytes, "verdict": knob.verdict}
            for knob in estimate.knobs
        ],
        "basis": estimate.basis,
        "calibration": estimate.calibration,
        "notes": list(estimate.notes),
    }


def _kv_cache(estimate: MemoryEstimate) -> dict[str, Any]:
    """What the KV cache holds; nulls for what is not known: the draft, or an architecture's cache."""
    content: dict[str, Any] = {
        "kv_bytes_per_token": {
            "target": estimate.target_kv_bytes_per_token,
            "draft": None if estimate.unknown_draft else estimate.draft_kv_bytes_per_token,
        },
        "kv_bytes_per_request_fixed": {
            "target": estimate.target_kv_bytes_fixed,
            "draft": None if estimate.unknown_draft else estimate.draft_kv_bytes_fixed,
        },
        "largest_max_model_len": _bytes(estimate.largest_max_model_len),
        "kv_cache_tokens": _bytes(estimate.kv_cache_tokens),
        "max_concurrency": _bounds(estimate.max_concurrency),
    }
    return content if estimate.is_kv_known else dict.fromkeys(content)


def _bytes(interval: Interval) -> dict[str, Any]:
    return {"low": int(interval.low), "high": int(interval.high), "logs": interval.logs}


def _bounds(interval: Interval) -> dict[str, Any]:
    return {"low": round(interval.low, 2), "high": round(interval.high, 2), "logs": interval.logs}


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


def is_file(name: str) -> bool:
    """Whether a span's file is one: `-` is stdin, `--set key` and `<command>` are the command line."""
    return not name.startswith(("-", "<"))


def from_root(name: str) -> str:
    """The path of a file seen from the root of its repository; absolute where it lies outside."""
    folder, base = os.path.split(os.path.abspath(name))  # noqa: PTH100 - a name that is no file yet will do
    place = Path(os.path.realpath(folder)) / base
    root = _root(os.environ.get("GITHUB_WORKSPACE"), Path.cwd())
    return place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)


def uri(name: str) -> str:
    """The same as a percent-encoded URI reference; `file://` where it is absolute."""
    path = from_root(name)
    encoded = quote(os.fsencode(path))
    return f"file://{encoded}" if path.startswith("/") else encoded


@lru_cache
def _root(workspace: str | None, here: Path) -> Path:
    """The checkout that a CI job works in; else the repository around the working directory; else that one."""
    if workspace:
        place = Path(os.path.realpath(workspace))
        if here.is_relative_to(place):
            return place
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


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
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _sarif_skipped(report)}],
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


def _sarif_skipped(report: Report) -> list[dict[str, Any]]:
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
        "message": {"text": _sarif_text(finding)},
        "locations": [_location(finding.span, label=finding.label)],
        "relatedLocations": [
            {"id": number, **_location(item.span, label=item.label)}
            for number, item in enumerate(finding.related, start=1)
        ],
        "partialFingerprints": {"specserve/v1": _fingerprint(finding, seen)},
    }


def _sarif_text(finding: Finding) -> str:
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


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def github(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """One `::error …::…` line a finding, with both sides of a mismatch in its text.

    A group of rules that did not run is a warning: a job must not look as if it had.
    """
    return "".join(
        [*(_command(finding) for finding in findings), *(_github_skipped(item) for item in skipped)]
    )


def _github_skipped(item: Skipped) -> str:
    title = f"title=specserve ({item.group})".translate(_PROPERTY)
    place = f",file={from_root(item.profile).translate(_PROPERTY)}" if is_file(item.profile) else ""
    text = clean(f"{item.profile}: {len(item.codes)} rules did not run: {item.reason}")
    return f"::warning {title}{place}::{text.translate(_DATA)}\n"


def _command(finding: Finding) -> str:
    properties = {"title": f"specserve ({finding.code})", **_place(finding)}
    head = ",".join(f"{name}={value.translate(_PROPERTY)}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {head}::{_github_text(finding).translate(_DATA)}\n"


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


def _github_text(finding: Finding) -> str:
    lines = [f"{finding.span}: {finding.code} {finding.message}"]
    if finding.label:
        lines.append(f"{finding.span}: {finding.label}")
    lines += [f"{item.span}: {item.label}" for item in finding.related]
    lines += [f"note: {note}" for note in finding.notes]
    if finding.help:
        lines.append(f"help: {finding.help}")
    return "\n".join(clean(line) for line in lines)
