"""One benchmark for a command: planned, run in its directory, resumed, told as it goes, gated at the end."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specserve.cli.benchprepare import BUDGET, Asked, Prepared, new_directory, obstacle, prepared, with_places
from specserve.cli.benchshow import give, refuse_taken, write
from specserve.errors import FactError, Interrupted, SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm
    from specserve.measure.bench.result import Result
    from specserve.measure.bench.run import Bench
    from specserve.measure.bench.rundir import RunDirectory


@dataclass(frozen=True, slots=True)
class Ending:
    """What is done with the result."""

    format: str
    strict: bool = False
    share: str | None = None
    """A file for what may be given away."""


def run(asked: Asked, *, output: str | None, resume: str | None, dry_run: bool, ending: Ending) -> None:
    """Do what was asked for. Raises SpecserveError, typer.Exit(1) for a promise that is missed."""
    if ending.share is not None:
        refuse_taken(ending.share)
    from specserve.cli.bencharms import refuse_silent

    if resume is not None:
        _resumed(asked, resume, output=output, dry_run=dry_run, ending=ending)
        return
    if asked.profile is None:
        raise UsageError("no profile is given", hint="`specserve bench configs/demo.yaml --quick`")
    asked = with_places(asked)
    if dry_run:
        from specserve.report.benchplan import show

        show(prepared(asked, starts=False), format=ending.format, obstacle=obstacle(asked))
        return
    ready = prepared(asked)
    refuse_silent(ready.wish.arms)
    _run(ready, new_directory(ready, output), ending=ending)


def _resumed(asked: Asked, place: str, *, output: str | None, dry_run: bool, ending: Ending) -> None:
    """Go on with a run as it was asked for; other options would make it another one."""
    from specserve.measure.bench.run import is_measured
    from specserve.measure.bench.rundir import resume
    from specserve.report.console import say

    changed = [
        field.name
        for field in dataclasses.fields(asked)
        if getattr(asked, field.name) != field.default and field.name not in ("budget", "gpu_hour_price")
    ]
    if changed or output is not None or dry_run:
        raise UsageError(
            "`--resume` goes on with a run as it was asked for, and takes no options of what to run",
            hint="only `--budget`, `--gpu-hour-price` and what is done with the result may be given",
        )
    directory = resume(Path(place))
    try:
        kept = _read_asked(directory.content["asked"])
        at_once = int(directory.content["at_once"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"`{place}` cannot be resumed: its run.json is not as specserve writes it"
        ) from error
    kept = dataclasses.replace(
        kept,
        budget=asked.budget or kept.budget,
        gpu_hour_price=asked.gpu_hour_price if asked.gpu_hour_price is not None else kept.gpu_hour_price,
    )
    ready = prepared(kept, at_once=at_once)
    marks = {arm.name: arm.plan.fingerprint for arm in ready.wish.arms if arm.plan is not None}
    before = {arm["name"]: arm["fingerprint"] for arm in directory.content["arms"] if "fingerprint" in arm}
    if marks != before:
        other = next(name for name in {**marks, **before} if marks.get(name) != before.get(name))
        raise UsageError(
            f"`{other}` is not what it was when the run began",
            hint="start anew: what was measured cannot be compared with it",
        )
    if not is_measured(ready.wish, directory.passes()):
        _refuse_other_vllm(ready, directory)
        return _run(ready, directory, ending=ending)
    say("all of it is measured already: nothing is started")
    told = _complete(directory.path)
    if told is None or asked.gpu_hour_price is not None:
        return _run(ready, directory, ending=ending)
    with directory:
        return _end(told, directory.path, ending=ending)


def _refuse_other_vllm(ready: Prepared, directory: RunDirectory) -> None:
    """Raises UsageError where blocks of another vLLM are there: they cannot be compared with what would be added."""
    launches = {arm["name"]: arm.get("launch", {}) for arm in directory.content["arms"]}
    for arm in ready.wish.arms:
        before = launches.get(arm.name, {}).get("vllm")
        if arm.plan is not None and before not in (None, arm.plan.vllm):
            raise UsageError(
                f"vLLM {arm.plan.vllm} is installed, and the run began with {before}",
                hint=f"install {before} again, or start anew: what was measured cannot be compared",
            )


def _complete(path: Path) -> Result | None:
    """The result that is there, where it is of everything; None where it must be reckoned anew."""
    from specserve.measure.bench.result import RESULT_FILE, read_result

    if not (path / RESULT_FILE).is_file():
        return None
    try:
        found = read_result(path)
    except FactError:  # cut off, or of another version: what was measured is there all the same
        return None
    return found if found.is_complete else None


def _read_asked(content: dict[str, Any]) -> Asked:
    """Back from run.json. Raises TypeError where it has other fields."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return Asked(**fields)


def _run(ready: Prepared, directory: RunDirectory, *, ending: Ending) -> None:
    from specserve.measure.bench.run import Bench
    from specserve.report.benchplan import BenchView
    from specserve.serve.signals import stop_on_signals

    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(directory)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(BenchView())
        view.begin(ready, directory.path)
        bench = Bench(ready.wish, directory, view, stop)
        try:
            bench.run()
        except SpecserveError as error:
            _kept(ready, bench, began, error)
            raise
        result = _write(ready, bench, began, is_complete=True)
    _end(result, directory.path, ending=ending)


