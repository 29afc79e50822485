"""What `specserve lint` does, whoever parsed its arguments: find profiles, judge them, print the findings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from specserve.checks.run import lint
from specserve.diagnostics import Report, Severity
from specserve.errors import UsageError
from specserve.profile.codes import quoted
from specserve.report.console import is_terminal, mute, out, say, styled

_MAY_BE_PROFILE = re.compile(rb"""^['"{ ]*(target|extends)['"]?[ \t]*:""", re.M)
_IS_PROFILE = re.compile(rb"""^(target|extends)[ \t]*:""", re.M)
_GLOB = re.compile(r"[*?\[]")


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


def default_format() -> FindingsFormat:
    """Annotations in a job of GitHub Actions, text elsewhere."""
    return FindingsFormat.GITHUB if os.environ.get("GITHUB_ACTIONS") == "true" else FindingsFormat.TEXT


def inputs(paths: list[str], *, pick: bool, stdin_filename: str | None) -> list[str]:
    """The profiles to judge, each once. Raises UsageError if there are none, unless `pick` may leave none."""
    found: dict[str, str] = {}
    for path in paths:
        files = list(profiles(path, pick=pick))
        if not files and not pick and len(paths) > 1:
            say(f"{styled('warning', 'yellow')}: there is no profile in `{path}`")
        for file in files:
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


def profiles(path: str, *, pick: bool = False) -> Iterator[str]:
    """A file as it is; of a folder, or of a glob that the shell left alone, the profiles, sorted.

    With `pick`, a named file counts only if it looks like a profile. A folder that cannot be read is
    yielded itself, so that it becomes a finding.
    """
    if path == "-":
        yield path
    elif Path(path).is_dir():
        yield from _below(path)
    elif _GLOB.search(path) and not Path(path).exists():
        yield from _matching(path)
    elif not pick or _is_meant(path):
        yield path


def _below(folder: str) -> Iterator[str]:
    """The profiles in a folder and the folders in it; hidden ones and links to folders are not entered."""
    unreadable: list[str] = []
    found: list[str] = []

    def note(error: OSError) -> None:
        unreadable.append(str(error.filename))

    for place, folders, files in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [str(Path(place, name)) for name in files if name.endswith((".yaml", ".yml"))]
    meant = [file for file in found if _is_meant(file)]
    yield from sorted([*meant, *unreadable], key=lambda name: Path(name).parts)


def _matching(pattern: str) -> Iterator[str]:
    """The profiles that a glob matches; `**` is any number of folders, none of them hidden or a link."""
    start, shown = Path(Path(pattern).anchor or "."), set(Path(pattern).parts)
    try:
        found = sorted(
            start.glob(str(Path(pattern).relative_to(start) if pattern.startswith("/") else pattern))
        )
    except ValueError as error:
        raise UsageError(f"{quoted(pattern)} is no glob: {error}".rstrip(".")) from error
    for file in found:
        hidden = any(part.startswith(".") and part != ".." and part not in shown for part in file.parts)
        if not hidden and _is_meant(str(file)):
            yield str(file)


def _is_meant(file: str) -> bool:
    """Whether a file in a folder is to be judged by itself: a profile, and no base (`_…`)."""
    base = os.path.basename(file)  # noqa: PTH119 - Path is slow for a thousand of them
    return not base.startswith(("_", ".")) and Path(file).is_file() and _is_profile(file)


def _is_profile(file: str) -> bool:
    """Whether it has a top-level `target` or `extends`; a file that cannot be read becomes a finding."""
    from specserve.profile.load import looks_like_profile
    from specserve.profile.source import MAX_BYTES, parse

    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES)
    except OSError:
        return True
    if _IS_PROFILE.search(data):
        return True  # by its line alone, so that invalid YAML is not passed over
    return bool(_MAY_BE_PROFILE.search(data)) and looks_like_profile(parse(data, file=file)[0])


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
        say(f"\n{styled('hint', 'cyan')}: `specserve explain {worst.code}` describes a rule")
