"""What every server of a sweep does on the calm machine: the neighbours of a shared one are no property of a K.

Beside others the same step of the same server takes up to half as long again, for tenths of seconds or for minutes,
which no order of turns makes up for. So a pass is dealt to its parts (tune/observe.py), and each part is
taken from all passes that have it: a step depends on server and load alone, prefills on the prompts and on whether
there is a draft, and how many steps there are was counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specserve.measure.bench.arms import BASELINE
from specserve.measure.bench.driver import Pass
from specserve.measure.tune.observe import QUICK, parts, stretches_s

SEPARATOR = "."
_QUIET = 0.25
"""The share of a group's prefills that took less than the calm one: there are few, and noise of its own is in them."""

Floats = NDArray[np.float64]
Load = tuple[float, int]
"""Temperature and requests at once."""
Place = tuple[str, float, int]
"""Workload, temperature, requests at once."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One pass, dealt to its parts."""

    arm: str
    group: str
    """Of prompts: the same ones come again."""
    load: Load
    block: tuple[int, int]
    """Launch and number: passes of one block come right after one another."""
    tokens: int
    steps: int
    held_up_s: float
    whole_s: float
    """Of all requests together, as it was."""
    stretches_s: Floats

    @property
    def place(self) -> Place:
        """Where it counts."""
        return self.group.partition(SEPARATOR)[0], *self.load


@dataclass(frozen=True, slots=True)
class Calm:
    """The parts on the calm machine, in seconds."""

    step_s: Mapping[tuple[str, Load], float]
    held_up_s: Mapping[str, float]
    """By group, without a draft."""
    prefills: float
    """What prefills take with a draft, over what they take without."""

    def held_up_with_s(self, arm: str, group: str) -> float:
        """What prefills hold all requests of a group up together, on this server."""
        return self.held_up_s[group] * (1.0 if arm == BASELINE else self.prefills)


def taken(passes: Sequence[Pass]) -> list[Taken]:
    """Those with steps that could be timed."""
    found = []
    for done in passes:
        part = parts(done)
        stretches = np.array(stretches_s(done))
        if part is not None and stretches.size:
            point = done.point
            found.append(
                Taken(
                    arm=done.arm,
                    group=point.workload,
                    load=(point.temperature, point.concurrency or 1),
                    block=(done.launch, done.block),
                    tokens=done.output_tokens,
                    steps=part.steps,
                    held_up_s=part.held_up_s,
                    whole_s=part.whole_s(part.step_s),
                    stretches_s=stretches,
                )
            )
    return found


def calm(held: Sequence[Taken]) -> Calm:
    """What all these passes tell of the calm machine."""
    stretches: dict[tuple[str, Load], list[Floats]] = {}
    waits: dict[str, list[float]] = {}
    prefills = _prefills(held)
    for each in held:
        stretches.setdefault((each.arm, each.load), []).append(each.stretches_s)
        factor = 1.0 if each.arm == BASELINE else prefills
        waits.setdefault(each.group, []).append(each.held_up_s / factor)
    return Calm(
        {place: float(np.quantile(np.concatenate(found), QUICK)) for place, found in stretches.items()},
        {group: float(np.quantile(found, _QUIET)) for group, found in waits.items()},
        prefills,
    )


def _prefills(held: Sequence[Taken]) -> float:
    """The median of passes right after one another; a draft makes no prefill shorter."""
    plain = {(each.group, each.block): each.held_up_s for each in held if each.arm == BASELINE}
    pairs = (
        (each.held_up_s, plain.get((each.group, each.block), 0.0)) for each in held if each.arm != BASELINE
    )
    ratios = [with_s / without_s for with_s, without_s in pairs if without_s > 0]
    return max(1.0, float(np.median(ratios))) if ratios else 1.0


def rates(held: Sequence[Taken], known: Calm) -> dict[Place, dict[str, float]]:
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
                written = {group: math.fsum(some) / len(some) for group, some in groups.items()}
                steps_s = math.fsum(written.values()) * counts["steps"] / counts["tokens"] * step_s
                held_up_s = math.fsum(known.held_up_with_s(arm, group) for group in groups)
                rate = math.fsum(written.values()) * place[2] / (steps_s + held_up_s)
                found.setdefault(place, {})[arm] = rate
    return found
