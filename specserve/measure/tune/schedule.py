"""vLLM's schedule of draft tokens by batch size: the best one, and the one that measures several K in a launch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int, int]
"""First and last batch size, and K."""
MOST_LOSS = 0.01
"""Neighbouring ranges become one if no load loses more by it."""
LEAST_GAIN = 0.02
"""A schedule, or a K = 0 range, must be better than one K by so much."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """K for every load that was looked at."""

    chosen: Mapping[int, int]
    """K by concurrency."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The schedule as vLLM takes it; one range if one K serves all."""
        return ranges(self.chosen)

    @property
    def largest(self) -> int:
        """`num_speculative_tokens`: the most that any range drafts. 0: speculation is best left out."""
        return max(self.chosen.values())

    @property
    def is_constant(self) -> bool:
        """Whether no schedule is needed."""
        return len(set(self.chosen.values())) == 1

    def at(self, batch: int) -> int:
        """The K of a batch, as vLLM looks it up."""
        return [tokens for first, _, tokens in self.ranges if first <= batch][-1]


def build(
    rates: Mapping[int, Mapping[int, float]], *, zero_wins_at: Collection[int] = (), may_vary: bool = True
) -> Schedule:
    """The best schedule. `rates`: by load and K, whatever is better the larger it is.

    `zero_wins_at`: loads at which a K = 0 range was measured, and won; no other gets K = 0 beside loads that draft.
    `may_vary`: whether runner and method follow a schedule. Raises ValueError without rates.
    """
    losses = {load: _losses(rates[load], zero=load in zero_wins_at) for load in sorted(rates)}
    if not losses or not all(losses.values()):
        raise ValueError("a schedule needs rates at every load")
    _, constant = _least_loss(losses.values())
    groups = [([load], _least_loss([own])[1]) for load, own in losses.items()]
    while may_vary and len(groups) > 1:
        merged = [
            (*_least_loss(losses[load] for load in one + other), place)
            for place, ((one, _), (other, _)) in enumerate(pairwise(groups))
        ]
        loss, tokens, place = min(merged, key=lambda each: (each[0], each[2]))
        if loss > MOST_LOSS:
            break
        groups[place : place + 2] = [(groups[place][0] + groups[place + 1][0], tokens)]
    chosen = {load: tokens for loads, tokens in groups for load in loads}
    gain = max(own[constant] - own[chosen[load]] for load, own in losses.items())
    return Schedule(chosen if may_vary and gain >= LEAST_GAIN else dict.fromkeys(losses, constant))


def _losses(rates: Mapping[int, float], *, zero: bool) -> dict[int, float]:
    """What each K costs against the best, as a share; K = 0 only if it was measured to win, or is all there is."""
    kept = {tokens: rate for tokens, rate in rates.items() if tokens or zero} or rates
    best = max(kept.values(), default=0.0)
    return {tokens: 1.0 - rate / best if best > 0 else 1.0 for tokens, rate in kept.items()}


def _least_loss(losses: Iterable[Mapping[int, float]]) -> tuple[float, int]:
    """The K whose largest loss over these loads is least, behind that loss."""
    every = list(losses)
    common = set(every[0]).intersection(*every[1:])
    if not common:
        raise ValueError("each K was tried at only some of the loads")
    return min((max(each[tokens] for each in every), tokens) for tokens in common)


def ranges(chosen: Mapping[int, int]) -> tuple[Range, ...]:
    """Ranges whose limits lie between batch sizes, at their geometric mean, never on one.

    A batch at a limit would change its K from step to step. A closed loop's batch may be one smaller for a step, never
    larger, so the upper of two near sizes gets the room. The last range ends at the largest: vLLM carries its K on.
    """
    found, first = [], 1
    sizes = sorted(chosen)
    for size, after in zip(sizes, [*sizes[1:], None], strict=True):
        if after is None or chosen[after] != chosen[size]:
            last = size if after is None or after - size < 3 else math.isqrt(size * after)
            found.append((first, last, chosen[size]))
            first = last + 1
    return tuple(found)


FOLLOWS_ON_V2 = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Source: vllm/v1/worker/gpu/spec_decode/target_dependent_ar and dflash, 0.32 and 0.33."""
FOLLOWS_ON_V1 = frozenset({"ngram", "ngram_gpu", "eagle", "eagle3", "mtp", "draft_model", "dflash"})
"""Source: `_maybe_disable_dynamic_sd_for_v1` in vllm/config/vllm.py 0.33."""


def schedule_obstacle(method: str, runner: str, *, engines: int = 1) -> str | None:
    """Why the drafter follows no schedule, as a clause; None if it does. `engines`: of data parallelism."""
    if engines > 1:
        return "vLLM has no schedule with data parallelism"
    if runner == "v2" and method not in FOLLOWS_ON_V2:
        return f"`{method}` on vLLM's V2 runner drafts num_speculative_tokens whatever the schedule says"
    if runner == "v1" and method not in FOLLOWS_ON_V1:
        return f"`{method}` follows no schedule on vLLM's V1 runner"
    return None


_LEAST_BESIDE, _MOST_BESIDE = 3, 7
_LEAST_STEP, _MOST_BETWEEN = 1.12, 9


def ladder(loads: Collection[int], *, most_tokens: int, most_requests: int) -> dict[int, int]:
    """K by batch size for a launch that measures several K: of every load, and of a few batches beside them.

    The smallest load has K_max, which the acceptance of every K is read from. K falls with the load, as the best one
    does; batches beside the loads have a quite different K, so that cost by K and cost by load can be told apart. The
    largest batch has K = 0: what such a range costs while a draft is loaded.
    """
    found = {load: max(1, round(most_tokens / place)) for place, load in enumerate(sorted(loads), start=1)}
    largest = max(found)
    beside = dict.fromkeys(batch for load in found for batch in (load + 1, load - 1))
    near = [batch for batch in beside if 1 <= batch <= most_requests and batch not in found]
    further = range(largest + 2, min(largest + 1 + _LEAST_BESIDE, most_requests) + 1)
    kept = sorted([*near[:_MOST_BESIDE], *list(further)[: max(0, _LEAST_BESIDE - len(near))]])
    other = (1, most_tokens, max(1, most_tokens // 2))
    found |= {batch: other[place % len(other)] for place, batch in enumerate(kept)}
    if max(found) < most_requests:
        found[max(found) + 1] = 0
    return dict(sorted(found.items()))


def between(loads: Collection[int], *, most_tokens: int, most_requests: int) -> tuple[int, ...]:
    """Batches at which a plain step is timed, too: as many requests as verifications at these loads have tokens.

    A plain step of n requests runs the same kernels as a verification of n tokens, and drafts nothing: so what kernels
    are good at, and what drafts cost, can be told apart. Neighbours are not much alike, and there are a few at most.
    """
    counts = {load * (tokens + 1) for load in loads for tokens in range(1, most_tokens + 1)}
    wanted = sorted(count for count in counts - set(loads) if count <= most_requests)
    found: list[int] = []
    for count in wanted:
        step = max(_LEAST_STEP, (wanted[-1] / wanted[0]) ** (1 / _MOST_BETWEEN))
        if not found or count >= found[-1] * step:
            found.append(count)
    return tuple(found)
