"""What `specserve lint` does, find profiles, judge them, print the findings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import StrEnum

from specserve.checks.run import lint
from specserve.diagnostics import Report, Severity
from specserve.profile.find import find_profiles
from specserve.report.console import is_terminal, mute, out, say, styled


class FindingsFormat(StrEnum):
    """How findings are written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def judge(
    paths: Iterable[str],
    *,
    format: FindingsFormat | None = None,
    strict: bool = False,
    pick: bool = False,
    stdin_filename: str | None = None,
    settings: Iterable[str] = (),
) -> int:
    """Judge files, folders, globs and stdin; findings to stdout, the sum to stderr. Returns the exit code."""
    files = named_profiles(paths, pick=pick, stdin_filename=stdin_filename)
    format = format or default_format()
    report = lint(files, settings=settings, fingerprints=format is FindingsFormat.JSON)
    try:
        show(report, format=format)
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline
    bad = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if strict else 0)
    return 1 if bad else 0


def default_format() -> FindingsFormat:
    """Annotations in a job of GitHub Actions, text elsewhere."""
    return FindingsFormat.GITHUB if os.environ.get("GITHUB_ACTIONS") == "true" else FindingsFormat.TEXT


def named_profiles(
    paths: Iterable[str], *, pick: bool = False, stdin_filename: str | None = None
) -> list[str]:
    """The profiles that these paths name, each once; a path among several that names none is a warning."""

    def warn(text: str) -> None:
        say(f"{styled('warning', 'yellow')}: {text}")

    return find_profiles(list(paths), pick=pick, stdin_filename=stdin_filename, warn=warn)


def show(report: Report, *, format: FindingsFormat) -> None:
    """Findings to stdout in that format, the sum to stderr."""
    match format:
        case FindingsFormat.JSON:
            from specserve.report.formats import report_json

            out(report_json(report))
            return
        case FindingsFormat.SARIF:
            from specserve.report.formats import sarif

            out(sarif(report))
        case FindingsFormat.GITHUB:
            from specserve.report.formats import github

            _out(github(report.findings, skipped=report.skipped))
        case FindingsFormat.CONCISE:
            from specserve.report.findings import concise

            _out(concise(report.findings, skipped=report.skipped))
        case FindingsFormat.TEXT:
            from specserve.report.findings import render

            # an empty line stands between the findings and their sum
            _out(f"{render(report.findings, stream=sys.stdout)}\n" if report.findings else "")
    tell(report, explain=format in (FindingsFormat.TEXT, FindingsFormat.CONCISE))


def _out(text: str) -> None:
    if text:
        out(text)


def tell(report: Report, *, explain: bool) -> None:
    """The sum to stderr; to a person also how to read more, once."""
    from specserve.report.findings import summary

    say(summary(report))
    if explain and report.findings and is_terminal(sys.stderr):
        worst = min(report.findings, key=lambda finding: list(Severity).index(finding.severity))
        say(f"\n{styled('hint', 'cyan')}: `specserve rules {worst.code}` describes a rule")
