"""What is sent when: points, blocks, and the order of arms in them; the same in every run."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specserve.measure.bench.result import Point
from specserve.measure.workloads.workload import Prompt, Workload

PER_SLOT = 3
"""Requests in a block for each that runs at once: its end, where fewer run, must not weigh much."""
_LEAST_AT_RATE = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    blocks: int
    is_whole: bool = False
    """Whether every block is all prompts of its workload, once."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a block: a prompt, and which copy of it."""

    prompt: Prompt
    copy: int = 1

    @property
    def id(self) -> str:
        """As the records have it: a prompt whose own id has a `#` always gets the number of its copy."""
        is_plain = self.copy == 1 and "#" not in self.prompt.id
        return self.prompt.id if is_plain else f"{self.prompt.id}#{self.copy}"


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that every arm is sent, one arm right after another."""

    number: int
    point: Point
    items: tuple[Item, ...]
    seed: int
    """Of arrival times and of sampling: the same for all arms."""


def points(
    workloads: Sequence[str],
    *,
    concurrency: Sequence[int],
    rates: Sequence[float],
    temperatures: Sequence[float],
) -> tuple[Point, ...]:
    """Every combination."""
    loads: list[tuple[int | None, float | None]] = [(each, None) for each in concurrency]
    loads += [(None, each) for each in rates]
    return tuple(
        Point(workload, temperature, most, rate)
        for workload, temperature, (most, rate) in itertools.product(workloads, temperatures, loads)
    )


def blocks(
    wanted: Sequence[Point], workloads: Mapping[str, Workload], *, sizes: Sizes, launch: int, first: int = 0
) -> tuple[Block, ...]:
    """The blocks of one launch in the order in which they are measured: each round has one of every point.

    A round goes through the points in an order of its own, so that a drift of the machine falls on all alike, and so
    that what is there when the time is up has the same number of blocks everywhere.
    """
    rng = seeded(f"order {launch}")
    found = []
    dealt = {
        point: deal(workloads[point.workload].prompts, point, sizes=sizes, launch=launch) for point in wanted
    }
    number = first
    for place in range(sizes.blocks):
        order = list(wanted)
        rng.shuffle(order)
        for point in order:
            found.append(Block(number, point, dealt[point][place], rng.randrange(2**31)))
            number += 1
    return tuple(found)


def deal(prompts: Sequence[Prompt], point: Point, *, sizes: Sizes, launch: int) -> list[tuple[Item, ...]]:
    """The requests of a point's blocks: every prompt equally often, and as often as the load needs.

    Prompts are shuffled again for each round, alike for all arms.
    """
    rng = seeded(f"deal {point} {launch}")
    if sizes.is_whole:
        return [_copies(rng.sample(prompts, len(prompts))) for _ in range(sizes.blocks)]
    least = _LEAST_AT_RATE if point.concurrency is None else PER_SLOT * point.concurrency
    rounds = max(1, math.ceil(sizes.blocks * least / len(prompts)))
    line: list[Prompt] = []
    for _ in range(rounds):
        once = list(prompts)
        rng.shuffle(once)
        line += once
    bounds = [len(line) * place // sizes.blocks for place in range(sizes.blocks + 1)]
    return [_copies(line[low:high]) for low, high in itertools.pairwise(bounds)]


def _copies(prompts: Sequence[Prompt]) -> tuple[Item, ...]:
    seen: dict[str, int] = {}
    items = []
    for prompt in prompts:
        seen[prompt.id] = seen.get(prompt.id, 0) + 1
        items.append(Item(prompt, seen[prompt.id]))
    return tuple(items)


def seeded(text: str) -> random.Random:
    """The same draws for the same text, on every machine."""
    return random.Random(text)  # noqa: S311  # an order, no secret


def arm_order(block: Block, arms: Sequence[str]) -> list[str]:
    """The arms of a block in an order drawn from its seed."""
    order = list(arms)
    seeded(f"{block.seed} arms").shuffle(order)
    return order
