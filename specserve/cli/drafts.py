"""`specserve drafts` and `distill`: the drafts that are published for a target, and one of your own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Assume, Format, TextOrJson, flag
from specserve.report.console import out, say

if TYPE_CHECKING:
    from specserve.measure.distill.plan import DistillPlan


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
    For a quantized copy of a target, the list shows the drafts of the original. What a profile asks for stands first.
    Each draft is judged by the rules that need no model; with --online, also by its files on the Hub.

    With --assume, each draft gets its memory on this machine and an estimated speedup at concurrency 1, 16 and 64.
    The estimate takes the acceptance that the authors report; without a report there is no estimate.

    \b
    specserve drafts openai/gpt-oss-20b
    specserve drafts meta-llama/Llama-3.3-70B-Instruct --assume 4xH100-80GB
    specserve drafts my.yaml --format json
    specserve drafts my.yaml --write nebius/EAGLE3-gpt-oss-20b
    """
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.measure.drafts import DraftOptions, find_drafts
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


_option = partial(typer.Option, show_default=False)


def distill(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile file; its draft is the start.")],
    *,
    traffic: Annotated[
        str,
        _option(
            "--traffic",
            metavar="LOG.jsonl",
            help="Requests to learn from: a request log, or prompts as JSON lines.",
        ),
    ],
    mix: Annotated[
        str | None,
        _option(
            "--mix",
            metavar="FILE.jsonl",
            help=(
                "Prompts of the traffic that the draft serves now: some go into the training, so that the draft does "
                "not forget this traffic, and the report says what it loses there."
            ),
        ),
    ] = None,
    train_for: Annotated[
        str,
        typer.Option("--train-for", metavar="TIME", help="Train for this long at most, such as 5m or 1h."),
    ] = "10m",
    max_tokens: Annotated[
        int | None,
        _option(
            "--max-tokens",
            min=16,
            help="Stop each answer after this many tokens (default: 256; 64 on a CPU).",
        ),
    ] = None,
    output: Annotated[
        str | None,
        _option(
            "--output", "-o", metavar="DIR", help="Keep answers, the new draft and the proof in this folder."
        ),
    ] = None,
    python: Annotated[
        str | None,
        _option(
            "--python", metavar="PATH", help="Train an EAGLE-3 head with this Python, which has speculators."
        ),
    ] = None,
    no_write: Annotated[bool, flag("--no-write", "Leave the profile as it is.")] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Split the traffic, print what would be done, and exit.")
    ] = False,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Train the profile's draft on your own traffic.

    The target answers the prompts of the traffic, and the draft learns from the answers. A fifth of the prompts is held
    out. On them, the new draft is simulated; if it is better, bench measures both drafts and verify looks for faults.
    Only then is the new draft written into the profile, as the alternative `distilled`. Nothing leaves this machine.

    The same command resumes a distillation that was interrupted. Draft models are trained here; EAGLE-3 heads too, if
    --python names a Python with the speculators library. For other heads (and without --python), distill makes the data
    for that library and prints its commands.

    Exit codes: 1 if the new draft is not better, or faulty; 2 if the traffic is too small or anything cannot be read.

    \b
    specserve distill configs/demo.yaml --traffic log.jsonl
    specserve distill my.yaml --traffic log.jsonl --mix old.jsonl --train-for 1h
    specserve distill my.yaml --traffic log.jsonl --dry-run
    """
    from specserve.measure.distill.plan import DistillRequest, plan_distillation
    from specserve.measure.values import seconds
    from specserve.report.drafts import distill_plan_text
    from specserve.report.findings import StderrNotices

    request = DistillRequest(
        profile=profile,
        traffic=traffic,
        mix=mix,
        train_for_s=seconds(train_for, option="--train-for", least_s=5.0),
        max_tokens=max_tokens,
        output=output,
        python=python,
    )
    plan = plan_distillation(request, notices=StderrNotices(), starts=not dry_run)
    if dry_run:
        out(distill_plan_text(plan))
        return
    _distil(plan, write=not no_write, is_json=format is TextOrJson.JSON)


def _distil(plan: DistillPlan, *, write: bool, is_json: bool) -> None:
    """Distil, keep result and card, and write a better draft into the profile. Raises SpecserveError."""
    from specserve.measure.distill.plan import open_place
    from specserve.measure.distill.run import prepare_head, run_distillation, write_alternative
    from specserve.report.drafts import (
        card_text,
        commands_text,
        distill_views,
        distilled_json,
        distilled_text,
    )
    from specserve.report.findings import StderrNotices

    if open_place(plan):
        say(f"resuming: {plan.place}")
    views = distill_views(StderrNotices())
    if plan.draft is None:
        out(commands_text(plan, prepare_head(plan, views=views)))
        return
    found = run_distillation(plan, views=views)
    if found.outcome == "better":
        found = write_alternative(plan, found) if write else found
        plan.write("draft/README.md", card_text(found))
    plan.write("result.json", distilled_json(found))
    out(distilled_json(found) if is_json else distilled_text(found))
    say(f"answers, the new draft, the benchmark and logs: {plan.place}")
    if found.outcome != "better":
        raise typer.Exit(1)
