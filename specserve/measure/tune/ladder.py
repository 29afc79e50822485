"""Several K in one launch: a schedule that gives neighbouring batch sizes different K. Pure.

vLLM looks K up by the number of requests in a step, so a closed loop at each of these loads measures another K
without a restart. Where the drafter ignores the schedule, or CUDA graphs depend on it, a ladder measures something
else than it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """None where the drafter drafts what the schedule says; else why not, as a clause."""
    method, runner = situation.method, situation.runner
    if situation.data_parallel_size > 1:
        return "vLLM has no schedule with data parallelism"
    if runner == "v2" and method not in FOLLOWS_ON_V2:
        return f"`{method}` on vLLM's V2 runner drafts num_speculative_tokens whatever the schedule says"
    if runner == "v1" and method not in FOLLOWS_ON_V1:
        return f"`{method}` follows no schedule on vLLM's V1 runner"
    return None


def why_no_ladder(situation: Situation) -> str | None:
    """None where several K can be measured in one launch; else why not."""
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
