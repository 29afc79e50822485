"""What `specserve lint` does, whoever parsed its arguments: find profiles, judge them, say it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from specserve.checks.run import lint
from specserve.diagnostics import Report, Severity
from specserve.errors import UsageError
from specserve.report.console import mute, out, say

_MAY_BE_PROFILE = re.compile(rb"""^['"{ ]*(target|extends)['"]?[ \t]*:""", re.M)
_IS_PROFILE = re.compile(rb"""^(target|extends)[ \t]*:""", re.M)


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"


def judge(
    paths: Iterable[str], *, format: Format = Format.TEXT, strict: bool = False, settings: Iterable[str] = ()
) -> int:
    """Judge files, folders and stdin; findings to stdout, the sum to stderr. Returns the exit code."""
    paths = list(paths)
    files = list(dict.fromkeys(file for path in paths for file in profiles(path)))
    if not files:
        raise UsageError(f"there is no profile in {', '.join(f'`{path}`' for path in paths)}")
    report = lint(files, settings=settings)
    try:
        _show(report, format=format)
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline
    bad = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if strict else 0)
    return 1 if bad else 0


def _show(report: Report, *, format: Format) -> None:
    if format is Format.JSON:
        from specserve.report.json import report_json

        out(report_json(report))
        return
    from specserve.report.text import concise, render, summary

    if report.findings:
        findings = report.findings
        out(concise(findings) if format is Format.CONCISE else render(findings, stream=sys.stdout))
    say(summary(report))


def profiles(path: str) -> Iterator[str]:
    """A file as it is; of a folder the profiles in it, sorted, hidden folders left out."""
    if path == "-" or not Path(path).is_dir():
        yield path
        return
    for file in sorted(Path(path).rglob("*.y*ml")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or file.suffix not in (".yaml", ".yml") or file.name.startswith("_") or not file.is_file():
            continue
        if _is_profile(file):
            yield str(file)


def _is_profile(file: Path) -> bool:
    """Whether it has a top-level `target` or `extends`; a file that cannot be read is told by its finding."""
    from specserve.profile.load import looks_like_profile
    from specserve.profile.source import MAX_BYTES, parse

    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES)
    except OSError:
        return True
    if _IS_PROFILE.search(data):
        return True  # told by its line, so that one that is no valid YAML is not passed over
    return bool(_MAY_BE_PROFILE.search(data)) and looks_like_profile(parse(data, file=str(file))[0])
