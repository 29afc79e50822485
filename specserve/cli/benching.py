"""One benchmark for a command: planned, run in its directory, resumed, told as it goes, gated at the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specserve.cli.benchshow import give, refuse_taken, write
from specserve.errors import Interrupted, SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm
    from specserve.measure.bench.fit import Fit
    from specserve.measure.bench.result import Point, Result
    from specserve.measure.bench.run import Bench, Wish
    from specserve.measure.bench.rundir import RunDirectory
    from specserve.profile.schema import Profile

_QUICK = {"prompts": 18, "max_tokens": 48, "blocks": 6}
_BLOCKS, _CPU_TOKENS, _BUDGET = 8, 64, "30m"
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says, as `run.json` keeps it."""

    profile: str | None = None
    quick: bool = False
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    request_rate: str | None = None
    temperature: str | None = None
    alternatives: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    blocks: int | None = None
    restarts: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    prompts: int | None = None
    prefix_cache: str = "profile"
    seed: int = 0
    ignore_eos: bool = False
    one_at_a_time: bool = False
    gpu_hour_price: float | None = None
    include_prompts: bool = False
    settings: tuple[str, ...] = ()
    devices: str | None = None
    api_key_env: str | None = None
    check: bool = True
    locked: bool = False
    use_lock: bool = True


@dataclass(frozen=True, slots=True)
class Ending:
    """What is done with the result."""

    format: str
    strict: bool = False
    share: str | None = None
    """A file for what may be given away."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be run."""

    asked: Asked
    profile: Profile | None
    wish: Wish
    fit: Fit
    promised_at: tuple[Point, ...]
    launches: int
    prompts: Mapping[str, int]
    """How many each workload has."""

    @property
    def name(self) -> str:
        """Of the benchmark."""
        return self.profile.name if self.profile is not None else self.wish.arms[0].name


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
    asked = _with_places(asked)
    if dry_run:
        from specserve.report.benchplan import show

        show(prepared(asked, starts=False), format=ending.format)
        return
    ready = prepared(asked)
    refuse_silent(ready.wish.arms)
    _run(ready, _new_directory(ready, output), ending=ending)


