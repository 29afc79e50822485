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
    format: Format = TextOrJson.TEXT,
) -> None:
    """List the published drafts of a target, with their sources.

    The list comes from a catalogue that ships with specserve: heads, draft models and layers of the target itself.
    Quantized copies of a target have its drafts. Each draft is judged by the rules that need no model.

    \b
    specserve drafts openai/gpt-oss-20b
    specserve drafts my.yaml --format json
    """
    from specserve.checks.published import judged_drafts, target_of
    from specserve.report.console import out
    from specserve.report.drafts import drafts_json, drafts_text

    model = target_of(target)
    show = drafts_json if format is TextOrJson.JSON else drafts_text
    out(show(model, judged_drafts(model)))
