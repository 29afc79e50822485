"""`specserve tune`: the best number of draft tokens, method and schedule, from few launches."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Alternative,
    Concurrency,
    Devices,
    NoCheck,
    NoLock,
    Output,
    Settings,
    Temperature,
    Workloads,
)
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.measure.tune.plan import TuneRequest


class Format(StrEnum):
    """How the result is written."""

    TEXT = "text"
    JSON = "json"


class Objective(StrEnum):
    """What is to be best."""

    TPOT = "tpot"
    THROUGHPUT = "throughput"
    GOODPUT = "goodput"


class Runner(StrEnum):
    """vLLM's model runners."""

    V1 = "v1"
    V2 = "v2"


def tune(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="The profile.")],
    *,
    workload: Workloads = None,
    concurrency: Concurrency = None,
    temperature: Temperature = None,
    objective: Annotated[
        Objective | None,
        typer.Option(
            show_default=False,
            help="Default: goodput where `expect` limits TTFT or TPOT, else throughput.",
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", show_default=False, help="Another draft model; repeatable."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Another candidate: ngram, suffix, or one of the profile's `alternatives`; repeatable.",
        ),
    ] = None,
    runner: Annotated[
        Runner | None,
        typer.Option(
            show_default=False,
            help="Another candidate: the profile's own on vLLM's other model runner (CUDA).",
        ),
    ] = None,
    k_max: Annotated[
        int | None,
        typer.Option(
            "--k-max",
            min=1,
            max=64,
            show_default=False,
            help="Most draft tokens; default: 8, or the head's block.",
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(min=2, show_default=False, help="Of each workload, to choose by; default: 12."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=8, show_default=False, help="Of one answer; default: 256, 64 on a CPU."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default=False, help="Such as 20m: fewer prompts, then fewer launches."
        ),
    ] = None,
    max_launches: Annotated[
        int | None,
        typer.Option(min=2, show_default=False, help="Of servers; what matters least is left out."),
    ] = None,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Do not measure the choice on other prompts.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Put the choice into the profile; its comments stay.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="What keeps the speedup from more, and what would move it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be launched and sent.")] = False,
    output: Output = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew where an interrupted run could be gone on with.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of orders and sampling.")] = 0,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Measure nothing: reckon for an accelerator that is not here.")
    ] = False,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="[COUNTx]NAME", show_default=False, help="With --estimate: a name of `specserve gpus`."
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            metavar="CHANCE|LENGTH@K",
            show_default=False,
            help="With --estimate: chance of each draft token, given the one before; or the mean acceptance "
            "length that a server shows, with its K, such as 3.6@4.",
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="What goes to stdout.")] = Format.TEXT,
    settings: Settings = None,
    alternative: Alternative = None,
    devices: Devices = None,
    no_check: NoCheck = False,
    no_lock: NoLock = False,
) -> None:
    """Find how many draft tokens are best here, at each load.

    Or that none is best. One launch without speculation and one with K_max tell how long a step takes
    and, step by step, what was accepted: from that every smaller K is predicted.
    Where vLLM follows a schedule by batch size, several K are measured in one
    launch. The choice is then confirmed on prompts that it was not made with. An
    interrupted tune goes on when the same command is given again.

    With --estimate nothing is launched, and no vLLM needed: step times come from the models' sizes
    and the accelerator's bandwidth and FLOP/s; the chance of a draft token is yours to say.

    \b
    specserve tune configs/demo.yaml -w code -c 1,2,4,8
    specserve tune configs/demo.yaml -w code -t 0.7 --explain
    specserve tune configs/demo.yaml --budget 20m --write
    specserve tune configs/llama70b-8b.yaml --dry-run
    specserve tune my.yaml --estimate --accelerator H100-80GB --acceptance 0.7
    """
    from specserve.measure.tune.estimation import refuse_estimate_options
    from specserve.measure.tune.plan import TuneRequest

    asked = TuneRequest(
        profile=profile,
        workloads=tuple(workload or ()),
        concurrency=concurrency,
        temperature=temperature,
        objective=objective.value if objective else None,
        drafts=tuple(draft or ()),
        methods=tuple(method or ()),
        runner=runner.value if runner else None,
        most_tokens=k_max,
        prompts=prompts,
        max_tokens=max_tokens,
        budget=budget,
        most_launches=max_launches,
        confirm=not no_confirm,
        seed=seed,
        settings=tuple(settings or ()),
        alternative=alternative,
        devices=devices,
        check=not no_check,
        use_lock=not no_lock,
    )
    as_json = format is Format.JSON
    if estimate:
        others = {"output": output, "fresh": fresh, "dry-run": dry_run, "write": write, "explain": explain}
        _estimate(asked, machine=accelerator, chance=acceptance, others=others, as_json=as_json)
    else:
        refuse_estimate_options(accelerator=accelerator, acceptance=acceptance)
        run(asked, output=output, anew=fresh, dry_run=dry_run, write=write, explain=explain, as_json=as_json)


def _estimate(
    asked: TuneRequest,
    *,
    machine: str | None,
    chance: str | None,
    others: Mapping[str, object],
    as_json: bool,
) -> None:
    from specserve.measure.tune.estimation import estimate_request
    from specserve.report.tuneplan import estimate_json, estimate_text

    name, found = estimate_request(asked, machine=machine, chance=chance, others=others)
    out(estimate_json(found, name=name) if as_json else estimate_text(found, name=name, file=asked.profile))


def run(
    asked: TuneRequest,
    *,
    output: str | None,
    anew: bool,
    dry_run: bool,
    write: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Tune, print the result, and write it into the profile. Raises SpecserveError; what was measured stays."""
    from specserve.measure.tune.rundir import placed
    from specserve.measure.tune.session import Outlet, refuse_unrunnable, run_tune, unconfirmed
    from specserve.report.benchplan import BenchView
    from specserve.report.tune import as_json_text, text, tune_html

    notices = StderrNotices()
    refuse_unrunnable(asked, write=write)
    ready, found = placed(asked, output=output, anew=anew, starts=not dry_run, notices=notices)
    if dry_run:
        from specserve.report.tuneplan import plan_json, plan_text

        out((plan_json if as_json else plan_text)(ready, found))
        return
    outlet = Outlet(
        notices,
        BenchView,
        lambda result: {"result.json": as_json_text(result), "report.html": tune_html(result)},
    )
    result, path, failure = run_tune(ready, found, output=output, anew=anew, outlet=outlet)
    out(as_json_text(result) if as_json else text(result))
    say(f"raw data, logs, result.json and report.html: {path}")
    if failure is not None:
        raise unconfirmed(failure, anew=anew, write=write)
    if write:
        from specserve.measure.tune.write import write_choice

        say(write_choice(asked.profile, result, settings=asked.settings))
