"""vLLM's schedule of draft tokens by batch size, and several K in one launch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile

Rates = Mapping[int, Mapping[int, float]]
"""By concurrency, then by K: tokens/s, or whatever else is better the larger it is."""
Range = tuple[int, int, int]

MOST_LOSS = 0.01
"""Neighbouring ranges become one where no load loses more by it."""
MOST_REQUESTS = 256
"""vLLM's usual `max_num_seqs`; larger accelerators have more, and no machine has less."""
LEAST_GAIN = 0.02
"""A K other than the neighbour's must be better by so much."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A choice for every load that was looked at."""

    chosen: Mapping[int, int]
    """K by concurrency."""
    ranges: tuple[Range, ...]
    """As vLLM takes them; one range if one K serves all."""

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
        found = [tokens for first, _, tokens in self.ranges if first <= batch]
        return found[-1]


def build(rates: Rates, *, zero_wins_at: Collection[int] = (), may_vary: bool = True) -> Schedule:
    """The schedule of the best rates.

    `zero_wins_at`: loads where a K = 0 range was measured, and won; nowhere else is K = 0 chosen beside others.
    `may_vary`: whether runner and method follow a schedule. Raises ValueError without rates.
    """
    loads = sorted(rates)
    if not loads or not all(rates[load] for load in loads):
        raise ValueError("a schedule needs rates at every load")
    allowed = {load: _allowed(rates[load], zero=load in zero_wins_at) for load in loads}
    constant = _one_for_all(allowed)
    if not may_vary:
        return _schedule(dict.fromkeys(loads, constant))
    chosen = {load: max(sorted(allowed[load]), key=lambda tokens: allowed[load][tokens]) for load in loads}
    chosen = _merged(allowed, chosen)
    if _worst(allowed, dict.fromkeys(loads, constant), chosen) < LEAST_GAIN:
        return _schedule(dict.fromkeys(loads, constant))
    return _schedule(chosen)


def _allowed(rates: Mapping[int, float], *, zero: bool) -> Mapping[int, float]:
    """Without K = 0 where it was not measured to win, unless there is nothing else."""
    kept = {tokens: rate for tokens, rate in rates.items() if tokens > 0 or zero}
    return kept or dict(rates)


def _one_for_all(allowed: Mapping[int, Mapping[int, float]]) -> int:
    """The K whose worst loss over the loads is least."""
    common = set.intersection(*(set(rates) for rates in allowed.values()))
    if not common:
        raise ValueError("each K was tried at only some of the loads")
    return min(sorted(common), key=lambda tokens: max(_loss(rates, tokens) for rates in allowed.values()))


def _loss(rates: Mapping[int, float], tokens: int) -> float:
    """What choosing this K costs against the best, as a share; all of it if its rate is not known."""
    best = max(rates.values())
    return 1.0 if tokens not in rates or best <= 0 else 1.0 - rates[tokens] / best


def _worst(
    allowed: Mapping[int, Mapping[int, float]], simple: Mapping[int, int], fine: Mapping[int, int]
) -> float:
    """The largest share that the simple choice loses against the fine one."""
    return max(_loss(rates, simple[load]) - _loss(rates, fine[load]) for load, rates in allowed.items())


def _merged(allowed: Mapping[int, Mapping[int, float]], chosen: Mapping[int, int]) -> dict[int, int]:
    """Groups of neighbouring loads under one K, as few as cost no load more than MOST_LOSS."""
    groups: list[tuple[list[int], int]] = [([load], chosen[load]) for load in sorted(chosen)]
    while len(groups) > 1:
        offers = []
        for index, ((mine, _), (theirs, _)) in enumerate(pairwise(groups)):
            loads = [*mine, *theirs]
            tokens = _one_for_all({load: allowed[load] for load in loads})
            offers.append((max(_loss(allowed[load], tokens) for load in loads), index, loads, tokens))
        cost, index, loads, tokens = min(offers)
        if cost > MOST_LOSS:
            break
        groups[index : index + 2] = [(loads, tokens)]
    return {load: tokens for loads, tokens in groups for load in loads}


def _schedule(chosen: Mapping[int, int]) -> Schedule:
    return Schedule(dict(chosen), ranges(chosen))


def ranges(chosen: Mapping[int, int]) -> tuple[Range, ...]:
    """Ranges whose bounds lie between loads, at their geometric mean, never on one.

    A batch at a bound would change its K from step to step. The last range ends at the largest load: vLLM carries
    its K on.
    """
    groups: list[list[int]] = []
    for load in sorted(chosen):
        if groups and chosen[groups[-1][-1]] == chosen[load]:
            groups[-1].append(load)
        else:
            groups.append([load])
    found, first = [], 1
    for group, after in zip(groups, [*groups[1:], None], strict=True):
        last = group[-1] if after is None else _between(group[-1], after[0])
        found.append((first, last, chosen[group[0]]))
        first = last + 1
    return tuple(found)


def _between(low: int, high: int) -> int:
    """The last batch size of the lower range.

    A closed loop's batch may be one smaller for a step, never larger: so the upper load gets the room first.
    """
    return low if high - low < 3 else math.isqrt(low * high)


