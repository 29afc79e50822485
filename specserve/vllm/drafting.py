"""What drafting asks of a step, and what of a draft's settings a version follows."""

from __future__ import annotations

from specserve.vllm import facts
from specserve.vllm.runner import Name

HEADS = frozenset({"eagle", "eagle3", "mtp", "dspark", "draft_model"})
BLOCK_DRAFTS = frozenset({"dflash", "dspark"})
_ASYNC_METHODS = frozenset({"ngram_gpu", "draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"})


def needed_slots(
    version: str, *, method: str, num_speculative_tokens: int, parallel: bool, sequences: int | None
) -> int:
    """How many of a step's tokens drafting takes at least; one more must be left, or vLLM refuses to start.

    `parallel`: whether the block says `parallel_drafting`; `sequences`: `max_num_seqs`, which counts in versions
    that keep slots for every request. Source: `_set_max_num_scheduled_tokens` in vllm/config/vllm.py.
    """
    k, kind = num_speculative_tokens, facts.SLOTS.at(version)
    parallel = parallel or method in BLOCK_DRAFTS
    if kind == "requests":
        return (sequences or 0) * ((k - 1 if parallel else 0) + (method == "draft_model"))
    if kind == "one":
        if method == "dflash":
            return k
        if parallel:
            return k if method == "draft_model" else k - 1
        return int(method == "draft_model")
    if method == "dflash":
        return k + 1
    return k if method in HEADS else 0


def schedule_is_followed(version: str, *, method: str, runner: Name | None) -> bool:
    """Whether K changes with the batch size as the block says, or the schedule is dropped for the method."""
    kept = facts.V1_KEEPS_SCHEDULE.at(version)
    return kept is None or runner != "V1" or method in kept


def refuses_async(
    version: str, *, method: str, runner: Name | None, unpadded: bool, stages: bool, on_cpu: bool
) -> str | None:
    """What makes vLLM refuse `async_scheduling: true`: `method`, `disable_padded_drafter_batch` or `stages`.

    `unpadded`: whether the block says `disable_padded_drafter_batch`; `stages`: whether there are pipeline stages.
    """
    by_runner = facts.ASYNC_BY_RUNNER.at(version)
    if by_runner and runner != "V1":
        return None
    if method not in _ASYNC_METHODS:
        return "method"
    if unpadded:
        return "disable_padded_drafter_batch"
    # before the question depended on the runner, the CPU platform switched the scheduling off before it was asked
    asked = by_runner or (facts.V1_LACKS_ASYNC_STAGES.at(version) and not on_cpu)
    return "stages" if asked and runner == "V1" and stages else None
