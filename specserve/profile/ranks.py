"""How many accelerators a profile takes. Looks at no machine."""

from __future__ import annotations

from typing import Any

from specserve.profile.numbers import human_int
from specserve.profile.schema import Profile

_OF_ENGINE = ("data_parallel_size", "prefill_context_parallel_size")


def world_size(profile: Profile) -> int:
    """vLLM's ranks of one launch, each on an accelerator of its own, over all its nodes.

    Source: vllm/config/parallel.py, `world_size_across_dp`.
    """
    target = profile.target
    found = target.tensor_parallel_size * target.pipeline_parallel_size
    for name in _OF_ENGINE:
        found *= _count(profile.engine.get(name))
    return found


def ranks_started(profile: Profile) -> int:
    """The ranks that this launch starts itself: other launches may hold the rest of data parallelism.

    Source: vllm/engine/arg_utils.py, `data_parallel_size_local` and `data_parallel_rank`.
    """
    engine = profile.engine
    ranks = world_size(profile)
    local = engine.get("data_parallel_size_local")
    if engine.get("data_parallel_rank") is not None or engine.get("data_parallel_backend") == "ray":
        local = 1
    return ranks if local is None else ranks // _count(engine.get("data_parallel_size")) * _count(local)


def _count(value: Any) -> int:
    """1 where nothing usable is written: another rule tells that."""
    number = human_int(value) if isinstance(value, str) else value
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 1