_LEAST_BESIDE, _MOST_BESIDE = 3, 7
_LEAST_STEP, _MOST_BETWEEN = 1.12, 9
FOLLOWS_ON_V2 = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""vllm/v1/worker/gpu/spec_decode/target_dependent_ar and dflash, 0.32 and 0.33."""
FOLLOWS_ON_V1 = frozenset({"ngram", "ngram_gpu", "eagle", "eagle3", "mtp", "draft_model", "dflash"})
"""`_maybe_disable_dynamic_sd_for_v1` in vllm/config/vllm.py 0.33."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides whether a schedule holds."""

    method: str
    runner: str
    """`v1` or `v2`."""
    platform: str
    """`cpu` or `cuda`."""
    data_parallel_size: int = 1
    enforce_eager: bool = False


def follows_schedule(situation: Situation) -> str | None:
    """None if the drafter follows the schedule; else why not, as a clause."""
    method, runner = situation.method, situation.runner
    if situation.data_parallel_size > 1:
        return "vLLM has no schedule with data parallelism"
    if runner == "v2" and method not in FOLLOWS_ON_V2:
        return f"`{method}` on vLLM's V2 runner drafts num_speculative_tokens whatever the schedule says"
    if runner == "v1" and method not in FOLLOWS_ON_V1:
        return f"`{method}` follows no schedule on vLLM's V1 runner"
    return None


def why_no_ladder(situation: Situation) -> str | None:
    """None if several K can be measured in one launch; else why not."""
    reason = follows_schedule(situation)
    if (
        reason is None
        and situation.runner == "v1"
        and situation.platform != "cpu"
        and not situation.enforce_eager
    ):
        return "a schedule makes vLLM's V1 runner use other CUDA graphs"
    return reason


def rungs(loads: Sequence[int], *, most_tokens: int, most_requests: int) -> Mapping[int, int]:
    """K by batch size: of every load, and of a few batches beside them.

    The smallest load has K_max, which the acceptance of every K is read from. K falls with the load, as the best one
    does; batches beside the loads have a quite different K, so that cost by K and cost by load can be told apart.
    """
    ordered = sorted({load for load in loads if load <= most_requests})
    found = {
        load: most_tokens if place == 0 else max(1, round(most_tokens / (place + 1)))
        for place, load in enumerate(ordered)
    }
    beside = dict.fromkeys(batch for load in ordered for batch in (load + 1, load - 1))
    further = range(ordered[-1] + 2, ordered[-1] + 2 + _LEAST_BESIDE)
    near, far = (
        [batch for batch in found_there if 1 <= batch <= most_requests and batch not in found]
        for found_there in (beside, further)
    )
    kept = sorted(near[:_MOST_BESIDE] + far[: max(0, _LEAST_BESIDE - len(near))])
    other = (1, most_tokens, max(1, most_tokens // 2))
    found |= {batch: other[place % len(other)] for place, batch in enumerate(kept)}
    return {batch: found[batch] for batch in sorted(found)}


def between(loads: Sequence[int], *, most_tokens: int, most_requests: int) -> tuple[int, ...]:
    """Batches at which a plain step is timed, too: as many requests as verifications at these loads have tokens.

    A plain step of n requests runs the same kernels as a verification of n tokens, and drafts nothing: so what kernels
    are good at, and what drafts cost, can be told apart. Neighbours are not much alike, and there are a few at most.
    """
    counts = sorted({load * (tokens + 1) for load in loads for tokens in range(1, most_tokens + 1)})
    wanted = [count for count in counts if count <= most_requests and count not in loads]
    if not wanted:
        return ()
    step = max(_LEAST_STEP, (wanted[-1] / wanted[0]) ** (1 / _MOST_BETWEEN))
    found: list[int] = []
    for count in wanted:
        if not found or count >= found[-1] * step:
            found.append(count)
    return tuple(found)


def as_ranges(found: Mapping[int, int]) -> list[list[int]]:
    """vLLM's `num_speculative_tokens_per_batch_size` of K by batch size; equal neighbours are one range.

    A batch between has the K of the next one above.
    """
    ranges: list[list[int]] = []
    for batch in sorted(found):
        if ranges and ranges[-1][2] == found[batch]:
            ranges[-1][1] = batch
        else:
            ranges.append([ranges[-1][1] + 1 if ranges else 1, batch, found[batch]])
    return ranges


def situation(profile: Profile, keys: Mapping[str, Any], *, plan: LaunchPlan) -> Situation:
    """What decides whether a schedule by batch size holds for a candidate here."""
    from specserve.memory.situation import runner_of

    on_cpu = plan.platform == "cpu"
    ranks = profile.engine.get("data_parallel_size")
    return Situation(
        method=str(keys["method"]),
        runner="v1" if on_cpu else runner_of(profile, plan.vllm, keys),
        platform=plan.platform,
        data_parallel_size=ranks if isinstance(ranks, int) else 1,
        enforce_eager=profile.engine.get("enforce_eager") is True,
    )


def most_requests(profile: Profile) -> int:
    """That a server takes at once, given or assumed."""
    given = profile.engine.get("max_num_seqs")
    return given if isinstance(given, int) else MOST_REQUESTS
