"""One tune from its first launch to its confirmation, on the measuring engine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack

from specserve.errors import LaunchError, TrafficError
from specserve.measure.bench.arms import Arm
from specserve.measure.bench.plan import Block, arm_order
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Noted, OnNews, RunDirectory
from specserve.measure.bench.traffic import Driver, Running
from specserve.measure.run import Measurement
from specserve.measure.tune.plan import (
    BASELINE,
    CONFIRMING,
    EXTRA,
    LEAST_ROUNDS,
    LEAST_SHARE,
    ROUNDS,
    Candidate,
    Wish,
    cells,
    confirmation_s,
    confirming,
    measuring_s,
    split,
)
from specserve.measure.tune.result import Choice
from specserve.measure.workloads.workload import Prompt
from specserve.serve.signals import StopRequest

_EXTRA_SHARE = 0.25
"""A pass at a load between takes about this share of one at a point."""


class Tune(Measurement):
    """A tune while it runs; a context manager, which ends what still serves.

    Launches are numbered in the order of the wish; the confirmation is the last.
    """

    def __init__(
        self,
        wish: Wish,
        directory: RunDirectory,
        on_news: OnNews,
        stop: StopRequest,
        *,
        fits_two: bool,
        slots: Sequence[tuple[str, ...]] = (),
        share: float = 1.0,
    ) -> None:
        """`fits_two`: two servers fit at once, so they can take turns. `slots`: accelerators of each of two servers.

        `share`: of the prompts, by the budget.
        """
        super().__init__(
            directory, on_news, stop, points=wish.points(), sources=wish.sources, max_tokens=wish.max_tokens
        )
        content = directory.content
        self.wish, self.share = wish, share
        self._fits_two, self._slots = fits_two, slots
        self.least_share = float(content.get("least_share", 1.0))
        """Of a workload's prompts, the fewest that a pass was sent."""
        self.failed: dict[str, str] = dict(content.get("failed", {}))
        """Candidates that could not be measured, with the reason."""
        self.is_interleaved = bool(content.get("is_interleaved"))
        self._stack = ExitStack()
        self._plain: Running | None = None
        """The server without speculation, which stays up for the confirmation if two servers fit at once."""
        self._began_s = time.monotonic()
        self._confirms = False
        """Whether a confirmation is still to come, for which a part of the budget is held back."""
        self._full_s: list[float] = []
        """What each pass at a point took, or would have taken with all prompts."""

    def __enter__(self) -> Tune:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def prompts(self) -> tuple[dict[str, tuple[Prompt, ...]], dict[str, tuple[Prompt, ...]]]:
        """By workload, the prompts to choose by, and those held out for the confirmation."""
        chosen, held_out = {}, {}
        for name, workload in self.workloads.items():
            chosen[name], held_out[name] = split(workload.prompts, self.wish.prompts)
            if chosen[name] == held_out[name]:
                self.note(f"{name}: too few prompts to keep some for the confirmation")
        return chosen, held_out

    def measure(self, candidates: Sequence[Candidate], *, confirms: bool) -> None:
        """Everything that the choice needs. Raises LaunchError, TrafficError, Interrupted; what was measured stays.

        `confirms`: whether a confirmation follows; if its two servers cannot run at once, the one without
        speculation is sent its prompts now.
        """
        self.failed.clear()
        self._confirms = confirms
        self._expect(candidates)
        self._launch(0, self.wish.baseline, None, confirms=confirms)
        first: LaunchError | TrafficError | None = None
        for number, each in enumerate(candidates, start=1):
            if each.small and candidates[number - 2].name in self.failed:
                continue  # it only adds to the one before
            try:
                self._launch(number, each.arm, each, confirms=False)
            except (LaunchError, TrafficError) as error:
                first = first or error
                self.failed[each.name] = error.message
                self.on_news(Noted(f"{each.name} is left out: {error.message}"))
        self._confirms = False
        if first is not None and all(each.small or each.name in self.failed for each in candidates):
            raise first

    def confirm(self, arm: Arm, *, launch: int) -> None:
        """The chosen server and the one without speculation, turn by turn if both fit, on held-out prompts."""
        blocks = self._confirming()
        least = LEAST_ROUNDS * len(self.points)
        if self.is_late():
            blocks = blocks[:least]
        # without room for two, the server without speculation was sent them in the first launch
        if all(
            self.has(launch, block, name) or (name == BASELINE and self.has(0, block, name))
            for block in blocks
            for name in (BASELINE, arm.name)
        ):
            return
        arms = [arm, self.wish.baseline] if self._fits_two else [arm]
        self.expected.clear()
        for block in blocks:
            for each in arms:
                self.expected[each.name, block.point] += not self.has(launch, block, each.name)
        self.launches_left = 1 if self._plain is not None else len(arms)
        self.is_interleaved = self._fits_two
        self.directory.update(is_interleaved=self.is_interleaved)
        beside = {BASELINE: self._plain} if self._plain is not None else {}
        with self.session(arms, label=str(launch), devices=self._devices(arm.name), beside=beside) as (
            servers,
            driver,
        ):
            for place, block in enumerate(blocks):
                if place >= least and self.is_late():
                    break  # with fewer rounds there would be no interval
                for name in arm_order(block, list(servers)):
                    self._pass(servers[name], driver, block, launch=launch)

    def launch_of(self, choice: Choice, *, first: int) -> int:
        """The number of the launch that confirms this choice; after a resumption, another choice has another one."""
        block = json.dumps(choice.speculation, sort_keys=True)
        known = list(self.directory.content.get("confirming", []))
        if block not in known:
            known.append(block)
            self.directory.update(confirming=known)
        return first + known.index(block)

    def share_now(self) -> float:
        """Of the prompts: as planned, and less if passes take longer than the budget has room for."""
        left_s = self.left_s()
        if left_s is None or not self._full_s:
            return self.share
        left = sum(
            count if point in self.points else count * _EXTRA_SHARE
            for (_, point), count in (+self.expected).items()
        )
        wanted_s = sum(self._full_s) / len(self._full_s) * max(1.0, left)
        return min(self.share, max(LEAST_SHARE, left_s / wanted_s))

    def left_s(self) -> float | None:
        """Of the budget, less what the confirmation needs; None without one."""
        if self.wish.budget_s is None:
            return None
        spent_s = float(self.directory.content.get("spent_s", 0.0)) + time.monotonic() - self._began_s
        return self.wish.budget_s - spent_s - self.confirmation_s()

    def confirmation_s(self) -> float:
        """What the fewest rounds of a confirmation to come will take, by what passes and starts took."""
        if not self._confirms or not self._full_s:
            return 0.0
        relative = confirmation_s(self.wish, tokens_per_s=1.0) / measuring_s(self.wish, tokens_per_s=1.0)
        pass_s = sum(self._full_s) / len(self._full_s)
        sent_s = pass_s * len(self.points) * relative * LEAST_ROUNDS / ROUNDS * self.share
        return sent_s + max(self._starts_s, default=0.0)

    def is_late(self) -> bool:
        """Whether the budget is used up."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def _expect(self, candidates: Sequence[Candidate]) -> None:
        """Count the passes and launches that are still to come."""
        workload, temperature = self.wish.workloads[0], self.wish.temperatures[0]
        for each in (None, *candidates):
            name = BASELINE if each is None else each.arm.name
            self.expected.update((name, point) for point in self.points)
            for load in self.wish.extras(each):
                self.expected[name, Point(workload, temperature, load)] += 2
        self.expected.subtract((each.arm, each.point) for each in self.passes if each.block < CONFIRMING)
        self.launches_left = 1 + len(candidates)

    def _confirming(self) -> list[Block]:
        return confirming(self.wish, self.prompts()[1], share=self.share)

    def _launch(self, number: int, arm: Arm, candidate: Candidate | None, *, confirms: bool) -> None:
        """One server and its cells, those that are not there yet."""
        if self.workloads and self._is_done(number, arm, candidate, confirms=confirms):
            self.launches_left -= 1
            return
        label = str(number)
        beside: dict[str, Running] = {}
        if candidate is None and confirms and self._fits_two:
            devices = self._devices(BASELINE).get(BASELINE)
            self._plain = self._stack.enter_context(self.server(arm, label=label, devices=devices))
            beside = {BASELINE: self._plain}
        devices_of = self._devices(arm.name)
        with self.session([arm], label=label, devices=devices_of, beside=beside) as (servers, driver):
            server, chosen = servers[arm.name], self.prompts()[0]
            for place in range(len(cells(self.wish, chosen, candidate=candidate))):
                share = self.share_now()
                cell = cells(self.wish, chosen, candidate=candidate, share=share)[place]
                if not (cell.is_extra and self.is_late()):
                    self._pass(server, driver, cell.block, launch=number, share=share)
            if confirms and not self._fits_two:
                for block in self._confirming():
                    self._pass(server, driver, block, launch=number)

    def _devices(self, name: str) -> dict[str, tuple[str, ...]]:
        """Accelerators by arm, if each of two servers has its own."""
        if len(self._slots) < 2:
            return {}
        return {name: self._slots[0], BASELINE: self._slots[1]}

    def _is_done(self, number: int, arm: Arm, candidate: Candidate | None, *, confirms: bool) -> bool:
        is_late = self.is_late()
        found = cells(self.wish, self.prompts()[0], candidate=candidate, share=self.share)
        wanted = [cell.block for cell in found if not (cell.is_extra and is_late)]
        if confirms and not self._fits_two:
            wanted += self._confirming()
        return all(self.has(number, block, arm.name) for block in wanted)

    def _pass(
        self, server: Running, driver: Driver, block: Block, *, launch: int, share: float = 1.0
    ) -> None:
        if self.has(launch, block, server.arm.name):
            return
        done = self.send_block(server, driver, block, launch=launch)
        if block.number < EXTRA:
            self._full_s.append(done.duration_s / share)
            sent = len({item.prompt.id for item in block.items})
            kept = sent / len(self.prompts()[0][block.point.workload])
            if kept < self.least_share:
                self.least_share = kept
                self.directory.update(least_share=kept)
