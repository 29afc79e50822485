"""One benchmark from its plan to its result: measured, resumed, kept when it is interrupted."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import FactError, Interrupted, SpecserveError, UsageError
from specserve.measure.bench.figures import speedup, summarise
from specserve.measure.bench.plan import (
    BUDGET,
    BenchPlan,
    BenchRequest,
    Block,
    blocks,
    plan_bench,
    variant_order,
    with_places,
)
from specserve.measure.bench.result import (
    Point,
    Result,
    VariantInfo,
    WorkloadInfo,
    from_json,
    read_result,
)
from specserve.measure.bench.rundir import OnNews, RunDirectory, create, new_place, resume
from specserve.measure.bench.traffic import REST_S
from specserve.measure.bench.variants import Session, Variant, host, versions
from specserve.measure.servers import Measurement, Outlet
from specserve.measure.verdict import needed, verdict
from specserve.serve.signals import StopRequest, stop_on_signals


class Bench(Measurement):
    """A benchmark while it runs."""

    def __init__(
        self, plan: BenchPlan, directory: RunDirectory, on_news: OnNews, stop: StopRequest
    ) -> None:
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
        """Whether the budget ended it before every block of the first rounds was measured."""

    def run(self) -> None:
        """Measure what is not there yet.

        Raises LaunchError, TrafficError, Interrupted; what was measured is kept.
        """
        for number, session in enumerate(self.plan.sessions):
            if self._is_done(session):
                continue
            left_s = self._budget_s() / (len(self.plan.sessions) - number)
            if left_s > 0:
                self._session(session, left_s)
            else:
                self.is_cut |= bool(self._missing(session, 0))

    def is_done(self) -> bool:
        """Return whether there is nothing to measure, or no time for it."""
        is_over = self._budget_s() <= 0
        return all(is_over or self._is_done(each) for each in self.plan.sessions)

    def _is_done(self, session: Session) -> bool:
        """Return whether a session has nothing to send: to be asked once those before it ran."""
        if not self.workloads or self._missing(session, 0):
            return False
        return not self._next_round(session)

    def _missing(self, session: Session, place: int) -> list[Block]:
        """Return the blocks of a round that are not there yet for one of the variants."""
        there = {each.key for each in self.passes}
        count, launch = self.plan.blocks, session.launch
        wanted = self._wanted(session, place)
        every = blocks(self.points, self.workloads, count=count, launch=launch, place=place)
        return [
            block
            for block in every
            if block.point in wanted
            and any(
                (launch, block.number, block.point, name) not in there for name in session.variants
            )
        ]

    def _next_round(self, session: Session) -> list[Block]:
        """Return the blocks to send next: of the first round that is not there yet."""
        place = 0
        while self._wanted(session, place):
            if found := self._missing(session, place):
                return found
            place += 1
        return []

    def _wanted(self, session: Session, place: int) -> Sequence[Point]:
        """Return the points that a round of a session measures.

        The first one all; later ones those of an open comparison that more blocks would decide. A
        variant that runs alone is sent the rounds that its partner had in the same launch, which
        were as many as the launches before called for.
        """
        if place == 0:
            return self.points
        if self.plan.request.quick:
            return ()
        first, *others = (variant.name for variant in self.plan.variants)
        pairs = others
        if len(session.variants) == 1:
            is_first = session.variants == (first,)
            partners = others if is_first else [first]
            pairs = others if is_first else list(session.variants)
            most: dict[Point, int] = {}
            for each in self.passes:
                if each.launch == session.launch and each.variant in partners:
                    number = each.block // (self.plan.blocks * len(self.points))
                    most[each.point] = max(most.get(each.point, 0), number)
            if most:
                return [at for at in self.points if most.get(at, 0) >= place]
        return [
            at
            for at in self.points
            if any(self._is_open(name, at, session, place) for name in pairs)
        ]

    def _is_open(self, name: str, at: Point, session: Session, place: int) -> bool:
        """Return whether a round of a session still serves to decide a comparison."""
        plan, first = self.plan, self.plan.variants[0].name
        launched = plan.launched(name, first)
        found = speedup(self.passes, variant=name, against=first, at=at, launched=launched)
        if found is None or verdict(found).level != "open":
            return False
        what, more = needed(found)
        # those that were sent without their pair, and those that later launches will send anyway
        later = plan.sessions[plan.sessions.index(session) + 1 :]
        coming = sum(name in each.variants for each in later) * plan.blocks
        if len(session.variants) == 1:
            coming += place * plan.blocks
        return what == "blocks" and more > coming

    def _session(self, session: Session, left_s: float) -> None:
        """Start its servers, measure what is not there yet on all of them, stop them."""
        variants = [variant for variant in self.plan.variants if variant.name in session.variants]
        self.launches_left = sum(variant.plan is not None for variant in variants)
        label, launch = str(session.launch), session.launch
        with self.session(variants, label=label, devices=session.devices) as (servers, driver):
            ends_s = time.monotonic() + left_s
            while todo := self._next_round(session):
                self.expected.clear()
                self.expected.update(
                    (name, each.point) for each in todo for name in session.variants
                )
                for block in todo:
                    if time.monotonic() > ends_s:
                        self.is_cut |= block.number < self.plan.blocks * len(self.points)
                        return
                    # half a block is measured again, by one launch of all its variants
                    for name in variant_order(block, session.variants):
                        self.send_block(servers[name], driver, block, launch=launch)

    def _budget_s(self) -> float:
        """What is left of the budget of all sessions of the run; launches do not count."""
        rest_s = REST_S if any(len(each.variants) > 1 for each in self.plan.sessions) else 0.0
        return self.plan.budget_s - sum(each.duration_s + rest_s for each in self.passes)

    def _left_s(self) -> float:
        return min(super()._left_s(), max(0.0, self._budget_s()))

    def write(self, *, is_complete: bool, outlet: Outlet) -> Result:
        """Return the result of what is there, and write its files."""
        plan, content = self.plan, self.directory.content
        known = dict(content.get("versions") or versions())
        if plan.platform is None:
            known.pop("vllm", None)  # nobody knows which one answers at a URL
        # variants, versions and machine as they were when the run began
        infos = [from_json(VariantInfo, json.dumps(each)) for each in content["variants"]]
        about = Result(
            name=plan.name,
            fingerprint=None,
            created=content["created"],
            duration_s=content["spent_s"],
            versions={**known, **self.versions},
            host=self.host,
            launches=plan.launches,
            variants=tuple(
                dataclasses.replace(
                    each,
                    model=each.model or self.models.get(each.name, ""),
                    kv_cache_tokens=self.kv_tokens.get(each.name),
                )
                for each in infos
            ),
            workloads=tuple(
                WorkloadInfo(each.name, len(each.prompts), each.source, each.sha256)
                for each in self.workloads.values()
            ),
            cells=(),
            comparisons=(),
            notes=(*self.notes, *self._remarks()),
            is_complete=is_complete,
            settings={
                "variants at once": str(plan.fit.at_once),
                "max_tokens": str(plan.max_tokens or "by workload"),
                "budget": plan.request.budget or BUDGET,
                "load generator": "vllm.benchmarks.serve, streaming",
            },
        )
        result = summarise(plan, self.passes, about=about)
        for name, text in outlet.files(result).items():
            self.directory.write(name, text)
        return result

    def _remarks(self) -> Iterator[str]:
        plan = self.plan
        if self.is_cut:
            yield (
                f"the budget of {plan.request.budget or BUDGET} ended the run before all blocks "
                "were measured: `--resume` with a longer `--budget` goes on"
            )
        if plan.fit.at_once < len(plan.variants):
            yield f"variants ran one after another ({plan.fit.why})"
        elif plan.fit.slots:
            yield "variants ran at the same time on different GPUs, one under load at a time"
        if times := int(self.directory.content.get("resumed", 0)):
            often = "once" if times == 1 else f"{times} times"
            again = ": its servers were started again" if plan.platform is not None else ""
            yield f"the run was resumed {often}{again}"


def run_benchmark(
    request: BenchRequest, *, output: str | None, resumed: str | None, outlet: Outlet
) -> tuple[Result, Path]:
    """Return the result and its directory, of a new run or of the one to resume.

    Raises SpecserveError.
    """
    if resumed is None:
        plan = plan_bench(with_places(request), notices=outlet.notices)
        _refuse_silent(plan.variants)
        with new_directory(plan, output) as directory:
            return _run(plan, directory, outlet=outlet), directory.path
    if dataclasses.replace(request, budget=None) != BenchRequest():
        raise UsageError(
            "`--resume` continues a run with the options that it began with",
            hint="only `--budget` and `--format` can be given with it",
        )
    with resume(Path(resumed)) as directory:
        plan = _plan_again(directory, budget=request.budget, notices=outlet.notices)
        return _run(plan, directory, outlet=outlet), directory.path


def _refuse_silent(variants: Sequence[Variant]) -> None:
    """Raise TrafficError if a server at a URL does not answer, before anything is made."""
    from specserve.serve.client import Client
    from specserve.serve.requests import endpoint

    for variant in variants:
        if variant.url is not None:
            with Client(endpoint(variant.url, api_key_env=variant.api_key_env)) as client:
                client.models()


def new_directory(plan: BenchPlan, output: str | None) -> RunDirectory:
    """Return the directory of a new run: `output`, or one in the state folder."""
    from specserve.plan.launchplan import as_json

    marks = [variant.plan.fingerprint[:8] for variant in plan.variants if variant.plan is not None][
        :3
    ]
    stem = "-".join([plan.name, *dict.fromkeys(marks), time.strftime("%Y%m%d-%H%M%S")])
    launches = [
        as_json(variant.plan) if variant.plan is not None else None for variant in plan.variants
    ]
    directory = create(
        Path(output) if output is not None else new_place("bench", stem),
        {
            "name": plan.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": dataclasses.asdict(plan.request),
            "at_once": plan.fit.at_once,
            "variants": [
                {
                    **dataclasses.asdict(variant.info),
                    "launch": launch,
                }  # with the name of a key, no key
                for variant, launch in zip(plan.variants, launches, strict=True)
            ],
            "versions": versions(),
            "host": host(platform_of_variants=plan.platform),
            "spent_s": 0.0,
        },
    )
    _require_profiles(plan, directory)
    return directory


def _require_profiles(plan: BenchPlan, directory: RunDirectory) -> None:
    for variant in plan.variants:
        what = variant.plan.fingerprint if variant.plan is not None else variant.url or ""
        directory.require(f"`{variant.name}`", what)


def _plan_again(directory: RunDirectory, *, budget: str | None, notices: Notices) -> BenchPlan:
    """Return the plan of a run as it was asked for. Raises UsageError if a profile has changed."""
    content = directory.content
    try:
        asked: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content["asked"].items()
        }
        request, at_once = BenchRequest(**asked), int(content["at_once"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"`{directory.path}` cannot be resumed: specserve cannot read its run.json"
        raise UsageError(why) from error
    request = dataclasses.replace(request, budget=budget or request.budget)
    plan = plan_bench(request, at_once=at_once, notices=notices)
    _require_profiles(plan, directory)
    return plan


def _complete(path: Path) -> Result | None:
    """Return the result that is there if it is of everything; None if it must be made again."""
    try:
        found = read_result(path)
    except FactError:  # none yet, or cut off: what was measured is there all the same
        return None
    return found if found.is_complete else None


def _run(plan: BenchPlan, directory: RunDirectory, *, outlet: Outlet) -> Result:
    began_s, say = time.monotonic(), outlet.notices.say
    with stop_on_signals() as stop, outlet.open_view() as view:
        bench = Bench(plan, directory, view, stop)
        if bench.passes and bench.is_done():
            say("everything has been measured already, so nothing is started")
            if (found := _complete(directory.path)) is not None:
                return found
        else:
            names = ", ".join(variant.name for variant in plan.variants)
            points = f"{len(plan.points)} point{'' if len(plan.points) == 1 else 's'}"
            say(f"measuring {points} (a point is a workload, load and temperature) on {names}")
            say(f"run directory: {directory.path}")
        try:
            bench.run()
        except SpecserveError as error:
            keep(bench, began_s, error, outlet=outlet)
            raise
        directory.spend(began_s)
        return bench.write(is_complete=True, outlet=outlet)


def keep(bench: Bench, began_s: float, error: SpecserveError, *, outlet: Outlet) -> None:
    """Keep what was measured until the error, and add to the error how to resume."""
    path = bench.directory.path
    bench.directory.spend(began_s)
    # a complete result of fewer blocks says more than one of some points
    if bench.passes and _complete(path) is None:
        bench.write(is_complete=False, outlet=outlet)
    if isinstance(error, Interrupted) or error.hint is not None:
        kept = f"{len(bench.passes)} measured blocks are kept"
        outlet.notices.say(f"{kept}: run `specserve bench --resume {path}` to continue")
    else:
        error.hint = f"`specserve bench --resume {path}` resumes from what was measured"
