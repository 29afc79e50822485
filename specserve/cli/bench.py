"""`specserve bench`: whether speculation pays here, and how surely."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    ApiKeyEnv,
    Budget,
    Concurrency,
    DryRun,
    NoCheck,
    Output,
    Settings,
    Temperature,
    Workloads,
    flag,
    given_besides,
    text_option,
)
from specserve.errors import UsageError
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.measure.bench.plan import BenchRequest
    from specserve.measure.bench.result import Result


class BenchFormat(StrEnum):
    """How the result is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


Blocks = Annotated[
    int | None,
    typer.Option(
        "--blocks",
        min=2,
        max=1000,
        show_default=False,
        help="Measure each point (workload, load, temperature) this many times (default: 8).",
    ),
]
Launches = Annotated[
    int | None,
    typer.Option(
        "--launches",
        min=1,
        max=20,
        show_default=False,
        help="Start each server this many times (default: 1; 2 if only one fits at a time).",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=2,
        show_default=False,
        help="Stop each answer after this many tokens (default: the workload's own limit, or 64 on a CPU).",
    ),
]


def bench(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(metavar="PROFILE|URL|NAME", show_default=False, help="A profile or a running server."),
    ] = None,
    *,
    quick: Annotated[
        bool, flag("--quick", "Give a first answer in minutes: fewer prompts, 48 tokens each.")
    ] = False,
    workload: Workloads = None,
    concurrency: Concurrency = None,
    request_rate: Annotated[
        str | None,
        text_option(
            "LIST", "Send requests at random times, at these average rates per second.", "--request-rate"
        ),
    ] = None,
    temperature: Temperature = None,
    alternative: Annotated[
        list[str] | None,
        text_option(
            "NAME",
            (
                "Measure only this one of the profile's `alternatives` (named blocks of speculation); repeatable; "
                "`none` leaves all out (default: all are measured)."
            ),
            "--alternative",
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        text_option(
            "[LABEL=]PROFILE|URL|NAME", "Also compare this profile or running server; repeatable.", "--with"
        ),
    ] = None,
    blocks: Blocks = None,
    launches: Launches = None,
    budget: Budget = None,
    max_tokens: MaxTokens = None,
    output: Output = None,
    resume: Annotated[str | None, text_option("DIR", "Resume an interrupted run.", "--resume")] = None,
    show: Annotated[str | None, text_option("RUN", "Print the report of an earlier run.", "--show")] = None,
    dry_run: DryRun = False,
    strict: Annotated[
        bool, flag("--strict", "Also exit with 1 if a verdict or a limit of `expect` is undecided.")
    ] = False,
    format: Annotated[
        BenchFormat, typer.Option("--format", help="Output format; json is for scripts.")
    ] = BenchFormat.TEXT,
    settings: Settings = None,
    api_key_env: ApiKeyEnv = None,
    no_check: NoCheck = False,
) -> None:
    """Measure whether speculation pays here, and by how much.

    bench sends the same prompts to the profile's server and to the same server without speculation, in short blocks
    that take turns. The 95 % confidence interval of the speedup decides. PAYS: it lies above 1.03 (and the 99.5 %
    interval above 1). COSTS: it lies below 0.97 (and the 99.5 % interval below 1). NO DIFFERENCE: it lies between 0.97
    and 1.03. INCONCLUSIVE: anything else. The load generator is that of vLLM.

    Exit codes: 1 if a figure misses a limit of the profile's `expect` section, that is, if its whole confidence
    interval is on the wrong side; 2 if nothing could be measured; 130 if interrupted (--resume continues).

    \b
    specserve bench configs/demo.yaml --quick
    specserve bench big.yaml -w chat -w mine.jsonl -c 1,16,64 -t 0.7
    specserve bench http://10.0.0.7:8000 --with new=http://10.0.0.8:8000
    specserve bench --show RUN --format markdown
    """
    from specserve.measure.bench.plan import BenchRequest

    if show:
        _show(context, show, format=format)
        return
    if resume is None and profile is None:
        raise UsageError("no profile is given", hint="try `specserve bench configs/demo.yaml --quick`")
    if resume is not None and (output is not None or dry_run):
        raise UsageError("`--resume` cannot be combined with `--output` or `--dry-run`")
    request = BenchRequest(
        profile=profile,
        quick=quick,
        workloads=tuple(workload or ()),
        concurrency=concurrency,
        request_rate=request_rate,
        temperature=temperature,
        alternatives=None if alternative is None else tuple(alternative),
        others=tuple(with_ or ()),
        blocks=blocks,
        launches=launches,
        budget=budget,
        max_tokens=max_tokens,
        settings=tuple(settings or ()),
        api_key_env=api_key_env,
        check=not no_check,
    )
    if dry_run:
        from specserve.measure.bench.plan import obstacle, plan_bench, with_places
        from specserve.report.estimates import show_bench_plan

        request, notices = with_places(request), StderrNotices()
        plan = plan_bench(request, starts=False, notices=notices)
        show_bench_plan(plan, format=format.value, obstacle=obstacle(request, notices=notices))
    else:
        _run(request, output=output, resume=resume, strict=strict, format=format)


def _run(
    request: BenchRequest,
    *,
    output: str | None,
    resume: str | None,
    strict: bool,
    format: BenchFormat,
) -> None:
    from specserve.measure.bench.run import run_benchmark
    from specserve.measure.servers import Outlet
    from specserve.report.bench import rendered
    from specserve.report.estimates import BenchView

    outlet = Outlet(StderrNotices(), BenchView, _files)
    result, path = run_benchmark(request, output=output, resumed=resume, outlet=outlet)
    out(rendered(result, form=format.value))
    say(f"raw data, logs, result.json and report.html: {path}")
    if result.is_missed or (strict and result.is_open):
        raise typer.Exit(1)


def _files(result: Result) -> dict[str, str]:
    from specserve.report.bench import rendered

    return {"result.json": rendered(result, form="json"), "report.html": rendered(result, form="html")}


def _show(context: typer.Context, run: str, *, format: BenchFormat) -> None:
    """Print an earlier run. Raises UsageError for options of a measurement, FactError if there is no such run."""
    from specserve.measure.bench.result import read_result
    from specserve.report.bench import rendered

    others = given_besides(context, "show", "format")
    if others:
        raise UsageError("`--show` measures nothing", hint=f"leave `{others[0]}` out")
    out(rendered(read_result(Path(run)), form=format.value))
