"""Blocks: requests that every variant is sent in turn, so that their passes are pairs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specserve.measure.bench.passes import Pass
from specserve.measure.bench.result import Point
from specserve.measure.workloads.workload import Prompt, Workload

PER_SLOT = 3
"""Requests in a block for each that runs at once: its end, where fewer run, must not weigh much."""


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that every variant is sent, one variant right after another."""

    number: int
    point: Point
    prompts: tuple[Prompt, ...]
    seed: int
    """The seed of sampling: the same for all variants."""


def blocks(
    points: Sequence[Point],
    workloads: Mapping[str, Workload],
    *,
    count: int,
    launch: int,
    place: int = 0,
) -> tuple[Block, ...]:
    """Return one round of a launch: `count` blocks of each point, in order. `place`: its number.

    One of every point in an order of its own, and so on, so that a drift of the machine falls on
    all alike, and so that all have as many when the time is up.
    """
    rng = seeded(f"order {launch} {place}")
    requests = {
        point: prompts_by_block(
            workloads[point.workload].prompts, point, count=count, key=f"{launch} {place}"
        )
        for point in points
    }
    found: list[Block] = []
    for index in range(count):
        for point in rng.sample(points, len(points)):
            number = place * count * len(points) + len(found)
            found.append(Block(number, point, requests[point][index], rng.randrange(2**31)))
    return tuple(found)


def prompts_by_block(
    prompts: Sequence[Prompt], point: Point, *, count: int, key: str = ""
) -> list[tuple[Prompt, ...]]:
    """Return the requests of a point's blocks: every prompt equally often, as the load needs."""
    rng = seeded(f"deal {point} {key}")
    turns = max(1, math.ceil(count * PER_SLOT * point.concurrency / len(prompts)))
    line = [prompt for _ in range(turns) for prompt in rng.sample(prompts, len(prompts))]
    bounds = [len(line) * place // count for place in range(count + 1)]
    return [tuple(line[low:high]) for low, high in itertools.pairwise(bounds)]


def seeded(text: str) -> random.Random:
    """Return the same draws for the same text, on every machine."""
    return random.Random(text)  # noqa: S311  # an order, no secret


def variant_order(block: Block, variants: Sequence[str]) -> list[str]:
    """Return the variants of a block in an order drawn from its seed."""
    return seeded(f"{block.seed} variants").sample(variants, len(variants))


def passes_of(passes: Sequence[Pass], variant: str, at: Point) -> list[Pass]:
    """Return the passes of a variant at a point."""
    return [each for each in passes if each.variant == variant and each.point == at]


def paired(
    passes: Sequence[Pass], variant: str, against: str, at: Point
) -> tuple[list[Pass], list[Pass]]:
    """Return the passes of two variants at a point, of the blocks that both were sent."""
    mine, theirs = passes_of(passes, variant, at), passes_of(passes, against, at)
    both = {each.key[:2] for each in mine} & {each.key[:2] for each in theirs}
    return (
        [each for each in mine if each.key[:2] in both],
        [each for each in theirs if each.key[:2] in both],
    )
