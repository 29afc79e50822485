"""One benchmark from its plan to its result: measured, resumed, kept when it is interrupted."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from specserve.errors import SpecserveError, UsageError
from specserve.files import state_folder
from specserve.measure.bench.passes import (
    Block,
    OnProgress,
    Pass,
    RunDirectory,
    blocks,
    create,
    resume,
    variant_order,
)
from specserve.measure.bench.plan import (
    BUDGET,
    LAUNCHES,
    MOST_ALONE,
    BenchPlan,
    BenchRequest,
    Session,
    plan_bench,
    sessions,
)
from specserve.measure.bench.result import Point, Result, from_json
from specserve.measure.bench.summary import speedup, summarise
from specserve.measure.servers import REST_S, Measurement, Outlet, described
from specserve.measure.verdict import needed, verdict
from specserve.serve.process import StopRequest, stop_on_signals


class Bench(Measurement):
    """A benchmark while it runs."""

    def __init__(
        self, plan: BenchPlan, directory: RunDirectory, on_progress: OnProgress, stop: StopRequest
    ) -> None:
        super().__init__(plan, directory, on_progress, stop)
        self.plan = plan

    def run(self) -> None:
        """Measure what is not there yet.

        Raises LaunchError, TrafficError, Interrupted; what was measured is kept.
        """
        number = 0
        while number < len(self.plan.sessions) or self._starts_again():
            session = self.plan.sessions[number]
            left_s = self._budget_s() / (len(self.plan.sessions) - number)
            if left_s > 0 and (not self.workloads or self._next_round(session)):
                self._measure(session, left_s)
            number += 1

    def _starts_again(self) -> bool:
        """Plan another launch where each runs alone: a server that ended is sent no more blocks."""
        plan, count = self.plan, self.plan.launches + 1
        others = tuple(each.name for each in plan.variants[1:])
        most = plan.request.launches or (1 if plan.request.quick else MOST_ALONE)
        is_last = plan.together or count > most
        if is_last or self._budget_s() <= 0 or not self._wanted(Session(plan.launches, others), 0):
            return False
        again = sessions(plan.variants, launches=count, together=False)
        self.plan = dataclasses.replace(plan, sessions=again)
        return True

    @property
    def is_cut(self) -> bool:
        """Whether blocks of the first rounds are missing, which the budget had no room for."""
        return bool(self.workloads) and any(self._missing(each, 0) for each in self.plan.sessions)

    def _measure(self, session: Session, left_s: float) -> None:
        """Start its servers, measure what is not there yet on all of them, stop them."""
        by_name = {each.name: each for each in self.plan.variants}
        variants = [by_name[name] for name in session.variants]
        with self.session(variants, label=str(session.launch)) as (servers, generator):
            self.ends_s = time.monotonic() + left_s
            while todo := self._next_round(session):
                self.passes_left = len(todo) * len(session.variants)
                for block in todo:
                    if time.monotonic() > self.ends_s:
                        return
                    # half a block is measured again, by one launch of all its variants
                    for name in variant_order(block, session.variants):
                        self.send_block(servers[name], generator, block, launch=session.launch)

    def _next_round(self, session: Session) -> list[Block]:
        """Return the blocks to send next: those missing of the first round that is not whole."""
        place = 0
        while self._wanted(session, place):
            if missing := self._missing(session, place):
                return missing
            place += 1
        return []

    def _missing(self, session: Session, place: int) -> list[Block]:
        """Return the blocks of a round that are not there yet for one of the variants."""
        there, launch = {each.key for each in self.passes}, session.launch
        wanted, count = self._wanted(session, place), self.plan.blocks
        every = blocks(self.points, self.workloads, count=count, launch=launch, place=place)
        return [
            block
            for block in every
            if block.point in wanted
            and any((launch, block.number, block.point, n) not in there for n in session.variants)
        ]

    def _wanted(self, session: Session, place: int) -> Sequence[Point]:
        """Return the points that a round of a session measures.

        The first round has all; later ones have those of an open comparison that needs more blocks
        than are sent in any case. Where each runs alone, the launches before decide, so that both
        of a pair are sent the same.
        """
        plan, alone = self.plan, len(session.variants) == 1
        if place == 0 and session.launch < (plan.request.launches or LAUNCHES):
            return self.points
        if plan.request.quick:
            return ()
        first, *others = (variant.name for variant in plan.variants)
        names = others if first in session.variants else session.variants
        known = [each for each in self.passes if not alone or each.launch < session.launch]
        coming = max(0, plan.launches - session.launch - 1) * plan.blocks
        coming += (place * plan.blocks) if alone else 0
        return [
            at
            for at in self.points
            if any(self._blocks_needed(known, name, first, at) > coming for name in names)
        ]

    def _blocks_needed(self, passes: Sequence[Pass], name: str, first: str, at: Point) -> int:
        """Return how many more blocks would decide a comparison; 0 if it is decided by others."""
        found = speedup(passes, variant=name, against=first, at=at)
        if found is None or verdict(found).level != "open":
            return 0
        what, more = needed(found)
        return more if what == "blocks" else 0

    def _budget_s(self) -> float:
        """Return what is left of the budget of all sessions of the run, launches not counted."""
        rest_s = REST_S if any(len(each.variants) > 1 for each in self.plan.sessions) else 0.0
        return self.plan.budget_s - sum(each.duration_s + rest_s for each in self.passes)

    def write(self, *, is_complete: bool, outlet: Outlet) -> Result:
        """Return the result of what is there, and write its files."""
        plan, content = self.plan, self.directory.content
        notes = list(self.notes)
        if self.is_cut:
            notes.append(
                f"the budget of {plan.request.budget or BUDGET} ended the run before all blocks "
                "were measured: `--resume` with a longer `--budget` goes on"
            )
        if not plan.together:
            notes.append("variants ran one after another")
        about = Result(
            name=plan.name,
            created=content["created"],
            duration_s=content["spent_s"],
            host=described(plan.platform),
            launches=plan.launches,
            variants=tuple(
                dataclasses.replace(
                    variant.info,
                    model=variant.info.model or self.models.get(variant.name, ""),
                    kv_cache_tokens=self.kv_tokens.get(variant.name),
                    kv_cache_requests=self.kv_requests.get(variant.name),
                )
                for variant in plan.variants
            ),
            workloads={name: each.sha256 for name, each in self.workloads.items()},
            cells=(),
            comparisons=(),
            notes=tuple(notes),
            is_complete=is_complete,
        )
        result = summarise(plan, self.passes, about=about)
        for name, text in outlet.files(result).items():
            self.directory.write(name, text)
        return result


def run_benchmark(
    request: BenchRequest, *, output: str | None, resumed: str | None, outlet: Outlet
) -> tuple[Result, Path]:
    """Return the result and its directory, of a new run or of the one to resume.

    Raises SpecserveError; what was measured until then is kept.
    """
    if resumed is None:
        plan = plan_bench(request, notices=outlet.notices)
        with new_directory(plan, output) as directory:
            return _run(plan, directory, outlet=outlet), directory.path
    if dataclasses.replace(request, budget=None) != BenchRequest():
        raise UsageError(
            "`--resume` continues a run with the options that it began with",
            hint="only `--budget` and `--format` can be given with it",
        )
    with resume(Path(resumed)) as directory:
        try:
            asked = from_json(BenchRequest, json.dumps(directory.content.get("asked")))
        except ValueError as error:
            raise UsageError(f"`{directory.path}` is not a run of `specserve bench`") from error
        together = bool(directory.content["together"])
        asked = dataclasses.replace(asked, budget=request.budget or asked.budget)
        plan = plan_bench(asked, together=together, notices=outlet.notices)
        return _run(plan, directory, outlet=outlet), directory.path


def new_directory(plan: BenchPlan, output: str | None) -> RunDirectory:
    """Return the directory of a new run: `output`, or one in the state folder."""
    stem = f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    content = {
        "name": plan.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "asked": dataclasses.asdict(plan.request),
        "together": plan.together,
        "spent_s": 0.0,
    }
    return create(Path(output) if output else state_folder() / "bench" / stem, content)


def _run(plan: BenchPlan, directory: RunDirectory, *, outlet: Outlet) -> Result:
    """Measure in every session what the first one began with. Raises UsageError if it changed."""
    began_s, say = time.monotonic(), outlet.notices.say
    for variant in plan.variants:
        what = variant.plan.fingerprint if variant.plan is not None else variant.url or ""
        directory.pin(f"`{variant.name}`", what)
    for what, value in described(plan.platform).items():
        directory.pin(what, value)
    with stop_on_signals() as stop, outlet.open_view() as view:
        bench = Bench(plan, directory, view, stop)
        names = ", ".join(variant.name for variant in plan.variants)
        points = f"{len(plan.points)} point{'' if len(plan.points) == 1 else 's'}"
        say(f"measuring {points} (a point is a workload, load and temperature) on {names}")
        say(f"run directory: {directory.path}")
        try:
            bench.run()
        except SpecserveError:
            directory.add_elapsed(began_s)
            if bench.passes:
                bench.write(is_complete=False, outlet=outlet)
                again = f"`specserve bench --resume {directory.path}` continues"
                say(f"{len(bench.passes)} measured blocks are kept: {again}")
            raise
        directory.add_elapsed(began_s)
        return bench.write(is_complete=True, outlet=outlet)
