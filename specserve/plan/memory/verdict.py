"""FIT, TIGHT or DOES NOT FIT, from what is left for the KV cache."""

from __future__ import annotations

from specserve.plan.memory.bounds import FRAGMENTATION
from specserve.plan.memory.estimate import VERDICTS, MemoryVerdict
from specserve.plan.memory.reckoning import Reckoning
from specserve.plan.memory.situation import Promise, Situation
from specserve.plan.memory.stateblocks import judge_states, lacks_blocks

_GIB = 2**30
_SAFE = 1.10
"""A promised concurrency fits where this much more would."""
_FREE_MARGIN = 0.5 * _GIB
_DOUBT = 0.02
"""Share of the memory by which the upper bound must fall short before nothing is left to doubt."""


def verdict(s: Situation, r: Reckoning) -> MemoryVerdict:
    """FIT: starts and serves what is promised at the lower bound; DOES NOT FIT: does not start at the upper one."""
    return max(verdict_without_states(s, r), judge_states(s, r), key=VERDICTS.index)


def verdict_without_states(s: Situation, r: Reckoning) -> MemoryVerdict:
    """The same without vLLM's comparison of recurrent states with the blocks of the KV cache."""
    if not _starts(s, r, r.high) or _overfull(s, r):
        return "does_not_fit"
    is_all_known = r.demand.is_kv_known and s.unknown_draft is None
    return "fit" if is_all_known and not _shortage(s, r) else "tight"


def is_only_in_doubt(s: Situation, r: Reckoning, found: MemoryVerdict) -> bool:
    """Whether nothing is short of what is known, and the launch is tight because a model is not."""
    if not r.demand.is_kv_known:
        return found == "tight"
    return (
        found == "tight"
        and s.unknown_draft is not None
        and not _shortage(s, r)
        and judge_states(s, r) == "fit"
    )


def reason(s: Situation, r: Reckoning) -> str:
    """Why a launch that may start is not sure to, in a few words: the first of what is short."""
    if not r.demand.is_kv_known:
        return "the KV cache of an unknown architecture is not computed"
    return _shortage(s, r) or (
        f"`{s.unknown_draft}` is not known, and not counted" if s.unknown_draft else ""
    )


def _shortage(s: Situation, r: Reckoning) -> str:
    """The first thing that may be short at the lower bound, in a few words; empty if nothing is."""
    if not _starts(s, r, r.low):
        low, high = r.demand.tokens(r.low), r.demand.tokens(r.high)
        return f"the KV cache holds {low:,} to {high:,} tokens, and one request may take {r.demand.max_model_len:,}"
    for promise in s.promises:
        if not keeps(r, promise, r.low):
            many = f"{promise.concurrency} requests of {promise.tokens:,} tokens"
            return f"the promised {many} are not sure to run at one time"
    if r.slack < r.excess and s.runner == "cpu":
        total = s.machine.accelerator.total_bytes
        who = f"its {s.ranks} ranks together" if s.ranks > 1 else "the server"
        return f"{who} may take {(total - r.slack + r.excess) / _GIB:.1f} GiB"
    if r.slack < r.excess:
        spare = max(0.0, r.slack) / _GIB
        what = "fragmentation" if r.excess <= FRAGMENTATION else "sampling or a long prefill"
        what = "drafts being verified" if s.num_speculative_tokens else what
        return f"{spare:.1f} GiB are left unclaimed, and {what} may take {r.excess / _GIB:.1f} GiB"
    if not _is_free(s, r):
        return (
            f"{(s.least_free_bytes or 0) / _GIB:.1f} GiB are free, and vLLM takes {r.budget / _GIB:.1f} GiB"
        )
    return ""


def certain(s: Situation, r: Reckoning) -> bool:
    """Whether not even the upper bound, and a little more, serves one request; nothing is with unknown arguments."""
    is_divided = s.settings.tensor_parallel_size * s.settings.pipeline_parallel_size > 1
    if s.not_modelled or (is_divided and not r.demand.is_kv_known):  # how, only vLLM knows
        return False
    if s.unknown_draft and s.method == "draft_model":  # its context may lower max_model_len
        return False
    more = [high + int(_DOUBT * r.budget) for high in r.high]
    most = r.high if s.kv_cache_memory_bytes is not None else more
    return not _starts(s, r, most) or lacks_blocks(s, r, most) or _overfull(s, r)


def keeps(r: Reckoning, promise: Promise, kv_bytes: list[int]) -> bool:
    """Whether so many requests of these lengths run at one time, with a margin."""
    per_request = r.demand.blocks_per_request(promise.tokens + r.demand.lookahead_tokens)
    return (
        r.demand.blocks(kv_bytes) - 1 >= _SAFE * promise.concurrency * per_request
        if r.demand.groups
        else True
    )


def _starts(s: Situation, r: Reckoning, kv_bytes: list[int]) -> bool:
    """Whether one request of max_model_len fits; with `auto`, one of any length."""
    if not r.demand.groups:
        return all(left >= 0 for left in kv_bytes)
    if s.is_auto_length:
        return r.demand.largest_max_model_len(kv_bytes, limit=s.settings.max_model_len) > 0
    return r.demand.is_enough(kv_bytes)


def _overfull(s: Situation, r: Reckoning) -> bool:
    """Whether weights and a KV cache that is told outright are more than the memory."""
    told = s.kv_cache_memory_bytes
    weights = max(stage.weights_bytes for stage in r.demand.stages)
    return told is not None and weights * (1 - r.weights_margin) + told > s.machine.accelerator.total_bytes


def _is_free(s: Situation, r: Reckoning) -> bool:
    """Whether every GPU that was found has the share free that vLLM asks for.

    A host's memory is judged by its capacity: what is free of it at the moment has a rule of its own.
    """
    free = s.least_free_bytes
    if free is None or s.kv_cache_memory_bytes is not None or s.runner == "cpu":
        return True
    return free >= r.budget + _FREE_MARGIN
