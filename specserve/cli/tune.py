"""`specserve tune`: the best number of draft tokens, method and schedule, from few launches."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specserve.cli.options import Concurrency, Output, Settings, Temperature, Workloads, given_besides
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.measure.tune.plan import TuneRequest

_option = partial(typer.Option, show_default=False)


def tune(
    context: typer.Context,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile file.")],
    *,
    workload: Workloads = None,
    concurrency: Concurrency = None,
    temperature: Temperature = None,
    objective: Annotated[
        Literal["tpot", "throughput", "goodput"] | None,
        _option(
            "--objective",
            help="What to optimise (default: goodput if `expect` limits TTFT or TPOT, else throughput).",
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        _option(
            "--candidate",
            metavar="NAME",
            help="Also try ngram, suffix, one of the profile's `alternatives`, or this draft model; repeatable.",
        ),
    ] = None,
    k_max: Annotated[
        int | None,
        _option(
            "--k-max",
            min=1,
            max=64,
            help="Try up to this many draft tokens (default: 8, or the block size of the draft head).",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        _option(
            "--max-tokens", min=8, help="Stop each answer after this many tokens (default: 256; 64 on a CPU)."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        _option(
            "--budget",
            metavar="TIME",
            help=(
                "Finish in about this time, launches included (such as 20m): tune drops prompts first, then candidates."
            ),
        ),
    ] = None,
    no_confirm: Annotated[
        bool, _option("--no-confirm", help="Do not confirm the choice on other prompts.")
    ] = False,
    write: Annotated[
        bool, _option("--write", help="Write the choice into the profile; its comments stay.")
    ] = False,
    dry_run: Annotated[
        bool, _option("--dry-run", help="Print what would be launched and sent, and exit.")
    ] = False,
    output: Output = None,
    estimate: Annotated[
        str | None,
        _option(
            "--estimate",
            metavar="[COUNTx]NAME",
            help="Measure nothing; estimate for this accelerator (`specserve doctor --accelerators` lists the names).",
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        _option(
            "--acceptance",
            metavar="CHANCE|LENGTH@K",
            help=(
                "With --estimate: probability that a draft token is accepted if the one before it was, such as "
                "0.7; or a measured mean acceptance length with its K, such as 3.6@4."
            ),
        ),
    ] = None,
    format: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Output format; json is for scripts.")
    ] = "text",
    settings: Settings = None,
) -> None:
    """Find how many draft tokens are best here, at each load.

    The answer can also be that speculation does not pay. tune launches the server twice, without speculation and with
    the largest K. It measures how long a step takes and how many draft tokens are accepted, and predicts every smaller
    K from that. If vLLM can change K with the batch size, one launch measures several K. Other prompts then confirm the
    choice. The same command resumes a tune that was interrupted; `-o` with another folder starts over.

    With --estimate, tune launches nothing and needs no vLLM. It computes step times from the models' sizes and the
    accelerator's bandwidth and FLOP/s; you supply the acceptance with --acceptance.

    \b
    specserve tune configs/demo.yaml -w code -c 1,2,4,8
    specserve tune configs/demo.yaml -w code -t 0.7 --candidate ngram
    specserve tune configs/demo.yaml --budget 20m --write
    specserve tune configs/llama70b-8b.yaml --dry-run
    specserve tune my.yaml --estimate H100-80GB --acceptance 0.7
    """
    from specserve.errors import UsageError
    from specserve.measure.tune.plan import TuneRequest

    request = TuneRequest(
        profile=profile,
        workloads=tuple(workload or ()),
        concurrency=concurrency,
        temperature=temperature,
        objective=objective,
        candidates=tuple(candidate or ()),
        most_tokens=k_max,
        max_tokens=max_tokens,
        budget=budget,
        confirm=not no_confirm,
        settings=tuple(settings or ()),
    )
    as_json = format == "json"
    if profile == "-" and estimate is None:
        raise UsageError(
            "`tune` cannot read a profile from stdin because the run could not be resumed", hint="name a file"
        )
    if estimate is not None:
        _estimate(context, request, accelerator=estimate, acceptance=acceptance, as_json=as_json)
        return
    if acceptance is not None:
        raise UsageError(
            "`--acceptance` needs `--estimate`",
            hint="add `--estimate NAME`, or leave it out: a tune measures the acceptance itself",
        )
    run(request, output=output, dry_run=dry_run, write=write, as_json=as_json)


def _estimate(
    context: typer.Context, request: TuneRequest, *, accelerator: str, acceptance: str | None, as_json: bool
) -> None:
    from specserve.errors import UsageError
    from specserve.measure.tune.estimate import estimate_tune
    from specserve.report.estimates import estimate_text
    from specserve.report.text import json_document, json_values

    taken = ("profile", "estimate", "acceptance", "concurrency", "k_max", "settings", "format")
    if useless := given_besides(context, *taken):
        raise UsageError("`--estimate` measures nothing", hint=f"leave `{useless[0]}` out")
    found = estimate_tune(request, accelerator=accelerator, acceptance=acceptance)
    out(json_document(json_values(found, digits=6)) if as_json else estimate_text(found))


def run(request: TuneRequest, *, output: str | None, dry_run: bool, write: bool, as_json: bool) -> None:
    """Tune, print the result, and write it into the profile. Raises SpecserveError; what was measured stays."""
    from specserve.measure.servers import Outlet
    from specserve.measure.tune.candidates import plan_tune
    from specserve.measure.tune.earlier import find_run
    from specserve.measure.tune.result import refuse_unwritable, write_choice
    from specserve.measure.tune.run import run_tune, unconfirmed
    from specserve.report.estimates import BenchView
    from specserve.report.page import html_page
    from specserve.report.text import json_document
    from specserve.report.tune import plan_content, plan_text, result_json, tune_document

    notices = StderrNotices()
    if write:
        refuse_unwritable(request.profile, settings=request.settings)
    plan = plan_tune(request, starts=not dry_run, notices=notices)
    found = find_run(plan, output)
    if dry_run:
        out(json_document(plan_content(plan, found)) if as_json else plan_text(plan, found))
        return
    outlet = Outlet(
        notices,
        BenchView,
        lambda result: {"result.json": result_json(result), "report.html": html_page(tune_document(result))},
    )
    result, path, failure = run_tune(plan, found, output=output, outlet=outlet)
    out(result_json(result) if as_json else tune_document(result).text(sys.stdout))
    say(f"raw data, logs, result.json and report.html: {path}")
    if failure is not None:
        raise unconfirmed(failure, write=write)
    if write:
        say(write_choice(request.profile, result, settings=request.settings))
