"""`specserve drafts`: the published drafts of a target."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Format, TextOrJson


def drafts(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET|PROFILE", help="Hub id or folder of a model, or a profile file."),
    ],
    *,
    write: Annotated[
        list[str] | None,
        typer.Option(
            "--write",
            metavar="DRAFT",
            help="Write this draft into the profile as an alternative; repeatable.",
        ),
    ] = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """List the published drafts of a target, with their sources.

    The list comes from a catalogue that ships with specserve: heads, draft models and layers of the target itself.
    Quantized copies of a target have its drafts. What a profile asks for stands first. Each draft is judged by the
    rules that need no model.

    \b
    specserve drafts openai/gpt-oss-20b
    specserve drafts my.yaml --format json
    specserve drafts my.yaml --write nebius/EAGLE3-gpt-oss-20b
    """
    from specserve.checks.published import add_alternatives, judged_drafts, target_of
    from specserve.report.console import out, say
    from specserve.report.drafts import drafts_json, drafts_text

    if write:
        names = add_alternatives(target, write)
        say(
            f"{target}: `alternatives` has {', '.join(f'`{name}`' for name in names)}; `git diff` shows what changed"
        )
        return
    show = drafts_json if format is TextOrJson.JSON else drafts_text
    out(show(target_of(target), judged_drafts(target)))
