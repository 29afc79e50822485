"""`specserve lint`: the static rules over files, folders, globs and stdin."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.judge import FindingsFormat, judge
from specserve.cli.options import Settings, flag, text_option


def lint(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…",
            help="Profile files, folders, quoted globs, `-` for stdin, or `--` followed by a vLLM command.",
        ),
    ],
    *,
    format: Annotated[
        FindingsFormat | None,
        typer.Option(
            help="Output format (default: text; in GitHub Actions: github).",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, flag("--strict", "Also fail for warnings.")] = False,
    exit_zero: Annotated[
        bool, flag("--exit-zero", "Exit with 0 even if there are findings, for example before an upload.")
    ] = False,
    pick: Annotated[bool, flag("--pick", "Skip named files that are not profiles, as in folders.")] = False,
    stdin_filename: Annotated[
        str | None,
        text_option("FILE", "Name to show for stdin; relative paths in the profile start from its folder."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Judge profiles on their own: no network, no GPU, no vLLM.

    lint is fast enough for CI and for every commit. In a folder, every *.yaml and *.yml file with a top-level `target`
    or `extends` is a profile. A file whose name starts with `_` is a base: it is judged through the profiles that
    extend it. A file that you name always counts as a profile, unless you give --pick. Exit code 1: errors were found.

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
