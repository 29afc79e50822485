"""What every server of a sweep takes for a step and for prefills, from blocks that the servers took in turns.

A step is compared with that of the server without speculation in the same block, right before or after it: what slows
the machine slows both. A step depends on server and load alone, prefills on the prompts and on whether there is a
draft, and how many steps there are was counted; so each is taken from all passes that have it, as a median.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specserve.measure.bench.rundir import Pass
from specserve.measure.bench.variants import BASELINE
from specserve.measure.tune.observe import observed

SEPARATOR = "."

Load = tuple[float, int]
"""Temperature and concurrency."""
Place = tuple[str, float, int]
"""Workload, temperature, concurrency."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One pass: its steps, and what held them up, in seconds of all its requests together."""

    arm: str
    group: str
    """Of prompts: the same ones come again."""
    load: Load
    block: tuple[int, int]
    """Launch and number: passes of one block come right after one another."""
    tokens: int
    steps: int
    step_s: float
    held_up_s: float
    relative: float
    """Its step over that of the server without speculation in the same block."""

    @property
    def place(self) -> Place:
        """Where it counts."""
        return self.group.partition(SEPARATOR)[0], *self.load

    @property
    def busy_s(self) -> float:
        """All of it, as it was."""
        return self.steps * self.step_s + self.held_up_s


@dataclass(frozen=True, slots=True)
class Medians:
    """The parts of every pass, in seconds."""

    step_s: Mapping[tuple[str, Load], float]
    held_up_s: Mapping[str, float]
    """By group, without a draft."""
    prefills: float
    """What prefills take with a draft, over what they take without."""

    def held_up_with_s(self, arm: str, group: str) -> float:
        """What prefills hold all requests of a group up together, on this server."""
        return self.held_up_s[group] * (1.0 if arm == BASELINE else self.prefills)


def taken(passes: Sequence[Pass]) -> list[Taken]:
    """Those with steps that could be timed, in blocks of which the server without speculation was timed, too."""
    timed = [
        (done, found, step_s)
        for done in passes
        if (found := observed([done], tokens=0)) is not None and (step_s := found.step_s) is not None
    ]
    plain_s = {_block(done): step_s for done, _, step_s in timed if done.arm == BASELINE}
    return [
        Taken(
            arm=done.arm,
            group=done.point.workload,
            load=(done.point.temperature, done.point.concurrency or 1),
            block=(done.launch, done.block),
            tokens=done.output_tokens,
            steps=found.chunks,
            step_s=step_s,
            held_up_s=found.held_up_s * len(found.first_s),
            relative=step_s / plain_s[_block(done)],
        )
        for done, found, step_s in timed
        if _block(done) in plain_s
    ]


def _block(done: Pass) -> tuple[int, int, str]:
    return done.launch, done.block, done.point.workload


def medians(held: Sequence[Taken], *, plain_s: Mapping[Load, float] | None = None) -> Medians:
    """What all these passes say. `plain_s`: a step without speculation by load, if more passes tell it."""
    relative: dict[tuple[str, Load], list[float]] = {}
    waits: dict[str, list[float]] = {}
    prefills = _prefills(held)
    base_s = plain_s or plain_steps_s(held)
    for each in held:
        relative.setdefault((each.arm, each.load), []).append(each.relative)
        factor = 1.0 if each.arm == BASELINE else prefills
        waits.setdefault(each.group, []).append(each.held_up_s / factor)
    return Medians(
        {place: base_s[place[1]] * statistics.median(found) for place, found in relative.items()},
        {group: statistics.median(found) for group, found in waits.items()},
        prefills,
    )


def plain_steps_s(held: Sequence[Taken]) -> dict[Load, float]:
    """Seconds of a step without speculation, by load."""
    found: dict[Load, list[float]] = {}
    for each in held:
        if each.arm == BASELINE:
            found.setdefault(each.load, []).append(each.step_s)
    return {load: statistics.median(steps_s) for load, steps_s in found.items()}


def _prefills(held: Sequence[Taken]) -> float:
    """The median of passes right after one another; a draft makes no prefill shorter."""
    plain = {(each.group, each.block): each.held_up_s for each in held if each.arm == BASELINE}
    ratios = [
        each.held_up_s / plain[each.group, each.block]
        for each in held
        if each.arm != BASELINE and plain.get((each.group, each.block), 0.0) > 0
    ]
    return max(1.0, statistics.median(ratios)) if ratios else 1.0


def rates(held: Sequence[Taken], known: Medians) -> dict[Place, dict[str, float]]:
    """Output tokens/s of every server in every place.

    How many steps the answers of a workload take a server does not depend on the load: it is counted over all.
    """
    steps: dict[tuple[str, float, str], Counter[str]] = {}
    tokens: dict[Place, dict[str, list[int]]] = {}
    for each in held:
        workload, temperature, _ = each.place
        counts = steps.setdefault((workload, temperature, each.arm), Counter())
        counts.update(steps=each.steps, tokens=each.tokens)
        tokens.setdefault(each.place, {}).setdefault(each.group, []).append(each.tokens)
    found: dict[Place, dict[str, float]] = {}
    for (workload, temperature, arm), counts in steps.items():
        for place, groups in tokens.items():
            step_s = known.step_s.get((arm, place[1:]))
            if place[:2] == (workload, temperature) and step_s is not None:
                written = math.fsum(statistics.fmean(some) for some in groups.values())
                steps_s = written * counts["steps"] / counts["tokens"] * step_s
                held_up_s = math.fsum(known.held_up_with_s(arm, group) for group in groups)
                found.setdefault(place, {})[arm] = written * place[2] / (steps_s + held_up_s)
    return found
