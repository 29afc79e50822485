"""`specserve bench` and `tune`: whether speculation pays here, and with how many draft tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from specserve.cli import options
from specserve.cli.options import (
    argument,
    flag,
    number,
    option,
    refuse_alone,
    refuse_besides,
    refuse_together,
)
from specserve.errors import UsageError
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

BenchFormat = Literal["text", "json", "markdown", "html"]
_PROFILE = "A profile or a running server."
_RESUME = "Resume an interrupted run."
_SHOW = "Print the report of an earlier run."
_QUICK = "Give a first answer in minutes: fewer prompts, 48 tokens each."
_ALTERNATIVE = (
    "Measure only this one of the profile's `alternatives`; repeatable; `baseline` leaves all out"
    " (default: all are measured)."
)
_WITH = "Also compare this profile or running server; repeatable."
_RATE = "Send so many requests/s on average instead, at random times, such as 0.5,2."
_LAUNCHES = "Start each server this many times (default: 2; with --quick 1)."
_BUDGET = "Stop measuring after this long, not counting launches (default: 30m)."
_OUTPUT = "Write the run to this directory (default: one in the state folder)."
Launches = Annotated[int | None, number(_LAUNCHES, "--launches", 1, 20)]


def bench(
    context: typer.Context,
    profile: Annotated[str | None, argument("PROFILE|URL|NAME", _PROFILE)] = None,
    *,
    quick: Annotated[bool, flag("--quick", _QUICK)] = False,
    workload: options.Workloads = None,
    concurrency: options.Concurrency = None,
    request_rate: Annotated[str | None, option("LIST", _RATE, "--request-rate")] = None,
    temperature: options.Temperature = None,
    alternative: Annotated[list[str] | None, option("NAME", _ALTERNATIVE, "--alternative")] = None,
    with_: Annotated[list[str] | None, option("[LABEL=]PROFILE|URL|NAME", _WITH, "--with")] = None,
    launches: Launches = None,
    budget: Annotated[str | None, option("TIME", _BUDGET, "--budget")] = None,
    output: Annotated[str | None, option("DIR", _OUTPUT, "--output", "-o")] = None,
    resume: Annotated[str | None, option("DIR", _RESUME, "--resume")] = None,
    show: Annotated[str | None, option("RUN", _SHOW, "--show")] = None,
    dry_run: options.DryRun = False,
    format: Annotated[BenchFormat, typer.Option("--format", help=options.FORMAT)] = "text",
    settings: options.Settings = None,
) -> None:
    """Measure whether speculation pays here, and by how much.

    bench sends the same prompts to the profile's server and to the same server without speculation,
    in short blocks that take turns. The 95 % confidence interval of the speedup decides. PAYS: it
    lies above 1.03 (and the 99.5 % interval above 1). COSTS: it lies below 0.97 (and the 99.5 %
    interval below 1). NO DIFFERENCE: it lies between 0.97 and 1.03. INCONCLUSIVE: anything else.
    Each load is measured until its verdict is clear or the budget ends. At a --request-rate, the
    speedup is that of the median end-to-end latency.

    Exit codes: 1 if a figure misses a limit of the profile's `expect` section, that is, if its
    whole confidence interval is on the wrong side; 2 if nothing could be measured; 130 if
    interrupted (--resume continues).

    \b
    specserve bench configs/demo.yaml --quick
    specserve bench big.yaml -w chat -w mine.jsonl -c 1,16,64 -t 0.7
    specserve bench my.yaml --request-rate 0.5,2
    specserve bench http://10.0.0.7:8000 --with new=http://10.0.0.8:8000
    specserve bench --show RUN --format markdown
    """
    from specserve.measure.bench.plan import BenchRequest, plan_bench
    from specserve.measure.bench.result import read_result
    from specserve.measure.bench.run import run_benchmark
    from specserve.measure.servers import Outlet
    from specserve.report.bench import BenchView, bench_plan, rendered, result_files

    if show:
        refuse_besides(context, "--show", "show", "format")
        out(rendered(read_result(Path(show)), form=format))
        return
    if resume is None and profile is None:
        raise UsageError("no profile is given", hint="try `specserve bench PROFILE --quick`")
    hint = "at a request rate, as many requests run as have arrived"
    refuse_together(concurrency=concurrency, request_rate=request_rate, hint=hint)
    refuse_together(resume=resume, output=output)
    refuse_together(resume=resume, dry_run=dry_run)
    refuse_together(dry_run=dry_run, format=format != "text")
    request = BenchRequest(
        profile=profile,
        quick=quick,
        workloads=tuple(workload or ()),
        concurrency=concurrency,
        request_rate=request_rate,
        temperature=temperature,
        alternatives=None if alternative is None else tuple(alternative),
        others=tuple(with_ or ()),
        launches=launches,
        budget=budget,
        settings=tuple(settings or ()),
    )
    if dry_run:
        plan = plan_bench(request, starts=False, notices=StderrNotices())
        out(bench_plan(plan))
        return

    outlet = Outlet(StderrNotices(), BenchView, result_files)
    result, path = run_benchmark(request, output=output, resumed=resume, outlet=outlet)
    out(rendered(result, form=format))
    say(f"raw data, logs, result.json and report.html: {path}")
    if result.is_missed:
        raise typer.Exit(1)


_K_MAX = "Try up to this many draft tokens (default: 8, or the block of the draft head)."
_TUNE_BUDGET = "End after this long, launches included (default: 30m)."
_ESTIMATE = "Measure nothing; estimate for this accelerator (names: `doctor --accelerators`)."
_ACCEPTANCE = "With --estimate: the probability of a draft token, such as 0.7, or 3.6@4."
KMax = Annotated[int | None, number(_K_MAX, "--k-max", 1, 64)]
Budget = Annotated[str | None, option("TIME", _TUNE_BUDGET, "--budget")]
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
    from specserve.measure.servers import Outlet
    from specserve.measure.tune.plan import TuneRequest, plan_tune
    from specserve.measure.tune.run import run_tune, write_choice
    from specserve.report import bench as report
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
    refuse_together(dry_run=dry_run, format=as_json)
    notices = StderrNotices()
    plan = plan_tune(request, starts=not dry_run, notices=notices)
    if dry_run:
        out(report.plan_document(plan).text(sys.stdout))
        return
    result, path = run_tune(plan, outlet=Outlet(notices, report.BenchView, report.tune_files))
    out(json_document(result) if as_json else report.tune_document(result).text(sys.stdout))
    say(f"raw data, logs, result.json and report.html: {path}")
    if write:
        say(write_choice(profile, result))
