"""Blocks, requests that every variant is sent in turn, and passes, what one variant answered."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specserve.measure.bench.result import Point
from specserve.measure.workloads.load import Prompt, Workload
from specserve.metrics.counters import Acceptance

PER_SLOT = 3
"""Requests in a block for each that runs at once: its end, where fewer run, must not weigh much."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer; times in seconds."""

    id: str
    """The prompt's, with its place in the block: `ID#7`."""
    ok: bool
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    latency_s: float
    error: str | None = None
    steps: tuple[tuple[int, int], ...] = ()
    """Accepted and drafted tokens of each step, in order, if the server reports them
    (`per_request_spec_decode_metrics: detailed`)."""

    @property
    def prompt(self) -> str:
        """The prompt's id."""
        return self.id.rsplit("#", 1)[0]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """One block of requests on one variant."""

    launch: int
    """Which start of the servers it was, from 0."""
    block: int
    point: Point
    variant: str
    duration_s: float
    client_cpu: float
    """Share of one core that the load generator used."""
    requests: tuple[Request, ...]
    acceptance: Acceptance | None = None
    """What the server's counters gained; None if it shows none, or does not speculate."""
    queue_s: float | None = None
    """What its requests waited before they ran, all together; None if the server does not say."""
    preemptions: int = 0
    """How often a request had to give its place in the KV cache back."""
    launch_spread: float = 0.0
    """How much another start of the server differs; 0 for one that was not started for it."""

    @property
    def answered(self) -> list[Request]:
        """The requests whose answers came whole."""
        return [request for request in self.requests if request.ok]

    @property
    def output_tokens(self) -> int:
        """Tokens of the answers that came whole."""
        return sum(request.output_tokens for request in self.answered)

    @property
    def key(self) -> tuple[int, int, Point, str]:
        """What tells it from every other pass of a run."""
        return self.launch, self.block, self.point, self.variant


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
