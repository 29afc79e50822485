"""What `specserve lint` does, whoever parsed its arguments: find profiles, judge them, say it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import StrEnum

from specserve.checks.run import lint
from specserve.cli.found import profiles
from specserve.diagnostics import Report, Severity
from specserve.errors import UsageError
from specserve.report.console import is_terminal, mute, out, say, styled


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def judge(
    paths: Iterable[str],
    *,
    format: Format | None = None,
    strict: bool = False,
    exit_zero: bool = False,
    pick: bool = False,
    stdin_filename: str | None = None,
    settings: Iterable[str] = (),
) -> int:
    """Judge files, folders, globs and stdin; findings to stdout, the sum to stderr. Returns the exit code."""
    files = inputs(list(paths), pick=pick, stdin_filename=stdin_filename)
    report = lint(files, settings=settings)
    try:
        show(report, format=format or default_format())
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline
    bad = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if strict else 0)
    return 1 if bad and not exit_zero else 0


def default_format() -> Format:
    """Annotations in a job of GitHub Actions, text elsewhere."""
    return Format.GITHUB if os.environ.get("GITHUB_ACTIONS") == "true" else Format.TEXT


def inputs(paths: list[str], *, pick: bool, stdin_filename: str | None) -> list[str]:
    """The profiles to judge, each once. Raises UsageError where there is none, and none was picked from."""
    found: dict[str, str] = {}
    for path in paths:
        there = list(profiles(path, pick=pick))
        if not there and not pick and len(paths) > 1:
            say(f"{styled('warning', 'yellow')}: there is no profile in `{path}`")
        for file in there:
            found.setdefault(os.path.abspath(file) if file != "-" else file, file)  # noqa: PTH100 - may not exist
    if not found and not pick:
        raise UsageError(
            f"there is no profile in {', '.join(f'`{path}`' for path in paths)}",
            hint="a profile is a *.yaml or *.yml with a top-level `target` or `extends`; `_….yaml` is a base",
        )
    if stdin_filename and "-" in found:
        from specserve.profile.texts import keep, read

        keep(stdin_filename, read("-"))
        found["-"] = stdin_filename
    return list(found.values())


def show(report: Report, *, format: Format) -> None:
    """Findings to stdout in that format, the sum to stderr."""
    match format:
        case Format.JSON:
            from specserve.report.formats import report_json

            out(report_json(report))
            return
        case Format.SARIF:
            from specserve.report.formats import sarif

            out(sarif(report))
        case Format.GITHUB:
            from specserve.report.formats import github

            _out(github(report.findings, skipped=report.skipped))
        case Format.CONCISE:
            from specserve.report.findings import concise

            _out(concise(report.findings, skipped=report.skipped))
        case Format.TEXT:
            from specserve.report.findings import render

            # an empty line stands between the findings and their sum
            _out(f"{render(report.findings, stream=sys.stdout)}\n" if report.findings else "")
    tell(report, explain=format in (Format.TEXT, Format.CONCISE))


def _out(text: str) -> None:
    if text:
        out(text)


def tell(report: Report, *, explain: bool) -> None:
    """The sum to stderr; to a person also how to read more, once."""
    from specserve.report.findings import summary

    say(summary(report))
    if explain and report.findings and is_terminal(sys.stderr):
        worst = min(report.findings, key=lambda finding: list(Severity).index(finding.severity))
        say(f"\n{styled('hint', 'cyan')}: `specserve explain {worst.code}` describes a rule")
