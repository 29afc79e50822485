"""One tune: servers in turns with the one without speculation, up to the result."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from specserve.errors import Interrupted, LaunchError, SpecserveError, TrafficError
from specserve.measure.bench.passes import (
    RUN,
    Block,
    Progress,
    RunDirectory,
    create,
    resume,
    seeded,
    variant_order,
)
from specserve.measure.bench.plan import BASELINE, Variant
from specserve.measure.bench.result import Point
from specserve.measure.servers import Measurement, Outlet, Running, described
from specserve.measure.tune import choose
from specserve.measure.tune.choose import Choice, Row, steps_by_request
from specserve.measure.tune.plan import ROUNDS, Setting, TunePlan
from specserve.measure.values import ASSUMED_SPEEDS
from specserve.measure.verdict import INCONCLUSIVE
from specserve.serve.process import stop_on_signals

MAX_NOISE = 0.10
"""A cell whose speedup is not known within this share is measured again."""
_MAX_BETTER = 2


class Tune(Measurement):
    """A tune while it runs."""

    def __init__(
        self, plan: TunePlan, directory: RunDirectory, outlet: Outlet, stack: ExitStack
    ) -> None:
        """`stack`: ends the server without speculation, which runs beside all others if it can."""
        view, stop = stack.enter_context(outlet.open_view()), stack.enter_context(stop_on_signals())
        super().__init__(plan, directory, view, stop)
        self.plan, self._notices, self._stack = plan, outlet.notices, stack
        self.takes_turns = bool(directory.content["together"])
        self.per_slot = int(directory.content["per_slot"])
        self.left_out: dict[str, str] = {}
        self.failed: dict[int, SpecserveError] = {}
        self.schedule: Setting | None = None
        self._baseline: dict[str, Running] = {}
        left_s = max(0.0, plan.budget_s - float(directory.content["spent_s"]))
        self._ends_s = time.monotonic() + left_s
        timer = threading.Timer(left_s, stop.request, [signal.SIGALRM])
        timer.start()
        stack.callback(timer.cancel)

    def run(self) -> None:
        """Measure what the choice needs. Raises LaunchError, TrafficError if no launch succeeds.

        Every launch is sent the same blocks. K_max tells the acceptance of every smaller K and one
        point of what a step costs; the K that it predicts to be the best tells another one.
        """
        plan = self.plan
        first = dict.fromkeys([plan.most_tokens, min(plan.own_tokens, plan.most_tokens)])
        largest = next((k for k in first if self.measure(Setting(k), later=k > 1)), None)
        if largest is None:
            raise next(iter(self.failed.values()))
        speculating = [each for each in self.passes if each.variant != BASELINE]
        if speculating and not steps_by_request(speculating):
            self.note("the server does not report its steps: K that were not launched are unknown")
        launched = [k for k in choose.launched_tokens(self.passes) if k != largest]
        for tokens in launched:  # by an earlier session, which may have been cut off
            self.measure(Setting(tokens))
        for _ in range(_MAX_BETTER - len(launched)):
            wanted = choose.next_tokens(choose.rows(plan.points, self.passes), failed=self.failed)
            if wanted is None:
                break
            self.measure(Setting(wanted))
        self._try_schedule()

    def _try_schedule(self) -> None:
        """Measure a schedule and the best single K, also where the schedule changes K."""
        plan, known = self.plan, choose.rows(self.plan.points, self.passes)
        choice = choose.choice_of(plan.points, self.passes, plan.keys)
        if choice.setting is None or choice.speculation is None:
            return
        single = choice.setting
        wanted = choose.next_schedule(known, single.tokens)
        if wanted is None:
            return
        edge = dict.fromkeys(replace(point, concurrency=wanted.edge) for point in plan.points)
        extra = [point for point in edge if point not in plan.points]
        if extra:
            self.note(f"concurrency {wanted.edge}, where the schedule changes K, is measured, too")
        if self.measure(single, extra, later=1) and self.measure(wanted, extra):
            if choose.beats(self.passes, wanted, single.tokens, [*plan.points, *extra]):
                self.schedule = wanted
            elif wanted.words not in self.left_out:
                self.note(f"{wanted.words} was measured, and is not better than {single.words}")

    def measure(self, setting: Setting, extra: Sequence[Point] = (), *, later: int = 0) -> bool:
        """Send to this setting and to the baseline every block that is not there yet.

        In turns if two servers fit, else to one after the other. `later`: launches that are still
        to come, for which a part of the budget is kept. Returns False if the launch failed.
        """
        variant = self.plan.variant(setting, notices=self._notices)
        points, launch = (*self.plan.points, *extra), 0
        groups = [[self.plan.baseline], [variant]]
        if self.takes_turns:
            groups = [[self.plan.baseline, variant]]
            names: list[str] = self.directory.content.setdefault("settings", [])
            if setting.name not in names:
                names.append(setting.name)
                self.directory.update()
            launch = names.index(setting.name)
        self.left_out[setting.words] = "the budget ended before all of it was measured"
        try:
            for place, group in enumerate(groups, start=1):
                self._session(group, launch, points, later=later + len(groups) - place)
        except (LaunchError, TrafficError) as error:
            self.failed[setting.tokens if setting.last_batch is None else 0] = error
            self.left_out[setting.words] = error.message
            self.on_progress(
                Progress(f"{setting.words} is left out: {error.message}", is_note=True)
            )
            return False
        if not self._todo(launch, groups[-1], points):
            del self.left_out[setting.words]
        return True

    def _todo(
        self, launch: int, group: Sequence[Variant], points: Sequence[Point]
    ) -> list[tuple[int, Point]]:
        """The rounds and points that one of the servers was not sent, in order."""
        there = {each.key for each in self.passes}
        found = [
            (number, point)
            for point in points
            for number in range(self._rounds(group, point))
            if any((launch, number, point, each.name) not in there for each in group)
        ]
        return sorted(found, key=lambda each: (each[0], seeded(repr(each)).random()))

    def _rounds(self, group: Sequence[Variant], point: Point) -> int:
        """Rounds at a point: twice as many where these do not tell the speedup well."""
        if len(group) < 2:
            return ROUNDS
        found = choose.mean_speedup(self.passes, group[-1].name, [point])
        is_noisy = found is not None and found.blocks >= ROUNDS and found.half() > MAX_NOISE
        return 2 * ROUNDS if is_noisy else ROUNDS

    def _round_s(self, group: Sequence[Variant], points: Sequence[Point]) -> float:
        """What a block at each point will take: as those before it, on whatever server."""
        round_s = 0.0
        for point in points:
            took_s = [
                s for (_, at), times_s in self._took_s.items() if at == point for s in times_s
            ]
            round_s += fmean(took_s) if took_s else self.plan.block_s(point, self.per_slot)
        return len(group) * round_s

    def _session(
        self, group: Sequence[Variant], launch: int, points: Sequence[Point], *, later: int
    ) -> None:
        """Start the servers if there is time for a round, and send rounds while there is."""
        todo = self._todo(launch, group, points)
        start_s = max(
            map(max, self.starts_s.values()), default=ASSUMED_SPEEDS[self.plan.platform].start_s
        )
        starts = sum(each.name not in self._baseline for each in group)
        needed_s = starts * start_s + self._round_s(group, points)
        if not todo or time.monotonic() + needed_s > self._ends_s:
            return
        label = str(launch)
        if self.takes_turns and not self._baseline:
            server = self.server(group[0], label=label)
            self._baseline[BASELINE] = self._stack.enter_context(server)
        with self.session(group, label=label, beside=self._baseline) as session:
            servers, driver = session
            left_s = self._ends_s - time.monotonic()
            own_s = (left_s - later * max(map(max, self.starts_s.values()), default=0.0)) / (
                later + 1
            )
            if own_s < self._round_s(group, points):
                own_s = left_s  # there is no room for the others in any case
            self.ends_s = time.monotonic() + own_s
            self.passes_left = len(todo) * len(group)
            while todo:
                number, point = todo[0]
                if time.monotonic() + self._round_s(group, [point]) > self.ends_s:
                    return
                block = self._block(number, point)
                for name in variant_order(block, [each.name for each in group]):
                    if (launch, number, point, name) not in {each.key for each in self.passes}:
                        self.send_block(servers[name], driver, block, launch=launch)
                todo = self._todo(launch, group, points)

    def _block(self, number: int, point: Point) -> Block:
        """The requests of one round at one point: the next prompts of its workload."""
        prompts, count = self.workloads[point.workload].prompts, self.per_slot
        count *= point.concurrency
        line = seeded(f"{point}").sample(prompts, len(prompts))
        some = [line[(number * count + at) % len(line)] for at in range(count)]
        seed = seeded(f"{point} {number}").randrange(2**31)
        return Block(number, point, tuple(some), seed)

    def result(self) -> TuneResult:
        """What the passes say."""
        plan, content = self.plan, self.directory.content
        return TuneResult(
            name=plan.name,
            created=content["created"],
            duration_s=round(float(content["spent_s"]), 1),
            host=content["host"],
            launches=self.launches,
            choice=choose.choice_of(plan.points, self.passes, plan.keys, schedule=self.schedule),
            rows=tuple(choose.rows(plan.points, self.passes)),
            missing=tuple(f"{name}: {why}" for name, why in self.left_out.items()),
            notes=tuple(self.notes),
        )


def run_tune(plan: TunePlan, *, outlet: Outlet) -> tuple[TuneResult, Path]:
    """Return the result and its folder, new or resumed. Raises SpecserveError; passes stay."""
    began_s, is_there = time.monotonic(), (plan.place / RUN).is_file()
    content = {
        "kind": "tune",
        "name": plan.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": described(plan.platform),
        "together": plan.together,
        "per_slot": plan.per_slot,
        "spent_s": 0.0,
    }
    with ExitStack() as stack:
        directory = resume(plan.place) if is_there else create(plan.place, content)
        stack.enter_context(directory)
        day, place = directory.content["created"][:10], directory.path
        begins = f"resuming the run of {day}; remove {place} to start over"
        outlet.notices.say(begins if is_there else f"run directory: {place}")
        tune = Tune(plan, directory, outlet, stack)
        try:
            tune.run()
        except SpecserveError as error:
            if not isinstance(error, Interrupted) or error.exit_code != 128 + signal.SIGALRM:
                error.hint = error.hint or "the same command resumes from what was measured"
                raise
        finally:
            directory.add_elapsed(began_s)
        result = tune.result()
        for name, text in outlet.files(result).items():
            directory.write(name, text)
    return result, place


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A whole tune; its fields are the keys of result.json."""

    name: str
    created: str
    duration_s: float
    host: Mapping[str, str]
    launches: int
    choice: Choice
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    """What the budget left out, and launches that failed."""
    notes: tuple[str, ...] = ()


def write_choice(path: str, result: TuneResult) -> str:
    """Change `speculation` in the file, and say what was done. Raises UsageError and FactError."""
    from specserve.profile.writer import rewrite_section

    if result.choice.verdict.word == INCONCLUSIVE:
        return f"{path} was not changed: {result.choice.verdict.sentence}"
    wanted = result.choice.speculation
    if not rewrite_section(path, "speculation", wanted, remark=remark(result)):
        return f"{path} already has this `speculation`"
    return f"{path}: `speculation` was changed; `git diff` shows it"


def remark(result: TuneResult) -> str:
    """When, where and why; begins as every such remark does, so that the next one replaces it."""
    choice, machine = result.choice, result.host.get("accelerator", "cpu")
    vllm = result.host.get("vllm", "?")
    why, mean = choice.verdict.sentence, choice.speedup
    if mean is not None and choice.speculation:
        why = f"measured {mean.value:.2f}x ({mean.low:.2f}-{mean.high:.2f})"
    return f"specserve tune: {result.created[:10]}, {machine}, vLLM {vllm}: {why}"
