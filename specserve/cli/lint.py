"""`specserve lint`: the static rules over files, folders, globs and stdin."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.judge import FindingsFormat, judge
from specserve.cli.options import Settings


def lint(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…", help="Profiles, folders of them, globs in quotes; `-` is stdin; or -- COMMAND."
        ),
    ],
    *,
    format: Annotated[
        FindingsFormat | None,
        typer.Option(
            help="How findings are written; default: text, and github in a job of GitHub Actions.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Findings do not fail, such as before an upload.")
    ] = False,
    pick: Annotated[
        bool, typer.Option("--pick", help="Pass over named files that are no profiles, as in folders.")
    ] = False,
    stdin_filename: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False, help="What `-` is called, and where its paths begin."
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Judge profiles by themselves: no network, no GPU, no vLLM. For CI and before every launch.

    In a folder, every *.yaml and *.yml with a top-level `target` or `extends` is a profile; a name that
    starts with `_` marks a base, judged through the profiles that extend it. A file that is named is one in
    any case, unless --pick is given. Exit code 1: errors were found.

    \b
    specserve lint configs/
    specserve lint 'deploy/**/*.yaml' --format sarif > specserve.sarif
    specserve lint my.yaml --format json
    specserve lint -- vllm serve org/model --speculative-config '{…}'
    """
    code = judge(
        paths,
        format=format,
        strict=strict,
        exit_zero=exit_zero,
        pick=pick,
        stdin_filename=stdin_filename,
        settings=settings or (),
    )
    raise typer.Exit(code)
