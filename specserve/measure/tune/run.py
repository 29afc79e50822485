"""One tune from its plan to its result: run in its directory, resumed by the same command, confirmed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from zlib import crc32

from specserve.diagnostics import Notices
from specserve.errors import LaunchError, SpecserveError, TrafficError, UsageError
from specserve.measure.bench.plan import arm_order
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Noted, OnNews, Pass, RunDirectory
from specserve.measure.bench.traffic import Running
from specserve.measure.bench.variants import Variant
from specserve.measure.servers import Measurement, Outlet
from specserve.measure.tune.candidates import chosen_arm
from specserve.measure.tune.choose import Choice, Confirmed, after, choose, confirmed_of
from specserve.measure.tune.earlier import EarlierRun, open_directory
from specserve.measure.tune.plan import (
    BASELINE,
    CONFIRMING,
    EXTRA,
    LEAST_SHARE,
    TUNED,
    TunePlan,
    duration,
    is_optional,
    split,
)
from specserve.measure.tune.predict import predict
from specserve.measure.tune.result import TuneResult, tune_result
from specserve.measure.workloads.workload import Prompt
from specserve.serve.signals import StopRequest, stop_on_signals

_EXTRA_SHARE = 0.25
"""A pass at a load between takes about this share of one at a point."""


class Tune(Measurement):
    """A tune while it runs; a context manager, which ends what still serves."""

    def __init__(self, plan: TunePlan, directory: RunDirectory, on_news: OnNews, stop: StopRequest) -> None:
        super().__init__(
            directory, on_news, stop, points=plan.points, sources=plan.sources, max_tokens=plan.max_tokens
        )
        self.plan = plan
        self.failed: dict[str, str] = {}
        """Launches that could not be measured, with the reason."""
        self._takes_turns = plan.room.at_once >= 2
        """Whether the chosen server and the one without speculation run at the same time."""
        self._stack = ExitStack()
        self._plain: dict[str, Running] = {}
        """The server without speculation, which stays up for the confirmation if two servers fit."""
        self._began_s = time.monotonic()
        self._confirms = False
        """Whether a confirmation is still to come, for which a part of the budget is held back."""

    def __enter__(self) -> Tune:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def measure(self) -> None:
        """Everything that the choice needs. Raises LaunchError, TrafficError, Interrupted; what was measured stays."""
        plan, kept, baseline = self.plan, self.plan.budget.kept, self.plan.baseline
        launches = [each for each in plan.launches if each.name in kept]
        self._confirms = plan.confirms
        self.expected.update((each.name, point) for each in launches for _, point in plan.passes(each))
        self.expected.subtract((each.arm, each.point) for each in self.passes if each.block < CONFIRMING)
        self.launches_left = len(launches)
        # if the servers of the confirmation cannot run at once, this one is sent its prompts now
        more = plan.confirmation() if plan.confirms and not self._takes_turns else []
        self._measure(
            0, [baseline.arm], [*plan.passes(baseline), *more], stays=plan.confirms and self._takes_turns
        )
        errors = []
        for candidate in plan.candidates:
            try:
                for launch in candidate.launches:
                    if launch in launches:
                        self._measure(plan.launches.index(launch), [launch.arm], plan.passes(launch))
            except (LaunchError, TrafficError) as error:  # further launches only add to the one that failed
                errors.append(error)
                self.failed[launch.name] = error.message
                self.on_news(Noted(f"{launch.name} is left out: {error.message}"))
        self._confirms = False
        if errors and all(each.name in self.failed or each.name not in kept for each in plan.candidates):
            raise errors[0]

    def confirm(self, arm: Variant, *, number: int) -> None:
        """The chosen server and the one without speculation, turn by turn if both fit, on held-out prompts."""
        arms = [arm, self.plan.baseline.arm] if self._takes_turns else [arm]
        passes, there = self.plan.confirmation(), self._sent()
        self.expected.clear()
        self.expected.update(
            (each.name, point)
            for block, point in passes
            for each in arms
            if (number, block, each.name) not in there
        )
        self.launches_left = len(arms) - len(self._plain)
        self._measure(number, arms, passes)

    def confirmation_number(self, choice: Choice) -> int:
        """The number of the launch that confirms a choice; another choice of a resumed tune has another one."""
        return CONFIRMING + crc32(json.dumps(choice.speculation, sort_keys=True).encode())

    def _sent(self) -> set[tuple[int, int, str]]:
        """Launch, block and arm of every pass that is there."""
        return {(each.launch, each.block, each.arm) for each in self.passes}

    def _measure(
        self,
        launch: int,
        arms: Sequence[Variant],
        passes: Sequence[tuple[int, Point]],
        *,
        stays: bool = False,
    ) -> None:
        """Start the servers and send the passes that are not there yet. `stays`: the server runs on afterwards."""
        there, label, slots = self._sent(), str(launch), self.plan.room.slots
        missing = [each for each in passes if any((launch, each[0], arm.name) not in there for arm in arms)]
        if not missing or (self.is_late() and all(is_optional(block) for block, _ in missing)):
            self.launches_left -= len(arms)
            return
        devices = {arms[0].name: slots[0], BASELINE: slots[1]} if len(slots) > 1 else {}
        if stays:
            own = devices.get(BASELINE)
            self._plain[BASELINE] = self._stack.enter_context(self.server(arms[0], label=label, devices=own))
        beside = self._plain if arms[-1].is_baseline else {}
        with self.session(arms, label=label, devices=devices, beside=beside) as (servers, driver):
            for number, point in missing:
                if is_optional(number) and self.is_late():
                    continue
                is_choosing = number < CONFIRMING
                block = self.plan.block(
                    number,
                    point,
                    self.prompts(point.workload)[not is_choosing],
                    is_plain=arms[0].is_baseline,
                    share=self.share_now() if is_choosing else self.plan.budget.share,
                )
                for name in arm_order(block, list(servers)):
                    if (launch, number, name) not in there:
                        self.send_block(servers[name], driver, block, launch=launch)

    def prompts(self, workload: str) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
        """Those to choose by, and those held out for the confirmation."""
        chosen, held_out = split(self.workloads[workload].prompts, self.plan.prompts)
        if chosen == held_out:
            self.note(f"{workload}: too few prompts to keep some for the confirmation")
        return chosen, held_out

    def _share_of(self, done: Pass) -> float:
        """The share of a workload's prompts that a pass at a point was sent."""
        return len({each.prompt for each in done.requests}) / len(self.prompts(done.point.workload)[0])

    def _pass_s(self) -> float | None:
        """What a pass with all prompts takes; None before the first."""
        took_s = [each.duration_s / self._share_of(each) for each in self.passes if each.block < EXTRA]
        return fmean(took_s) if took_s else None

    def share_now(self) -> float:
        """Of the prompts: as planned, and less if passes take longer than the budget has room for."""
        left_s, pass_s, share = self.left_s(), self._pass_s(), self.plan.budget.share
        if left_s is None or pass_s is None:
            return share
        left = 0.0
        for (_, point), count in (+self.expected).items():
            left += count if point in self.points else count * _EXTRA_SHARE
        return min(share, max(LEAST_SHARE, left_s / (pass_s * max(1.0, left))))

    def left_s(self) -> float | None:
        """Of the budget, less what the confirmation needs; None without one."""
        if self.plan.budget_s is None:
            return None
        spent_s = float(self.directory.content.get("spent_s", 0.0)) + time.monotonic() - self._began_s
        return self.plan.budget_s - spent_s - self.confirmation_s()

    def _left_s(self) -> float:
        """What the passes will take, at most what is left of the budget; but launches to come are made without one."""
        left_s, budget_s = super()._left_s(), self.left_s()
        return left_s if budget_s is None else min(left_s, max(budget_s, self._launches_s()))

    def confirmation_s(self) -> float:
        """What the fewest rounds of a confirmation to come will take, by what passes and starts took."""
        pass_s = self._pass_s()
        if not self._confirms or pass_s is None:
            return 0.0
        sent_s = pass_s * self.plan.confirmation_passes * self.plan.budget.share
        return sent_s + max(self._starts_s, default=0.0)

    def is_late(self) -> bool:
        """Whether the budget is used up."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def cut(self) -> str:
        """How many passes the budget left out, in one clause; empty if none."""
        there = self._sent()
        begun = {launch for launch, _, _ in there}
        planned = [
            (number, block, each.name)
            for number, each in enumerate(self.plan.launches)
            if number in begun and each.name not in self.failed
            for block, _ in self.plan.passes(each)
        ]
        missing = sum(each not in there for each in planned)
        if not missing or self.plan.budget_s is None:
            return ""
        return (
            f"the budget of {duration(self.plan.budget_s)} was used up after {len(planned) - missing} of "
            f"{len(planned)} measurements: the prediction rests on these alone"
        )

    def budget_notes(self) -> list[str]:
        """What the budget left out, for the result."""
        found = [cut] if (cut := self.cut()) else []
        least = min((self._share_of(each) for each in self.passes if each.block < EXTRA), default=1.0)
        if least < 1:
            found.append(
                f"to stay within the budget, some measurements sent only {least:.0%} of a workload's prompts"
            )
        return found


def run_tune(
    plan: TunePlan, found: EarlierRun | None, *, output: str | None, outlet: Outlet
) -> tuple[TuneResult, Path, SpecserveError | None]:
    """The result, where its raw data lies, and why the choice could not be confirmed, if it could not.

    Raises UsageError if the limits leave no two launches, SpecserveError; what was measured stays.
    """
    if plan.budget.exceeded:
        raise UsageError(
            "at least two launches are needed, one with speculation and one without, which is more than "
            f"{plan.budget.exceeded}",
            hint="raise this limit; `--dry-run` shows how long each launch takes",
        )
    began, say = time.monotonic(), outlet.notices.say
    if found is not None and found.answers(plan.request) and (result := found.result()) is not None:
        say(f"already measured on {found.begun}; use `-o` with another folder to measure again")
        return result, found.path, None
    directory = open_directory(plan, found, output)
    with ExitStack() as stack:
        stack.enter_context(directory)
        if found is not None:
            say(f"resuming the run of {found.begun}; use `-o` with another folder to start over")
            directory.update(asked=plan.request.json, is_complete=False)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(outlet.open_view())
        names = ", ".join(name for name in plan.budget.kept if name != TUNED)
        points = f"{len(plan.points)} point{'' if len(plan.points) == 1 else 's'}"
        say(f"measuring {points} on {names}; K up to {plan.candidates[0].most_tokens}")
        say(
            "concurrencies that you did not name are measured, too: prediction needs step times at other batch sizes"
        )
        say(f"run directory: {directory.path}")
        tune = Tune(plan, directory, view, stop)
        try:
            with tune:
                result, failure = _tuned(tune, began, outlet=outlet)
        except SpecserveError as error:
            if tune.passes:
                error.hint = error.hint or "the same command resumes from what was measured"
            raise
        finally:
            directory.spend(began)
    return result, directory.path, failure


def unconfirmed(error: SpecserveError, *, write: bool) -> SpecserveError:
    """The same error as that of a command whose choice was to be confirmed."""
    rather = "`--no-confirm --write` writes it unconfirmed" if write else "`--no-confirm` does without"
    ways = f"the same command tries it again, {rather}"
    error.message = f"the choice could not be confirmed: {error.message}"
    error.hint = f"{error.hint}; {ways}" if error.hint else ways
    return error


def _tuned(tune: Tune, began: float, *, outlet: Outlet) -> tuple[TuneResult, SpecserveError | None]:
    """The result, and why the choice could not be confirmed."""
    plan, directory, failure = tune.plan, tune.directory, None
    tune.measure()
    notes = tune.budget_notes()
    for note in notes:
        outlet.notices.say(note)
    kept = [
        each for each in plan.candidates if each.name in plan.budget.kept and each.name not in tune.failed
    ]
    predictions = [predict(plan, tune.passes, each) for each in kept]
    notes += [
        f"{each.candidate.name}: no step could be timed, or the server did not report its steps"
        for each in predictions
        if not each.rows
    ]
    predictions = [each for each in predictions if each.rows]
    if not predictions:
        raise TrafficError(
            "no configuration with speculation could be measured",
            hint="use longer answers (`--max-tokens`), or another workload",
        )
    choice = choose(predictions, objective=plan.objective)
    confirmed: tuple[Confirmed, ...] = ()
    if choice.speculates and plan.confirms:
        if tune.is_late():
            notes.append("the budget was used up before the choice could be confirmed at every point")
        else:
            failure = _confirm(tune, choice, notices=outlet.notices)
            notes += [f"the choice could not be confirmed: {failure.message}"] if failure else []
        confirmed = confirmed_of(
            plan, tune.passes, choice, predictions, launch=tune.confirmation_number(choice)
        )
        choice = after(choice, confirmed, objective=plan.objective)
    if not confirmed:
        choice = replace(choice, caveat=tune.cut())
    tune.notes = [*tune.notes, *notes]
    spent_s = float(directory.content.get("spent_s", 0.0)) + time.monotonic() - began
    result = tune_result(plan, tune, predictions, choice, confirmed, failed=tune.failed, duration_s=spent_s)
    for name, text in outlet.files(result).items():
        directory.write(name, text)
    directory.update(is_complete=failure is None)
    return result, failure


def _confirm(tune: Tune, choice: Choice, *, notices: Notices) -> SpecserveError | None:
    """Measure the choice, and return why it could not be measured."""
    assert choice.speculation is not None
    arm = chosen_arm(tune.plan.request, choice.speculation, notices=notices)
    try:
        tune.confirm(arm, number=tune.confirmation_number(choice))
    except (LaunchError, TrafficError) as error:
        return error
    return None
