"""One benchmark from its plan to its result: measured, resumed, kept when it is interrupted."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import FactError, Interrupted, SpecserveError, UsageError
from specserve.measure.bench.figures import outcome
from specserve.measure.bench.plan import (
    BUDGET,
    BenchPlan,
    BenchRequest,
    Block,
    arm_order,
    blocks,
    plan_bench,
    with_places,
)
from specserve.measure.bench.result import ArmInfo, Result, from_json, read_result
from specserve.measure.bench.rundir import OnNews, RunDirectory, create, new_place, resume
from specserve.measure.bench.traffic import REST_S
from specserve.measure.bench.variants import Session, Variant, environment, host, versions
from specserve.measure.servers import Measurement, Outlet
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
        self._share_s = math.inf if plan.budget_s is None else plan.budget_s / len(plan.sessions)
        self._sessions_left, self._ends_s = 0, math.inf

    def run(self) -> None:
        """Measure what is not there yet. Raises LaunchError, TrafficError, Interrupted; what was measured is kept."""
        plan, todo = self.plan, self.missing()
        for session in plan.sessions:
            self.expected.update({(name, at): plan.blocks for name in session.arms for at in plan.points})
        self.expected.subtract((each.arm, each.point) for each in self.passes)
        arms = [[arm for arm in plan.arms if arm.name in session.arms] for session in todo]
        self.launches_left = sum(arm.plan is not None for group in arms for arm in group)
        for number, (session, group) in enumerate(zip(todo, arms, strict=True), start=1):
            self._sessions_left = len(todo) - number
            self._session(session, group)

    def missing(self) -> list[Session]:
        """Returns the sessions some block of which is not there yet."""
        there = {(each.launch, each.arm, each.block) for each in self.passes}
        numbers = range(self.plan.blocks * len(self.plan.points))
        return [
            each
            for each in self.plan.sessions
            if any((each.launch, name, number) not in there for name in each.arms for number in numbers)
        ]

    def blocks(self, session: Session) -> Sequence[Block]:
        """Returns what each variant of a session is sent, in order."""
        plan = self.plan
        return blocks(plan.points, self.workloads, count=plan.blocks, launch=session.launch)

    def wanted(self, session: Session, block: Block) -> Collection[str]:
        """Returns the variants that a block is still wanted of, asked when its turn comes."""
        # half a block is measured again, by one launch of all its variants
        is_there = all(self.has(session.launch, block, name) for name in session.arms)
        return () if is_there else session.arms

    def _session(self, session: Session, arms: Sequence[Variant]) -> None:
        """Start its servers, measure the blocks that are not there yet on all of them, stop them."""
        left_s = self._share_s - self._spent_s(session)
        if left_s <= 0:
            self.is_cut = True
            return
        with self.session(arms, label=str(session.launch), devices=session.devices) as (servers, driver):
            self._ends_s = time.monotonic() + left_s
            for block in self.blocks(session):
                wanted = self.wanted(session, block)
                if wanted and time.monotonic() > self._ends_s:
                    self.is_cut = True
                    break
                for name in arm_order(block, session.arms):
                    if name in wanted:
                        self.send_block(servers[name], driver, block, launch=session.launch)

    def _spent_s(self, session: Session) -> float:
        """What its blocks took in earlier sessions of this run."""
        rest_s = REST_S if len(session.arms) > 1 else 0.0
        return sum(
            each.duration_s + rest_s
            for each in self.passes
            if each.launch == session.launch and each.arm in session.arms
        )

    def _left_s(self) -> float:
        """What the blocks will take, at most what is left of the budget, which does not count launches."""
        budget_s = self._ends_s - time.monotonic()
        if self._sessions_left:
            budget_s += self._sessions_left * self._share_s
        return min(super()._left_s(), max(0.0, budget_s) + self._launches_s())

    def write(self, *, is_complete: bool, outlet: Outlet) -> Result:
        """Returns the result of what is there, and writes its files."""
        plan, content = self.plan, self.directory.content
        known = dict(content.get("versions") or versions())
        if plan.platform is None:
            known.pop("vllm", None)  # nobody knows which one answers at a URL
        # variants, versions and machine as they were when the run began
        infos = [from_json(ArmInfo, json.dumps(each)) for each in content["arms"]]
        about = Result(
            name=plan.name,
            fingerprint=None,
            created=content["created"],
            duration_s=content["spent_s"],
            versions={**known, **self.versions},
            host=self.host,
            launches=plan.launches,
            arms=tuple(
                dataclasses.replace(
                    each,
                    model=each.model or self.models.get(each.name, ""),
                    kv_cache_tokens=self.kv_tokens.get(each.name),
                )
                for each in infos
            ),
            workloads=tuple(map(info, self.workloads.values())),
            cells=(),
            comparisons=(),
            notes=(*self.notes, *self._remarks()),
            is_complete=is_complete,
            settings={
                "blocks": str(plan.blocks),
                "launches": str(plan.launches),
                "arms at once": str(plan.fit.at_once),
                "max_tokens": str(plan.max_tokens or "by workload"),
                "budget": plan.request.budget or BUDGET,
                "load generator": "vllm.benchmarks.serve, streaming",
            },
        )
        result = outcome(plan, self.passes, about=about)
        for name, text in outlet.files(result).items():
            self.directory.write(name, text)
        return result

    def _remarks(self) -> Iterator[str]:
        plan = self.plan
        if self.is_cut:
            budget = plan.request.budget or BUDGET
            yield (
                f"the budget of {budget} ended the run before all blocks were measured: "
                "`--resume` with a longer `--budget` goes on"
            )
        if plan.fit.at_once < len(plan.arms):
            yield f"variants ran one after another ({plan.fit.why}), so drift of the machine affects the speedups"
        elif plan.fit.slots:
            yield (
                "variants ran at the same time on different GPUs of one kind, one of them under load at a time"
            )
        if times := int(self.directory.content.get("resumed", 0)):
            often = "once" if times == 1 else f"{times} times"
            again = ": its servers were started again" if plan.platform is not None else ""
            yield f"the run was resumed {often}{again}"


def run_benchmark(
    request: BenchRequest, *, output: str | None, resumed: str | None, outlet: Outlet
) -> tuple[Result, Path]:
    """Returns the result and its directory: of a new run, or of the one to resume. Raises SpecserveError."""
    if resumed is None:
        plan = plan_bench(with_places(request), notices=outlet.notices)
        _refuse_silent(plan.arms)
        with new_directory(plan, output) as directory:
            return _run(plan, directory, outlet=outlet), directory.path
    if dataclasses.replace(request, budget=None) != BenchRequest():
        raise UsageError(
            "`--resume` continues a run with the options that it began with",
            hint="only `--budget`, `--share`, `--strict` and `--format` can be given with it",
        )
    with resume(Path(resumed)) as directory:
        plan = _plan_again(directory, budget=request.budget, notices=outlet.notices)
        return _run(plan, directory, outlet=outlet), directory.path


def _refuse_silent(arms: Sequence[Variant]) -> None:
    """Raises TrafficError if a server at a URL does not answer: before a directory is made, or a server started."""
    from specserve.serve.client import Client
    from specserve.serve.requests import endpoint

    for arm in arms:
        if arm.url is not None:
            with Client(endpoint(arm.url, api_key_env=arm.api_key_env)) as client:
                client.models()


def new_directory(plan: BenchPlan, output: str | None) -> RunDirectory:
    """Returns the directory of a new run: `output`, or one in the state folder. Raises UsageError, FactError."""
    marks = [arm.plan.fingerprint[:8] for arm in plan.arms if arm.plan is not None][:3]
    stem = "-".join([plan.name, *dict.fromkeys(marks), time.strftime("%Y%m%d-%H%M%S")])
    directory = create(
        Path(output) if output is not None else new_place("bench", stem),
        {
            "name": plan.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": dataclasses.asdict(plan.request),
            "at_once": plan.fit.at_once,
            "arms": list(map(_arm_json, plan.arms)),
            "environment": environment(),
            "versions": versions(),
            "host": host(platform_of_arms=plan.platform),
            "spent_s": 0.0,
        },
    )
    _require_profiles(plan, directory)
    return directory


def _arm_json(arm: Variant) -> dict[str, Any]:
    """Returns what a result says of a variant, with its exact launch; a key is the name of its variable."""
    from specserve.plan.launchplan import as_json

    return {**dataclasses.asdict(arm.info), "launch": as_json(arm.plan) if arm.plan is not None else None}


def _require_profiles(plan: BenchPlan, directory: RunDirectory) -> None:
    for arm in plan.arms:
        directory.require(f"`{arm.name}`", arm.plan.fingerprint if arm.plan is not None else arm.url or "")


def _plan_again(directory: RunDirectory, *, budget: str | None, notices: Notices) -> BenchPlan:
    """Returns the plan of a run as it was asked for. Raises UsageError if a profile has changed."""
    content = directory.content
    try:
        asked: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content["asked"].items()
        }
        request, at_once = BenchRequest(**asked), int(content["at_once"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"`{directory.path}` cannot be resumed: specserve cannot read its run.json"
        ) from error
    request = dataclasses.replace(request, budget=budget or request.budget)
    plan = plan_bench(request, at_once=at_once, notices=notices)
    _require_profiles(plan, directory)
    return plan


def _complete(path: Path) -> Result | None:
    """Returns the result that is there if it is of everything; None if it must be made again."""
    try:
        found = read_result(path)
    except FactError:  # none yet, cut off, or of another version: what was measured is there all the same
        return None
    return found if found.is_complete else None


def _run(plan: BenchPlan, directory: RunDirectory, *, outlet: Outlet) -> Result:
    began, say = time.monotonic(), outlet.notices.say
    with stop_on_signals() as stop, outlet.open_view() as view:
        bench = Bench(plan, directory, view, stop)
        if bench.missing():
            names = ", ".join(arm.name for arm in plan.arms)
            points = f"{len(plan.points)} point{'' if len(plan.points) == 1 else 's'}"
            say(
                f"measuring {points} (a point is a workload, load and temperature) in {plan.blocks} blocks, on {names}"
            )
            say(f"run directory: {directory.path}")
        else:
            say("everything has been measured already, so nothing is started")
            if (found := _complete(directory.path)) is not None:
                return found
        try:
            bench.run()
        except SpecserveError as error:
            keep(bench, began, error, outlet=outlet)
            raise
        directory.spend(began)
        return bench.write(is_complete=True, outlet=outlet)


def keep(bench: Bench, began: float, error: SpecserveError, *, outlet: Outlet) -> None:
    """Keep what was measured until the error, and add to the error how to resume."""
    path = bench.directory.path
    bench.directory.spend(began)
    # a complete result of fewer blocks says more than one of some points
    if bench.passes and _complete(path) is None:
        bench.write(is_complete=False, outlet=outlet)
    if isinstance(error, Interrupted) or error.hint is not None:
        outlet.notices.say(
            f"{len(bench.passes)} measured blocks are kept: run `specserve bench --resume {path}` to continue"
        )
    else:
        error.hint = f"`specserve bench --resume {path}` resumes from what was measured"
