"""`specserve bench`: whether speculation pays here, and how surely."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Concurrency,
    Devices,
    Locked,
    NoCheck,
    NoLock,
    Output,
    Settings,
    Temperature,
    Workloads,
)
from specserve.errors import FactError, UsageError
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.measure.bench.request import BenchRequest
    from specserve.measure.bench.result import Result


class Format(StrEnum):
    """How the result is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class PrefixCache(StrEnum):
    """Whether requests of a block may share prefixes."""

    PROFILE = "profile"
    OFF = "off"


def bench(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="PROFILE|URL|NAME",
            show_default=False,
            help="A profile: it is compared with the same server without speculation. Or a server that runs.",
        ),
    ] = None,
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first answer in minutes: 18 prompts, one at a time, short answers."),
    ] = False,
    workload: Workloads = None,
    concurrency: Concurrency = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            show_default=False,
            help="Requests/s that arrive at random; alone or beside --concurrency.",
        ),
    ] = None,
    temperature: Temperature = None,
    alternative: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Only this one of the profile's `alternatives`; repeatable, `none` for none. Default: all.",
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="[ARM=]PROFILE|URL|NAME",
            show_default=False,
            help="Another arm: a profile, or a server that runs; repeatable.",
        ),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=2, max=1000, show_default=False, help="Times that each point is measured; default: 8."
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=50,
            show_default=False,
            help="Launches of each arm; default: 1, or 2 where arms have to run one after another.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="Of measuring, such as 20m; launches come on top. Default: 30m.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            show_default=False,
            help="Of one answer; default: the workload's own, 64 on a CPU, 48 with --quick.",
        ),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=2, show_default=False, help="Of each workload; default: all, 25.")
    ] = None,
    prefix_cache: Annotated[
        PrefixCache, typer.Option(help="As the profile has it, or off.")
    ] = PrefixCache.PROFILE,
    seed: Annotated[int, typer.Option(min=0, help="Of orders, arrival times and sampling.")] = 0,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Answers of equal length. Makes their acceptance meaningless."),
    ] = False,
    gpu_hour_price: Annotated[
        float | None,
        typer.Option(
            min=0.0, show_default=False, help="Of one accelerator: gives the cost of a million output tokens."
        ),
    ] = None,
    output: Output = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="DIR", show_default=False, help="Go on with a run that was interrupted."),
    ] = None,
    include_prompts: Annotated[
        bool, typer.Option("--include-prompts", help="Keep prompts and answers in the run's directory.")
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            show_default=False,
            help="Write the report of a run that is there; measure nothing.",
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="OLD NEW", show_default=False, help="Two runs side by side; measure nothing."),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Also write the result without what is private, to be given away.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be launched and sent, and how long it takes.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 for what is not decided, too.")
    ] = False,
    format: Annotated[Format, typer.Option(help="What goes to stdout.")] = Format.TEXT,
    settings: Settings = None,
    devices: Devices = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Environment variable that holds the key of servers at a URL.",
        ),
    ] = None,
    no_check: NoCheck = False,
    locked: Locked = False,
    no_lock: NoLock = False,
) -> None:
    """Measure whether speculation pays here, and by how much.

    The profile against the same server without speculation, with a verdict and its interval.
    Servers are started and stopped; every arm gets the same prompts, in short blocks that take turns. PAYS: the 95 %
    interval of the speedup lies above 1.03; COSTS: below 0.97; NO DIFFERENCE: between; else INCONCLUSIVE, and what
    more is needed. vLLM's own load generator sends them, so figures compare with those of `vllm bench serve`.
    All of it stays in the run's directory, which an interrupted run is resumed from. Exit code 1: a promise of
    `expect` is missed by its whole interval; 2: it could not be done; 130: interrupted.

    \b
    specserve bench configs/demo.yaml --quick
    specserve bench big.yaml -w chat -w mine.jsonl -c 1,16,64 -t 0.7
    specserve bench http://10.0.0.7:8000 --with new=http://10.0.0.8:8000
    specserve bench --resume RUN --budget 1h
    specserve bench --compare OLD NEW
    """
    if show is not None or compare is not None:
        refuse_others(context, allowed={"show", "compare", "share", "format"})
        return shown(show, compare, share=share, format=format.value)
    from specserve.measure.bench.request import BenchRequest

    asked = BenchRequest(
        profile=profile,
        quick=quick,
        workloads=tuple(workload or ()),
        concurrency=concurrency,
        request_rate=request_rate,
        temperature=temperature,
        alternatives=None if alternative is None else tuple(alternative),
        others=tuple(with_ or ()),
        blocks=blocks,
        restarts=restarts,
        budget=budget,
        max_tokens=max_tokens,
        prompts=prompts,
        prefix_cache=prefix_cache.value,
        seed=seed,
        ignore_eos=ignore_eos,
        gpu_hour_price=gpu_hour_price,
        include_prompts=include_prompts,
        settings=tuple(settings or ()),
        devices=devices,
        api_key_env=api_key_env,
        check=not no_check,
        locked=locked,
        use_lock=not no_lock,
    )
    todo = _Todo(output=output, resume=resume, share=share, dry_run=dry_run)
    return _run(asked, todo, format=format.value, strict=strict)


