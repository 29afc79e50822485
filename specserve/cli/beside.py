"""Servers that share a device, before another one is started. Knows what is declared, measures nothing."""

from __future__ import annotations

import os

from specserve.errors import LaunchError
from specserve.plan.launchplan import Json, LaunchPlan
from specserve.profile.schema import Profile
from specserve.report.console import say, styled
from specserve.serve.detached.observe import Clash, Room, clashes
from specserve.serve.detached.registry import Record


def room_beside(profile: Profile, plan: LaunchPlan, *, name: str | None) -> Room:
    """What the launch declares to take. Detached servers on the same devices are told.

    Raises LaunchError where all together declare more than a device has. `name`: of this one, if it is to be left.
    """
    room, totals = _declared(profile, plan), _totals(plan)
    others = [record for record in _running() if record.name != name]
    for clash in clashes(room, others, total_bytes=totals):
        _tell(clash)
    return room


def _tell(clash: Clash) -> None:
    device = "the CPU" if clash.device == "cpu" else f"device {clash.device}"
    names = " and ".join(f"`{name}`" for name in clash.names)
    if clash.is_too_much:
        raise LaunchError(
            f"{device} has no room beside {names}: together they declare {clash.declared:.0%} of its memory",
            hint="lower `engine.gpu_memory_utilization` (or `kv_cache_memory_bytes`), name other devices with "
            f"`--devices`, or `specserve down {clash.names[0]}`; `--no-check` starts it all the same",
        )
    share = f": {clash.declared:.0%} of its memory is declared" if clash.declared else ""
    say(f"{styled('warning', 'yellow')}: {device} is shared with {names}{share}")


def _declared(profile: Profile, plan: LaunchPlan) -> Room:
    from specserve.memory.defaults import GPU_MEMORY_UTILIZATION

    least_bytes = _integer(plan.engine_kwargs.get("kv_cache_memory_bytes"))
    told = plan.engine_kwargs.get("gpu_memory_utilization")
    share = float(told) if isinstance(told, int | float) else GPU_MEMORY_UTILIZATION
    return Room(_devices(profile, plan), share if least_bytes is None else None, least_bytes)


def _integer(value: Json) -> int | None:
    from specserve.profile.values import human_int

    if isinstance(value, str):
        return human_int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _devices(profile: Profile, plan: LaunchPlan) -> tuple[str, ...]:
    """As CUDA counts them: the first ones of what it may see, as many as there are ranks."""
    if plan.platform == "cpu":
        return ("cpu",)
    from specserve.hardware.gpus import gpus, selected
    from specserve.profile.schema import world_size

    visible = plan.env.get("CUDA_VISIBLE_DEVICES")
    listed = visible.split(",") if isinstance(visible, str) else None
    found = selected(gpus(), devices=listed, environ=os.environ)
    return tuple(gpu.uuid for gpu in found[: world_size(profile)])


def _totals(plan: LaunchPlan) -> dict[str, int]:
    if plan.platform == "cpu":
        from specserve.hardware.accelerators import this_cpu

        return {"cpu": this_cpu().accelerator.total_bytes}
    from specserve.hardware.gpus import gpus

    return {gpu.uuid: gpu.total_bytes for gpu in gpus()}


def _running() -> list[Record]:
    from specserve.errors import FactError
    from specserve.serve.detached.processes import Detached
    from specserve.serve.detached.registry import names, read

    found = []
    for name in names():
        try:
            record = read(name)
        except FactError:
            continue
        if record is not None and Detached(record).members():
            found.append(record)
    return found
