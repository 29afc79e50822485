"""`specserve bench`: whether speculation pays here, and how surely."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from specserve.cli.benchshow import refuse_others, shown
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
    BOTH = "both"


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
        PrefixCache, typer.Option(help="As the profile has it, off, or a column for each.")
    ] = PrefixCache.PROFILE,
    seed: Annotated[int, typer.Option(min=0, help="Of orders, arrival times and sampling.")] = 0,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Answers of equal length. Makes their acceptance meaningless."),
    ] = False,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="Start one server after another, even where all fit.")
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
    from specserve.cli import benching, benchprepare

    asked = benchprepare.Asked(
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
        one_at_a_time=one_at_a_time,
        gpu_hour_price=gpu_hour_price,
        include_prompts=include_prompts,
        settings=tuple(settings or ()),
        devices=devices,
        api_key_env=api_key_env,
        check=not no_check,
        locked=locked,
        use_lock=not no_lock,
    )
    ending = benching.Ending(format.value, strict, share)
    return benching.run(asked, output=output, resume=resume, dry_run=dry_run, ending=ending)
