"""Recurrent states against the blocks of the KV cache: vLLM aborts if requests may outnumber the blocks.

Source: `resolve_cudagraph_mode_and_sizes` in vllm/config/compilation.py 0.26-0.33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specserve.errors import FactError
from specserve.plan.memory.estimate import Interval, MemoryVerdict, StateBlocks
from specserve.plan.memory.reckoning import Reckoning, reckon
from specserve.plan.memory.situation import Situation

_BLACKWELL = (10, 0)


def judge_states(s: Situation, r: Reckoning) -> MemoryVerdict:
    """FIT if every request that may run has a block at the lower bound, or if vLLM does not ask for one."""
    if not _is_asked(s, r) or _has_blocks(s, r, r.low):
        return "fit"
    return "tight" if _has_blocks(s, r, r.high) else "does_not_fit"


def lacks_blocks(s: Situation, r: Reckoning, kv_bytes: Sequence[int]) -> bool:
    """Whether vLLM surely aborts with this much memory for the KV cache, in bytes by stage.

    With drafts, Blackwell's default attention backend may rule out the graphs that the check is for.
    """
    capability = s.machine.accelerator.compute_capability or (0, 0)
    is_doubtful = s.num_speculative_tokens > 0 and capability >= _BLACKWELL
    return _is_asked(s, r) and not is_doubtful and not _has_blocks(s, r, kv_bytes)


def state_blocks(s: Situation, r: Reckoning) -> StateBlocks | None:
    """The blocks that there are for states; None if vLLM does not compare them with `max_num_seqs`."""
    if not _is_asked(s, r):
        return None
    blocks = Interval(r.demand.blocks(r.low), r.demand.blocks(r.high))
    return StateBlocks(blocks, s.settings.max_num_seqs, largest_max_num_seqs(s, r))


def largest_max_num_seqs(s: Situation, r: Reckoning) -> int:
    """The largest `max_num_seqs` up to the present one that surely boots; 0 if none does.

    Fewer requests also need less memory beside the KV cache, so this may be more than the blocks there are now.
    """
    low, high = min(r.demand.blocks(r.low), s.settings.max_num_seqs), s.settings.max_num_seqs
    while low < high:
        middle = (low + high + 1) // 2
        turned = replace(s, settings=replace(s.settings, max_num_seqs=middle))
        try:
            fits = _has_blocks(turned, found := reckon(turned), found.low)
        except FactError:  # vLLM itself was asked for the demand, which has no formula
            return low
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _is_asked(s: Situation, r: Reckoning) -> bool:
    return s.has_full_graphs and any(group.fixed_blocks for group in r.demand.groups)


def _has_blocks(s: Situation, r: Reckoning, kv_bytes: Sequence[int]) -> bool:
    return r.demand.blocks(kv_bytes) >= s.settings.max_num_seqs