def prepared(asked: Asked, *, starts: bool = True, at_once: int | None = None) -> Prepared:
    """Arms, points and sessions. `at_once`: as many arms as a run that is resumed had at a time."""
    from specserve.cli.bencharms import arms_of
    from specserve.cli.benchpoints import points_of, prompts_of, sources
    from specserve.cli.durations import seconds
    from specserve.measure.bench.arms import sessions
    from specserve.measure.bench.fit import fit
    from specserve.measure.bench.run import Wish
    from specserve.measure.bench.schedule import Sizes

    profile, arms = arms_of(asked, starts=starts)
    room = fit(arms)
    if asked.one_at_a_time or at_once is not None:
        room = dataclasses.replace(room, at_once=1 if at_once is None else at_once)
    platform = next((arm.plan.platform for arm in arms if arm.plan is not None), "cuda")
    points, promised_at = points_of(asked, profile, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    launches = asked.restarts or (1 if room.at_once >= len(arms) or asked.quick else 2)
    budget_s = seconds(asked.budget or _BUDGET, option="--budget", least_s=5.0)
    quick = _QUICK if asked.quick else {}
    tokens = asked.max_tokens or quick.get("max_tokens") or (_CPU_TOKENS if platform == "cpu" else None)
    wish = Wish(
        arms=arms,
        sessions=sessions(arms, launches=launches, at_once=room.at_once, slots=room.slots),
        points=points,
        sources=sources(asked.workloads),
        sizes=Sizes(asked.blocks or quick.get("blocks") or _BLOCKS, asked.seed),
        max_tokens=tokens,
        limit=asked.prompts or quick.get("prompts"),
        ignore_eos=asked.ignore_eos,
        budget_s=budget_s,
        keeps_texts=asked.include_prompts,
    )
    return Prepared(asked, profile, wish, room, promised_at, launches, prompts_of(wish))


def _with_places(asked: Asked) -> Asked:
    """With absolute names of files, and the URLs of detached servers: the run may be resumed from elsewhere.

    Raises UsageError for stdin.
    """
    from specserve.cli.where import where
    from specserve.serve.detached.registry import names

    if asked.profile == "-" or "-" in asked.workloads:
        raise UsageError("a benchmark is not read from stdin: it could not be resumed", hint="name a file")

    servers = names()

    def placed(text: str) -> str:
        name, equals, rest = text.rpartition("=")
        path = Path(rest)
        if path.is_file():
            return f"{name}{equals}{path.absolute()}"
        return f"{name}{equals}{where(None, rest, None)[0]}" if rest in servers else text

    assert asked.profile is not None
    return dataclasses.replace(
        asked,
        profile=placed(asked.profile),
        workloads=tuple(
            str(Path(each).absolute()) if Path(each).is_file() else each for each in asked.workloads
        ),
        others=tuple(map(placed, asked.others)),
    )


def _new_directory(ready: Prepared, output: str | None) -> RunDirectory:
    from specserve.measure.bench.rundir import create, default_place
    from specserve.measure.bench.surroundings import environment

    marks = [arm.plan.fingerprint for arm in ready.wish.arms if arm.plan is not None]
    path = Path(output) if output is not None else default_place(ready.name, marks)
    return create(
        path,
        {
            "name": ready.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": dataclasses.asdict(ready.asked),
            "at_once": ready.fit.at_once,
            "arms": [_arm_json(arm) for arm in ready.wish.arms],
            "sessions": [dataclasses.asdict(session) for session in ready.wish.sessions],
            "environment": environment(),
            "spent_s": 0.0,
        },
    )


def _arm_json(arm: Arm) -> dict[str, Any]:
    """An arm with its exact launch; a key is the name of its variable."""
    if arm.plan is None:
        return {"name": arm.name, "url": arm.url}
    from specserve.plan.shell import as_json

    return {"name": arm.name, "fingerprint": arm.plan.fingerprint, "launch": as_json(arm.plan)}


def _resumed(asked: Asked, place: str, *, output: str | None, dry_run: bool, ending: Ending) -> None:
    """Go on with a run as it was asked for; other options would make it another one."""
    from specserve.measure.bench.resultfile import RESULT_FILE, read
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
    is_told = (directory.path / RESULT_FILE).is_file() and asked.gpu_hour_price is None
    if is_told and is_measured(ready.wish, directory.passes()):
        with directory:
            say("all of it is measured already: nothing is started")
            return _end(read(directory.path), directory.path, ending=ending)
    directory.update(resumed=int(directory.content.get("resumed", 0)) + 1)
    return _run(ready, directory, ending=ending)


def _read_asked(content: dict[str, Any]) -> Asked:
    """Back from run.json. Raises TypeError where it has other fields."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return Asked(**fields)


def _run(ready: Prepared, directory: RunDirectory, *, ending: Ending) -> None:
    from specserve.measure.bench.run import Bench
    from specserve.report.benchprogress import BenchView
    from specserve.serve.stop import stop_on_signals

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

    if bench.passes:
        _write(ready, bench, began, is_complete=False)
    path = bench.directory.path
    if isinstance(error, Interrupted) or error.hint is not None:
        say(f"{len(bench.passes)} measured blocks are kept: `specserve bench --resume {path}` goes on")
    else:
        error.hint = f"`specserve bench --resume {path}` goes on with what was measured"


def _write(ready: Prepared, bench: Bench, began: float, *, is_complete: bool) -> Result:
    from specserve.measure.bench.outcome import outcome
    from specserve.measure.bench.resultfile import text
    from specserve.report.benchhtml import html_report

    directory = bench.directory
    directory.update(spent_s=directory.content.get("spent_s", 0.0) + time.monotonic() - began)
    result = outcome(_basis(ready, bench, is_complete=is_complete), bench.passes)
    directory.write("result.json", text(result))
    directory.write("report.html", html_report(result))
    return result


def _basis(ready: Prepared, bench: Bench, *, is_complete: bool) -> Any:
    from specserve.measure.bench.outcome import Basis
    from specserve.measure.bench.surroundings import host, versions
    from specserve.measure.workloads.load import info

    content = bench.directory.content
    platform = next((arm.plan.platform for arm in ready.wish.arms if arm.plan is not None), None)
    found = versions()
    if platform is None:
        found.pop("vllm", None)  # which one answers at a URL nobody knows
    return Basis(
        name=ready.name,
        profile=ready.profile,
        arms=ready.wish.arms,
        points=ready.wish.points,
        promised_at=ready.promised_at,
        launches=ready.launches,
        created=content["created"],
        duration_s=content["spent_s"],
        workloads=tuple(info(workload) for workload in bench.workloads.values()),
        versions={**found, **bench.versions},
        host=host(platform_of_arms=platform),
        settings=_settings(ready, bench),
        notes=(*bench.notes, *_notes(ready, bench)),
        is_complete=is_complete,
        price_per_gpu_hour=ready.asked.gpu_hour_price,
        models=bench.models,
    )


def _settings(ready: Prepared, bench: Bench) -> dict[str, str]:
    wish = ready.wish
    return {
        "blocks": str(wish.sizes.blocks),
        "launches": str(ready.launches),
        "arms at once": str(ready.fit.at_once),
        "max_tokens": str(wish.max_tokens or "by workload"),
        "seed": str(wish.sizes.seed),
        "budget": ready.asked.budget or _BUDGET,
        "prefix cache": ready.asked.prefix_cache,
        "ignore_eos": "yes" if wish.ignore_eos else "no",
        "load generator": "vllm.benchmarks.serve, streaming",
    }


def _notes(ready: Prepared, bench: Bench) -> list[str]:
    found = []
    if bench.is_cut:
        found.append(
            f"the budget of {ready.asked.budget or _BUDGET} ended it before all blocks were measured"
        )
    if ready.fit.at_once < len(ready.wish.arms):
        found.append(
            f"arms ran one after another ({ready.fit.why}): a drift of the machine is in the speedups"
        )
    elif ready.fit.slots:
        found.append(
            "arms ran at the same time on different GPUs of one kind, one of them under load at a time"
        )
    if bench.directory.content.get("resumed"):
        found.append(
            f"the run was resumed {bench.directory.content['resumed']} times: its servers were started anew"
        )
    return found
