"""One benchmark from its plan to its result: measured, resumed, kept when it is interrupted."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specserve.errors import FactError, Interrupted, SpecserveError, UsageError
from specserve.measure.bench.arms import Arm, Session, environment, host, versions
from specserve.measure.bench.driver import Pass
from specserve.measure.bench.outcome import outcome
from specserve.measure.bench.plan import (
    BUDGET,
    BenchPlan,
    BenchRequest,
    plan_bench,
    with_places,
)
from specserve.measure.bench.result import Result, read_result
from specserve.measure.bench.rundir import OnNews, RunDirectory, create, new_place, resume
from specserve.measure.bench.schedule import arm_order, blocks
from specserve.measure.run import Measurement, Outlet, spend
from specserve.measure.workloads.load import info
from specserve.serve.signals import StopRequest, stop_on_signals


class Bench(Measurement):
    """A benchmark while it runs."""

    def __init__(self, plan: BenchPlan, directory: RunDirectory, on_news: OnNews, stop: StopRequest) -> None:
        super().__init__(
            directory,
            on_news,
            stop,
            points=plan.points,
            sources=plan.sources,
            max_tokens=plan.max_tokens,
            limit=plan.limit,
        )
        self.plan = plan
        self.is_cut = False
        """Whether the budget ended it."""

    def run(self) -> None:
        """Measure what is not there yet. Raises LaunchError, TrafficError, Interrupted; what was measured is kept."""
        plan = self.plan
        for session in plan.sessions:
            self.expected.update(
                {(name, at): plan.sizes.blocks for name in session.arms for at in plan.points}
            )
        self.expected.subtract((each.arm, each.point) for each in self.passes)
        todo = _todo(plan, self.passes)
        arms = [[arm for arm in plan.arms if arm.name in session.arms] for session in todo]
        self.launches_left = sum(arm.plan is not None for group in arms for arm in group)
        for session, group in zip(todo, arms, strict=True):
            self._session(session, group)

    def _session(self, session: Session, arms: Sequence[Arm]) -> None:
        """Start its servers, measure the blocks that are not there yet on all of them, stop them."""
        plan, label = self.plan, f"{session.launch}-{session.first_block}"
        share_s = math.inf if plan.budget_s is None else plan.budget_s / len(plan.sessions)
        with self.session(arms, label=label, devices=session.devices) as (servers, driver):
            began = time.monotonic()
            for block in blocks(
                plan.points,
                self.workloads,
                sizes=plan.sizes,
                launch=session.launch,
                first=session.first_block,
            ):
                # half a block is measured again, by one launch of all its arms
                if all(self.has(session.launch, block, name) for name in session.arms):
                    continue
                if time.monotonic() - began > share_s:
                    self.is_cut = True
                    break
                wanted = session.arms if plan.still is None else plan.still(block, self.passes)
                for name in arm_order(block, session.arms):
                    if name in wanted:
                        self.send_block(servers[name], driver, block, launch=session.launch)


def _todo(plan: BenchPlan, passes: Sequence[Pass]) -> list[Session]:
    """The sessions some block of which is not there yet."""
    there = {(each.launch, each.arm, each.block) for each in passes}
    count = plan.sizes.blocks * len(plan.points)
    return [
        each
        for each in plan.sessions
        if any(
            (each.launch, name, each.first_block + at) not in there
            for name in each.arms
            for at in range(count)
        )
    ]


def run_benchmark(
    request: BenchRequest, *, output: str | None, resumed: str | None, outlet: Outlet
) -> tuple[Result, Path]:
    """The result and its directory: of a new run, or of the one to resume. Raises SpecserveError."""
    if resumed is not None:
        return _resumed(request, Path(resumed), outlet=outlet)
    plan = plan_bench(with_places(request), notices=outlet.notices)
    _refuse_silent(plan.arms)
    directory = new_directory(plan, output)
    return _run(plan, directory, outlet=outlet), directory.path


def _refuse_silent(arms: Sequence[Arm]) -> None:
    """Raises TrafficError if a server at a URL does not answer: before a directory is made, or a server started."""
    from specserve.serve.client import Client
    from specserve.serve.requests import endpoint

    for arm in arms:
        if arm.url is not None:
            with Client(endpoint(arm.url, api_key_env=arm.api_key_env)) as client:
                client.models()


def new_directory(plan: BenchPlan, output: str | None) -> RunDirectory:
    """The directory of a new run: `output`, or one in the state folder. Raises UsageError, FactError."""
    marks = [arm.plan.fingerprint[:8] for arm in plan.arms if arm.plan is not None][:3]
    stem = "-".join([plan.name, *dict.fromkeys(marks), time.strftime("%Y%m%d-%H%M%S")])
    return create(
        Path(output) if output is not None else new_place("bench", stem),
        {
            "name": plan.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": dataclasses.asdict(plan.request),
            "at_once": plan.fit.at_once,
            "arms": list(map(_arm_json, plan.arms)),
            "sessions": [dataclasses.asdict(session) for session in plan.sessions],
            "environment": environment(),
            "versions": versions(),
            "host": host(platform_of_arms=plan.platform),
            "spent_s": 0.0,
        },
    )


def _arm_json(arm: Arm) -> dict[str, Any]:
    """An arm with its exact launch; a key is the name of its variable."""
    if arm.plan is None:
        return {"name": arm.name, "url": arm.url}
    from specserve.plan.launchplan import as_json

    return {
        "name": arm.name,
        "fingerprint": arm.plan.fingerprint,
        "launch": as_json(arm.plan),
        "local_models": list(arm.local_models),
    }


def _resumed(request: BenchRequest, path: Path, *, outlet: Outlet) -> tuple[Result, Path]:
    """Resume a run as it was asked for; other options would make it another one."""
    if dataclasses.replace(request, budget=None) != BenchRequest():
        raise UsageError(
            "`--resume` continues a run with the options that it began with",
            hint="only `--budget`, `--share`, `--strict` and `--format` can be given with it",
        )
    directory = resume(path)
    content = directory.content
    try:
        known: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content["asked"].items()
        }
        kept, at_once = BenchRequest(**known), int(content["at_once"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"`{path}` cannot be resumed: specserve cannot read its run.json") from error
    kept = dataclasses.replace(kept, budget=request.budget or kept.budget)
    plan = plan_bench(kept, at_once=at_once, notices=outlet.notices)
    now = {arm.name: arm.plan.fingerprint for arm in plan.arms if arm.plan is not None}
    before = {arm["name"]: arm["fingerprint"] for arm in content["arms"] if "fingerprint" in arm}
    if now != before:
        other = next(name for name in {**now, **before} if now.get(name) != before.get(name))
        raise UsageError(
            f"`{other}` has changed since the run began",
            hint="start over: the earlier measurements cannot be compared with it",
        )
    found = None
    if _todo(plan, directory.passes()):
        _refuse_other_vllm(plan.arms, content)
    else:
        outlet.notices.say("everything has been measured already, so nothing is started")
        found = _complete(path)
    if found is None:
        return _run(plan, directory, outlet=outlet), path
    with directory:
        return found, path


def _refuse_other_vllm(arms: Sequence[Arm], content: dict[str, Any]) -> None:
    """Raises UsageError if blocks of another vLLM are there: they cannot be compared with what would be added."""
    launches = {arm["name"]: arm.get("launch", {}) for arm in content["arms"]}
    for arm in arms:
        before = launches.get(arm.name, {}).get("vllm")
        if arm.plan is not None and before not in (None, arm.plan.vllm):
            raise UsageError(
                f"vLLM {arm.plan.vllm} is installed, but the run began with {before}",
                hint=(
                    f"install {before} again, or start over: measurements of two versions cannot be compared"
                ),
            )


def _complete(path: Path) -> Result | None:
    """The result that is there if it is of everything; None if it must be made again."""
    try:
        found = read_result(path)
    except FactError:  # none yet, cut off, or of another version: what was measured is there all the same
        return None
    return found if found.is_complete else None


def _run(plan: BenchPlan, directory: RunDirectory, *, outlet: Outlet) -> Result:
    began, say = time.monotonic(), outlet.notices.say
    with ExitStack() as stack:
        stack.enter_context(directory)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(outlet.open_view())
        names = ", ".join(arm.name for arm in plan.arms)
        say(f"measuring {len(plan.points)} points in {plan.sizes.blocks} blocks each, on {names}")
        say(f"run directory: {directory.path}")
        bench = Bench(plan, directory, view, stop)
        try:
            bench.run()
        except SpecserveError as error:
            _keep(bench, began, error, outlet=outlet)
            raise
        return _write(bench, began, is_complete=True, outlet=outlet)


def _keep(bench: Bench, began: float, error: SpecserveError, *, outlet: Outlet) -> None:
    """Keep what was measured; the error says how to resume."""
    path = bench.directory.path
    if bench.passes and _complete(path) is None:
        _write(bench, began, is_complete=False, outlet=outlet)
    else:  # a complete result of fewer blocks says more than one of some points
        spend(bench.directory, began)
    if isinstance(error, Interrupted) or error.hint is not None:
        count = len(bench.passes)
        outlet.notices.say(
            f"{count} measured blocks are kept: run `specserve bench --resume {path}` to continue"
        )
    else:
        error.hint = f"`specserve bench --resume {path}` resumes from what was measured"


def _write(bench: Bench, began: float, *, is_complete: bool, outlet: Outlet) -> Result:
    spend(bench.directory, began)
    result = outcome(bench.plan, bench.passes, about=_about(bench, is_complete=is_complete))
    for name, text in outlet.files(result).items():
        bench.directory.write(name, text)
    return result


def _about(bench: Bench, *, is_complete: bool) -> Result:
    """The result without its figures: versions, machine and arms as they were when the run began."""
    plan, content = bench.plan, bench.directory.content
    found = dict(content.get("versions") or versions())
    if plan.platform is None:
        found.pop("vllm", None)  # nobody knows which one answers at a URL
    return Result(
        name=plan.name,
        fingerprint=None,
        created=content["created"],
        duration_s=content["spent_s"],
        versions={**found, **bench.versions},
        host=bench.host,
        launches=plan.launches,
        arms=tuple(_infos(bench)),
        workloads=tuple(info(workload) for workload in bench.workloads.values()),
        cells=(),
        comparisons=(),
        notes=(*bench.notes, *_notes(bench)),
        is_complete=is_complete,
        settings={
            "blocks": str(plan.sizes.blocks),
            "launches": str(plan.launches),
            "arms at once": str(plan.fit.at_once),
            "max_tokens": str(plan.max_tokens or "by workload"),
            "budget": plan.request.budget or BUDGET,
            "load generator": "vllm.benchmarks.serve, streaming",
        },
    )


def _infos(bench: Bench) -> Any:
    """Arms with what was a folder when the run began: from elsewhere, `team/model` may look like the Hub's."""
    local = {arm["name"]: arm.get("local_models", ()) for arm in bench.directory.content["arms"]}
    for arm in bench.plan.arms:
        yield dataclasses.replace(
            arm.info,
            model=arm.model or bench.models.get(arm.name, ""),
            local_models=tuple(dict.fromkeys((*arm.info.local_models, *local.get(arm.name, ())))),
        )


def _notes(bench: Bench) -> list[str]:
    plan, found = bench.plan, []
    if bench.is_cut:
        found.append(
            f"the budget of {plan.request.budget or BUDGET} ended the run before all blocks were measured"
        )
    if plan.fit.at_once < len(plan.arms):
        found.append(
            f"variants ran one after another ({plan.fit.why}), so drift of the machine affects the speedups"
        )
    elif plan.fit.slots:
        found.append(
            "variants ran at the same time on different GPUs of one kind, one of them under load at a time"
        )
    if times := int(bench.directory.content.get("resumed", 0)):
        often = "once" if times == 1 else f"{times} times"
        again = ": its servers were started again" if plan.platform is not None else ""
        found.append(f"the run was resumed {often}{again}")
    return found