@dataclass(frozen=True, slots=True)
class _Todo:
    """What is done beside the request itself."""

    output: str | None
    resume: str | None
    share: str | None
    dry_run: bool


def _run(asked: BenchRequest, todo: _Todo, *, format: str, strict: bool) -> None:
    """Measure, or show the plan. Raises SpecserveError, typer.Exit(1) for a promise that is missed."""
    from specserve.measure.bench.outcome import is_missed, is_open

    if todo.share is not None:
        refuse_taken(todo.share)
    if todo.resume is None and asked.profile is None:
        raise UsageError("no profile is given", hint="`specserve bench configs/demo.yaml --quick`")
    if todo.resume is None and todo.dry_run:
        _show_plan(asked, format=format)
        return
    result, path = _measured(asked, todo)
    if todo.share is not None:
        give(result, todo.share)
    write(result, format=format)
    say(f"raw data, logs, result.json and report.html: {path}")
    if is_missed(result) or (strict and is_open(result)):
        raise typer.Exit(1)


def _show_plan(asked: BenchRequest, *, format: str) -> None:
    from specserve.measure.bench.prepare import obstacle, prepared
    from specserve.measure.bench.request import with_places
    from specserve.report.benchplan import show

    asked, notices = with_places(asked), StderrNotices()
    ready = prepared(asked, starts=False, notices=notices)
    show(ready, format=format, obstacle=obstacle(asked, notices=notices))


def _measured(asked: BenchRequest, todo: _Todo) -> tuple[Result, Path]:
    """The result of a new run, or of one that is resumed, and its directory."""
    from specserve.measure.bench.benchmark import Outlet, refuse_changes, run_benchmark
    from specserve.measure.bench.result import result_text
    from specserve.report.bench import rendered
    from specserve.report.benchplan import BenchView

    if todo.resume is not None:
        refuse_changes(asked, others=todo.output is not None or todo.dry_run)

    def files(result: Result) -> dict[str, str]:
        return {"result.json": result_text(result), "report.html": rendered(result, form="html")}

    outlet = Outlet(StderrNotices(), BenchView, files)
    return run_benchmark(asked, output=todo.output, resume=todo.resume, outlet=outlet)


_ALONE = "`--show` and `--compare` measure nothing: one of them, and runs, is all they take"


def refuse_others(context: typer.Context, *, allowed: Collection[str]) -> None:
    """Raises UsageError where the command line gives another parameter: it would be passed over in silence."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise UsageError(_ALONE, hint=f"without `{parameter.opts[0]}`")


def shown(
    run: str | None,
    two: tuple[str, str] | None,
    *,
    share: str | None,
    format: str,
) -> None:
    """`--show` or `--compare`. Raises UsageError for both."""
    if (run is not None) == (two is not None):
        raise UsageError(_ALONE)
    if two is not None and share is not None:
        raise UsageError(
            "`--share` gives one result away, and `--compare` has two", hint="`--show RUN --share FILE`"
        )
    if two is not None:
        if format == Format.HTML:
            raise UsageError("`--compare` writes no HTML", hint="`--format markdown`, text or json")
        compare(two, format=format)
    elif run is not None:
        show(run, format=format, share=share)


def show(place: str, *, format: str, share: str | None) -> None:
    """A run's report once more. Raises FactError where there is none."""
    from specserve.measure.bench.result import read_result

    result = read_result(Path(place))
    if share is not None:
        give(result, share)
    write(result, format=format)


def write(result: Result, *, format: str) -> None:
    """The report to stdout."""
    from specserve.report.bench import rendered

    out(rendered(result, form=format))


def compare(places: tuple[str, str], *, format: str) -> None:
    """Two runs side by side. Raises FactError where one is none."""
    from specserve.measure.bench.comparison import compare as compared_runs
    from specserve.measure.bench.result import read_result
    from specserve.report.benchcompare import compared

    old, new = (read_result(Path(place)) for place in places)
    out(compared(compared_runs(old, new), form=format))


def give(result: Result, place: str) -> None:
    """Write what may be given to others. Raises UsageError where a file is there, FactError for another reason."""
    from specserve.measure.bench.sharing import text

    refuse_taken(place)
    try:
        with Path(place).open("x", encoding="utf-8") as file:
            file.write(text(result))
    except (OSError, ValueError) as error:
        raise FactError(f"cannot write `{place}`: {getattr(error, 'strerror', None) or error}") from error
    say(
        f"`{place}`: figures, versions and machine, no prompts, paths or addresses; look at it before you give it away"
    )


def refuse_taken(place: str) -> None:
    """Raises UsageError where something is there already: told before an hour of measuring, not after it."""
    if Path(place).exists():
        raise UsageError(f"`{place}` exists already", hint="`--share` writes a new file")