def _end(result: Result, path: Path, *, ending: Ending) -> None:
    """The report, and the exit code that it stands for."""
    from specserve.measure.bench.outcome import is_missed, is_open
    from specserve.report.console import say

    if ending.share is not None:
        give(result, ending.share)
    write(result, format=ending.format)
    say(f"raw data, logs, result.json and report.html: {path}")
    if is_missed(result) or (ending.strict and is_open(result)):
        raise typer.Exit(1)


def _kept(ready: Prepared, bench: Bench, began: float, error: SpecserveError) -> None:
    """What was measured stays; the error says how to go on."""
    from specserve.report.console import say

    path = bench.directory.path
    if bench.passes and _complete(path) is None:
        _write(ready, bench, began, is_complete=False)
    else:  # a result of fewer blocks that is whole says more than one of some points
        _spend(bench.directory, began)
    if isinstance(error, Interrupted) or error.hint is not None:
        say(f"{len(bench.passes)} measured blocks are kept: `specserve bench --resume {path}` goes on")
    else:
        error.hint = f"`specserve bench --resume {path}` goes on with what was measured"


def _write(ready: Prepared, bench: Bench, began: float, *, is_complete: bool) -> Result:
    from specserve.measure.bench.outcome import outcome
    from specserve.measure.bench.result import result_text
    from specserve.report.benchhtml import html_report

    directory = bench.directory
    _spend(directory, began)
    result = outcome(_basis(ready, bench, is_complete=is_complete), bench.passes)
    directory.write("result.json", result_text(result))
    directory.write("report.html", html_report(result))
    return result


def _spend(directory: RunDirectory, began: float) -> None:
    """Add the time since `began` to that of earlier sessions."""
    directory.update(spent_s=directory.content.get("spent_s", 0.0) + time.monotonic() - began)


def _basis(ready: Prepared, bench: Bench, *, is_complete: bool) -> Any:
    from specserve.measure.bench.arms import host, versions
    from specserve.measure.bench.outcome import Basis
    from specserve.measure.workloads.load import info

    content = bench.directory.content
    platform = next((arm.plan.platform for arm in ready.wish.arms if arm.plan is not None), None)
    found = dict(content.get("versions") or versions())
    if platform is None:
        found.pop("vllm", None)  # which one answers at a URL nobody knows
    return Basis(
        name=ready.name,
        profile=ready.profile,
        arms=_as_begun(ready.wish.arms, content),
        points=ready.wish.points,
        promised_at=ready.promised_at,
        launches=ready.launches,
        created=content["created"],
        duration_s=content["spent_s"],
        workloads=tuple(info(workload) for workload in bench.workloads.values()),
        versions={**found, **bench.versions},
        host=content.get("host") or host(platform_of_arms=platform),
        settings=_settings(ready, bench),
        notes=(*bench.notes, *_notes(ready, bench)),
        is_complete=is_complete,
        price_per_gpu_hour=ready.asked.gpu_hour_price,
        models=bench.models,
    )


def _as_begun(arms: tuple[Arm, ...], content: dict[str, Any]) -> tuple[Arm, ...]:
    """The arms with what was a folder when the run began: seen from elsewhere `team/model` may look like the Hub's."""
    local = {arm["name"]: tuple(arm.get("local_models", ())) for arm in content["arms"]}
    return tuple(
        dataclasses.replace(
            arm, local_models=tuple(dict.fromkeys((*arm.local_models, *local.get(arm.name, ()))))
        )
        for arm in arms
    )


def _settings(ready: Prepared, bench: Bench) -> dict[str, str]:
    wish = ready.wish
    return {
        "blocks": str(wish.sizes.blocks),
        "launches": str(ready.launches),
        "arms at once": str(ready.fit.at_once),
        "max_tokens": str(wish.max_tokens or "by workload"),
        "seed": str(wish.sizes.seed),
        "budget": ready.asked.budget or BUDGET,
        "prefix cache": ready.asked.prefix_cache,
        "ignore_eos": "yes" if wish.ignore_eos else "no",
        "load generator": "vllm.benchmarks.serve, streaming",
    }


def _notes(ready: Prepared, bench: Bench) -> list[str]:
    found = []
    if bench.is_cut:
        found.append(f"the budget of {ready.asked.budget or BUDGET} ended it before all blocks were measured")
    if ready.fit.at_once < len(ready.wish.arms):
        found.append(
            f"arms ran one after another ({ready.fit.why}): a drift of the machine is in the speedups"
        )
    elif ready.fit.slots:
        found.append(
            "arms ran at the same time on different GPUs of one kind, one of them under load at a time"
        )
    times = int(bench.directory.content.get("resumed", 0))
    if times:
        often = "once" if times == 1 else f"{times} times"
        anew = any(arm.plan is not None for arm in ready.wish.arms)
        found.append(f"the run was resumed {often}" + (": its servers were started anew" if anew else ""))
    return found
