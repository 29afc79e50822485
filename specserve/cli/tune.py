"""`specserve tune`: the best number of draft tokens, from few launches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Alternative,
    Concurrency,
    DryRun,
    Format,
    Temperature,
    TextOrJson,
    Workloads,
    flag,
    given_besides,
    text_option,
)
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.measure.tune.plan import TuneRequest


def tune(
    context: typer.Context,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile file.")],
    *,
    workload: Workloads = None,
    concurrency: Concurrency = None,
    temperature: Temperature = None,
    alternative: Alternative = None,
    k_max: Annotated[
        int | None,
        typer.Option(
            "--k-max",
            min=1,
            max=64,
            show_default=False,
            help="Try up to this many draft tokens (default: 8, or the block of the draft head).",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        text_option("TIME", "End after this long, launches included (default: 30m).", "--budget"),
    ] = None,
    write: Annotated[bool, flag("--write", "Write the choice into the profile; its comments stay.")] = False,
    dry_run: DryRun = False,
    estimate: Annotated[
        str | None,
        text_option(
            "[COUNTx]NAME",
            "Measure nothing; estimate for this accelerator (names: `doctor --accelerators`).",
            "--estimate",
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        text_option(
            "CHANCE|LENGTH@K",
            "With --estimate: the probability of a draft token, such as 0.7, or 3.6@4.",
            "--acceptance",
        ),
    ] = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Find how many draft tokens are best here, or that speculation does not pay.

    tune launches the server without speculation and with the largest K, computes every smaller K
    from these two, and launches the best one, too: the choice rests on what was measured, in turns.
    The same command resumes a tune that was interrupted, or whose budget ended.

    \b
    specserve tune configs/demo.yaml -w code -c 1,4
    specserve tune configs/demo.yaml --budget 5m --write
    specserve tune my.yaml --estimate H100-80GB --acceptance 0.7
    """
    from specserve.errors import UsageError
    from specserve.measure.tune.plan import TuneRequest

    request = TuneRequest(
        profile, tuple(workload or ()), concurrency, temperature, alternative, k_max, budget
    )
    as_json = format == TextOrJson.JSON
    if estimate is not None:
        from specserve.measure.tune.estimate import estimate_tune
        from specserve.report.estimates import estimate_text
        from specserve.report.text import json_document, json_values

        taken = ("profile", "estimate", "acceptance", "concurrency", "k_max", "format")
        if useless := given_besides(context, *taken):
            raise UsageError("`--estimate` measures nothing", hint=f"leave `{useless[0]}` out")
        found = estimate_tune(request, accelerator=estimate, acceptance=acceptance)
        out(json_document(json_values(found, digits=6)) if as_json else estimate_text(found))
        return
    if acceptance is not None:
        hint = "add `--estimate NAME`, or leave it out: a tune measures the acceptance"
        raise UsageError("`--acceptance` needs `--estimate`", hint=hint)
    if profile == "-":
        raise UsageError("`tune` cannot read a profile from stdin", hint="name a file")
    _measure(request, dry_run=dry_run, write=write, as_json=as_json)


def _measure(request: TuneRequest, *, dry_run: bool, write: bool, as_json: bool) -> None:
    from specserve.measure.servers import Outlet
    from specserve.measure.tune.plan import plan_tune
    from specserve.measure.tune.result import refuse_unwritable, write_choice
    from specserve.measure.tune.run import run_tune
    from specserve.report import tune as report
    from specserve.report.estimates import BenchView
    from specserve.report.page import html_page

    notices = StderrNotices()
    if write:
        refuse_unwritable(request.profile)
    plan = plan_tune(request, starts=not dry_run, notices=notices)
    if dry_run:
        out(report.plan_json(plan) if as_json else report.plan_document(plan).text(sys.stdout))
        return
    outlet = Outlet(
        notices,
        BenchView,
        lambda result: {
            "result.json": report.result_json(result),
            "report.html": html_page(report.tune_document(result)),
        },
    )
    result, path = run_tune(plan, outlet=outlet)
    out(report.result_json(result) if as_json else report.tune_document(result).text(sys.stdout))
    say(f"raw data, logs, result.json and report.html: {path}")
    if write:
        say(write_choice(request.profile, result))
