"""`specserve tune`: the best number of draft tokens, from few launches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specserve.cli import options
from specserve.cli.options import argument, flag, number, option, refuse_alone, refuse_besides
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

_K_MAX = "Try up to this many draft tokens (default: 8, or the block of the draft head)."
_BUDGET = "End after this long, launches included (default: 30m)."
_ESTIMATE = "Measure nothing; estimate for this accelerator (names: `doctor --accelerators`)."
_ACCEPTANCE = "With --estimate: the probability of a draft token, such as 0.7, or 3.6@4."
KMax = Annotated[int | None, number(_K_MAX, "--k-max", 1, 64)]
Budget = Annotated[str | None, option("TIME", _BUDGET, "--budget")]
Write = Annotated[bool, flag("--write", "Write the choice into the profile; its comments stay.")]
Estimate = Annotated[str | None, option("[COUNTx]NAME", _ESTIMATE, "--estimate")]
Acceptance = Annotated[str | None, option("CHANCE|LENGTH@K", _ACCEPTANCE, "--acceptance")]


def tune(
    context: typer.Context,
    profile: Annotated[str, argument("PROFILE", "Profile file.")],
    *,
    workload: options.Workloads = None,
    concurrency: options.Concurrency = None,
    temperature: options.Temperature = None,
    alternative: options.Alternative = None,
    k_max: KMax = None,
    budget: Budget = None,
    write: Write = False,
    dry_run: options.DryRun = False,
    estimate: Estimate = None,
    acceptance: Acceptance = None,
    format: options.Format = "text",
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
    from specserve.measure.servers import Outlet
    from specserve.measure.tune.plan import TuneRequest, plan_tune
    from specserve.measure.tune.run import run_tune, write_choice
    from specserve.report import tune as report
    from specserve.report.bench import BenchView
    from specserve.report.text import json_document

    request = TuneRequest(
        profile=profile,
        workloads=tuple(workload or ()),
        concurrency=concurrency,
        temperature=temperature,
        budget=budget,
        alternative=alternative,
        most_tokens=k_max,
    )
    as_json = format == "json"
    if estimate is not None:
        from specserve.measure.tune.estimate import estimate_tune

        taken = ("profile", "estimate", "acceptance", "concurrency", "k_max", "format")
        refuse_besides(context, "--estimate", *taken)
        guess = estimate_tune(request, estimate, acceptance)
        out(json_document(guess) if as_json else report.estimate_text(guess))
        return
    hint = "add `--estimate NAME`, or leave it out: a tune measures the acceptance"
    refuse_alone("--estimate", False, hint=hint, acceptance=acceptance)
    if profile == "-":
        raise UsageError("`tune` cannot read a profile from stdin", hint="name a file")
    if write and not Path(profile).is_file():
        raise UsageError(f"`--write` can only change a profile file, and `{profile}` is no file")
    options.refuse_together(dry_run=dry_run, format=as_json)
    notices = StderrNotices()
    plan = plan_tune(request, starts=not dry_run, notices=notices)
    if dry_run:
        out(report.plan_document(plan).text(sys.stdout))
        return
    result, path = run_tune(plan, outlet=Outlet(notices, BenchView, report.result_files))
    out(json_document(result) if as_json else report.tune_document(result).text(sys.stdout))
    say(f"raw data, logs, result.json and report.html: {path}")
    if write:
        say(write_choice(profile, result))
