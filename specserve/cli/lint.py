"""`specserve lint`: the static rules over files, folders and stdin."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.judge import Format, judge


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
    raise typer.Exit(judge(paths, format=format, strict=strict, settings=settings or ()))
