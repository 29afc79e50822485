"""`specserve lint`: the static rules over files, folders and stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"


def lint(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Profiles, or folders of them; `-` is stdin.")
    ],
    *,
    format: Annotated[Format, typer.Option(help="How findings are written.")] = Format.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", show_default=False, help="Override a value; repeatable."),
    ] = None,
) -> None:
    """Judge profiles by themselves: no network, no GPU, no vLLM. For CI and before every launch.

    In a folder, every *.yaml and *.yml with a top-level `target` or `extends` is a profile; a name that
    starts with `_` marks a base, judged through the profiles that extend it. Exit code 1: errors were found.

    \b
    specserve lint configs/
    specserve lint my.yaml --format json
    """
    from specserve.checks.run import lint as run
    from specserve.diagnostics import Severity
    from specserve.errors import UsageError
    from specserve.report.console import out, say
    from specserve.report.json import report_json
    from specserve.report.text import concise, render, summary

    files = [file for path in paths for file in _profiles(path)]
    if not files:
        raise UsageError(f"there is no profile in {', '.join(f'`{path}`' for path in paths)}")
    report = run(files, settings=settings or ())
    if format is Format.JSON:
        out(report_json(report))
    elif report.findings:
        findings = report.findings
        out(concise(findings) if format is Format.CONCISE else render(findings, stream=sys.stdout))
    if format is not Format.JSON:
        say(summary(report))
    bad = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if strict else 0)
    if bad:
        raise typer.Exit(1)


def _profiles(path: str) -> Iterator[str]:
    """A file as it is; of a folder the profiles in it, sorted, hidden folders left out."""
    if path == "-" or not Path(path).is_dir():
        yield path
        return
    from specserve.profile.load import looks_like_profile
    from specserve.profile.source import MAX_BYTES, parse

    for file in sorted(Path(path).rglob("*.y*ml")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or file.suffix not in (".yaml", ".yml") or file.name.startswith("_") or not file.is_file():
            continue
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES)
        if looks_like_profile(parse(data, file=str(file))[0]):
            yield str(file)
