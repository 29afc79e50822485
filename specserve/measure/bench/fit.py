"""How many arms can run at the same time on this host: by accelerators, or on the CPU by memory. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.errors import FactError
from specserve.measure.bench.arms import Arm
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.numbers import human_int
from specserve.profile.schema import Profile

_PROCESSES_BYTES = 2 << 30
"""What vLLM's processes take beside weights and KV cache; 1.3 GiB were measured on the CPU."""
_USABLE = 0.9


@dataclass(frozen=True, slots=True)
class Fit:
    """How many, and why not more. `slots`: accelerators for each of them."""

    at_once: int
    why: str
    slots: tuple[tuple[str, ...], ...] = ()


def fit(arms: Sequence[Arm]) -> Fit:
    """Arms at a URL run already and take no room."""
    planned = [arm for arm in arms if arm.plan is not None]
    if len(planned) < 2:
        return Fit(len(arms), "at most one server is started")
    assert planned[0].plan is not None
    return _on_cpu(arms, planned) if planned[0].plan.platform == "cpu" else _on_gpus(arms, planned)


def _on_cpu(arms: Sequence[Arm], planned: Sequence[Arm]) -> Fit:
    from specserve.facts.hostmemory import host_memory

    free = host_memory().free_bytes * _USABLE
    if any(arm.memory_bytes is None for arm in planned):
        return Fit(1, "how much memory a server takes is not known")
    needs = sorted((arm.memory_bytes or 0 for arm in planned), reverse=True)
    most = next((count for count in range(len(needs), 0, -1) if sum(needs[:count]) <= free), 1)
    told = f"{sum(needs) / 2**30:.1f} GiB for all of them (estimated), {free / 2**30:.1f} GiB are free"
    return Fit(len(arms) if most == len(planned) else most, told)


def _on_gpus(arms: Sequence[Arm], planned: Sequence[Arm]) -> Fit:
    from specserve.facts.nvml import gpus, selected

    if len({arm.visible for arm in planned}) > 1:
        return Fit(1, "the profiles name different devices")
    # what a profile names wins over our own environment, as in its launch
    found = selected(gpus(), devices=planned[0].visible, environ=os.environ)
    ranks = max(arm.ranks for arm in planned)
    slots = [
        tuple(gpu.uuid for gpu in found[first : first + ranks])
        for first in range(0, len(found) - ranks + 1, ranks)
    ]
    kinds = {gpu.name for gpu in found}
    told = f"{len(found)} GPUs, {ranks} for each server"
    if len(slots) >= len(planned) and len(kinds) == 1:
        return Fit(len(arms), told, tuple(slots))
    if len(slots) > 1 and len(kinds) == 1:
        return Fit(len(slots), told, tuple(slots))
    return Fit(1, told if len(kinds) < 2 else f"{told}, of different kinds")


def memory_bytes(profile: Profile, plan: LaunchPlan) -> int | None:
    """Of a server on the CPU, estimated: weights as their files have them, KV cache, processes; None: unknown.

    The size of the KV cache is the plan's, which has one where the profile sets none.
    """
    weights = _weights(profile.target.model, profile.target.revision)
    block = profile.speculation
    draft = (
        _weights(str(block.keys["model"]), block.keys.get("revision"))
        if block and block.keys.get("model")
        else 0
    )
    cache = _kv_bytes(plan)
    if cache is None:
        from specserve.facts.accelerators import this_cpu
        from specserve.plan.memory.defaults import GPU_MEMORY_UTILIZATION

        share = plan.engine_kwargs.get("gpu_memory_utilization")
        share = float(share) if isinstance(share, int | float) else GPU_MEMORY_UTILIZATION
        return int(share * this_cpu().accelerator.total_bytes)
    if weights is None or draft is None:
        return None
    return weights + draft + cache + _PROCESSES_BYTES


def _weights(model: str, revision: str | None) -> int | None:
    from specserve.facts.read import read_model

    try:
        facts = read_model(model, revision=revision, offline=True)
    except FactError:
        return None
    if facts.tensors is None:
        return None
    try:
        return sum(tensor.size_bytes for tensor in facts.tensors.values())
    except KeyError:
        return None


def _kv_bytes(plan: LaunchPlan) -> int | None:
    """The size of the KV cache that a plan sets; None where vLLM takes a share of the memory."""
    value = plan.engine_kwargs.get("kv_cache_memory_bytes")
    space = plan.env.get("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE"))
    if isinstance(value, str):
        return human_int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(space) << 30 if isinstance(space, str) and space.strip().isdigit() and int(space) else None
