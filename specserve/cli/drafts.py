"""`specserve drafts`: the published drafts of a target."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Assume, Format, TextOrJson, flag


def drafts(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET|PROFILE", help="Hub id or folder of a model, or a profile file."),
    ],
    *,
    assume: Assume = None,
    online: Annotated[
        bool, flag("--online", "Also ask the Hub: its drafts of the target, and the files of every draft.")
    ] = False,
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
    """List the ways to speculate for a target, with their sources.

    The list comes from a catalogue that ships with specserve: heads, draft models and layers of the target itself.
    Quantized copies of a target have its drafts. What a profile asks for stands first. Each draft is judged by the
    rules that need no model; with --online, also by its files on the Hub.

    With --assume, each draft gets its memory on this machine and an estimated speedup at 1, 16 and 64 requests at
    once. The estimate takes the acceptance that the authors report; without a report there is no estimate.

    \b
    specserve drafts openai/gpt-oss-20b
    specserve drafts meta-llama/Llama-3.3-70B-Instruct --assume 4xH100-80GB
    specserve drafts my.yaml --format json
    specserve drafts my.yaml --write nebius/EAGLE3-gpt-oss-20b
    """
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.measure.drafts import DraftOptions, find_drafts
    from specserve.report.console import out, say
    from specserve.report.drafts import drafts_json, drafts_text
    from specserve.report.findings import StderrNotices

    notices = StderrNotices()
    wanted = DraftOptions(machine_of(assume) if assume else None, online, notices.progress)
    if write:
        from specserve.measure.drafts import add_alternatives

        places = add_alternatives(target, write, wanted=wanted)
        notices.progress("")
        new = ", ".join(f"`{place.partition('.')[2]}`" for place, is_new in places.items() if is_new)
        if new:
            say(f"{target}: `alternatives` has {new}; `git diff` shows what changed")
        for place in (place for place, is_new in places.items() if not is_new):
            say(f"{target}: `{place}` is this draft already")
        return
    found = find_drafts(target, wanted=wanted)
    notices.progress("")
    out((drafts_json if format is TextOrJson.JSON else drafts_text)(found))
