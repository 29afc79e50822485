"""One benchmark from a request to its result: run in its directory, resumed, kept when it is interrupted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specserve.diagnostics import Notices
from specserve.errors import FactError, Interrupted, SpecserveError, UsageError
from specserve.measure.bench.prepare import BUDGET, Prepared, new_directory, prepared, refuse_silent
from specserve.measure.bench.request import BenchRequest, with_places

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm
    from specserve.measure.bench.result import Result
    from specserve.measure.bench.run import Bench
    from specserve.measure.bench.rundir import News, RunDirectory


class View(Protocol):
    """Shows how far a run is."""

    def begin(self, ready: Prepared, directory: Path) -> None:
        """Show what is about to run, and where it is kept."""

    def __call__(self, what: News) -> None:
        """Show one event."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a run says what happens, and how its result is written."""

    notices: Notices
    open_view: Callable[[], AbstractContextManager[View]]
    files: Callable[[Result], Mapping[str, str]]
    """The files of a result by name."""


def run_benchmark(
    asked: BenchRequest, *, output: str | None, resume: str | None, outlet: Outlet
) -> tuple[Result, Path]:
    """The result and its directory: of a new run, or of the one to resume. Raises SpecserveError."""
    if resume is not None:
        return _resumed(asked, resume, outlet=outlet)
    ready = prepared(with_places(asked), notices=outlet.notices)
    refuse_silent(ready.wish.arms)
    directory = new_directory(ready, output)
    return _run(ready, directory, outlet=outlet), directory.path


def _resumed(asked: BenchRequest, place: str, *, outlet: Outlet) -> tuple[Result, Path]:
    """Go on with a run as it was asked for; other options would make it another one."""
    from specserve.measure.bench.run import is_measured
    from specserve.measure.bench.rundir import resume

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
    ready = prepared(kept, at_once=at_once, notices=outlet.notices)
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
        return _run(ready, directory, outlet=outlet), directory.path
    outlet.notices.say("all of it is measured already: nothing is started")
    told = _complete(directory.path)
    if told is None or asked.gpu_hour_price is not None:
        return _run(ready, directory, outlet=outlet), directory.path
    with directory:
        return told, directory.path


def refuse_changes(asked: BenchRequest, *, others: bool) -> None:
    """Raises UsageError for options that would make a resumed run another one; `others`: one outside the request."""
    changed = [
        field.name
        for field in dataclasses.fields(asked)
        if getattr(asked, field.name) != field.default and field.name not in ("budget", "gpu_hour_price")
    ]
    if changed or others:
        raise UsageError(
            "`--resume` goes on with a run as it was asked for, and takes no options of what to run",
            hint="only `--budget`, `--gpu-hour-price` and what is done with the result may be given",
        )


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


def _read_asked(content: dict[str, Any]) -> BenchRequest:
    """Back from run.json. Raises TypeError where it has other fields."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return BenchRequest(**fields)


def _run(ready: Prepared, directory: RunDirectory, *, outlet: Outlet) -> Result:
    from specserve.measure.bench.run import Bench
    from specserve.serve.signals import stop_on_signals

    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(directory)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(outlet.open_view())
        view.begin(ready, directory.path)
        bench = Bench(ready.wish, directory, view, stop)
        try:
            bench.run()
        except SpecserveError as error:
            _kept(ready, bench, began, error, outlet=outlet)
            raise
        return _write(ready, bench, began, is_complete=True, files=outlet.files)


def _kept(ready: Prepared, bench: Bench, began: float, error: SpecserveError, *, outlet: Outlet) -> None:
    """What was measured stays; the error says how to go on."""
    path = bench.directory.path
    if bench.passes and _complete(path) is None:
        _write(ready, bench, began, is_complete=False, files=outlet.files)
    else:  # a result of fewer blocks that is whole says more than one of some points
        _spend(bench.directory, began)
    if isinstance(error, Interrupted) or error.hint is not None:
        outlet.notices.say(
            f"{len(bench.passes)} measured blocks are kept: `specserve bench --resume {path}` goes on"
        )
    else:
        error.hint = f"`specserve bench --resume {path}` goes on with what was measured"


def _write(
    ready: Prepared,
    bench: Bench,
    began: float,
    *,
    is_complete: bool,
    files: Callable[[Result], Mapping[str, str]],
) -> Result:
    from specserve.measure.bench.outcome import outcome

    directory = bench.directory
    _spend(directory, began)
    result = outcome(_basis(ready, bench, is_complete=is_complete), bench.passes)
    for name, text in files(result).items():
        directory.write(name, text)
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
