"""What each server declares to take of a device's memory, so that two of them are not started into the same room."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from specserve.diagnostics import Notices
from specserve.errors import FactError, LaunchError
from specserve.plan.host import kv_cache_bytes
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.serve.detached import registry
from specserve.serve.detached.processes import Detached
from specserve.serve.detached.registry import Record


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """Devices, and of each a share of its memory (`gpu_memory_utilization`) or bytes at least."""

    devices: tuple[str, ...]
    share: float | None
    least_bytes: int | None

    def share_of(self, total_bytes: int | None) -> float:
        """The share of a device of this size; 0 if it is not known."""
        if self.share is not None:
            return self.share
        return self.least_bytes / total_bytes if self.least_bytes and total_bytes else 0.0


def room_beside(profile: Profile, plan: LaunchPlan, *, name: str | None, notices: Notices) -> DeviceRoom:
    """What the launch declares to take. Warns about detached servers on the same devices.

    Raises LaunchError if all together declare more than a device has. `name`: of this one, if it is to be left.
    """
    totals = _own_devices(profile, plan)
    room = _declared_room(plan, tuple(totals))
    others = [record for record in _running_records() if record.name != name]
    for device, total_bytes in totals.items():
        beside = [record for record in others if device in record.devices]
        if not beside:
            continue
        rooms = [room, *(DeviceRoom(each.devices, each.device_share, each.device_bytes) for each in beside)]
        declared = sum(each.share_of(total_bytes) for each in rooms)
        what = "the CPU" if device == "cpu" else f"device {device}"
        names = " and ".join(f"`{record.name}`" for record in beside)
        if declared > 1.0:
            raise LaunchError(
                f"{what} has no room for this server next to {names}: "
                f"together they would reserve {declared:.0%} of its memory",
                hint=(
                    "lower `engine.gpu_memory_utilization` (or `kv_cache_memory_bytes`), choose other devices with "
                    f"`--devices`, or run `specserve down {beside[0].name}`; `--no-check` starts it anyway"
                ),
            )
        share = f": together they reserve {declared:.0%} of its memory" if declared else ""
        notices.warn(f"{what} is shared with {names}{share}")
    return room


def _declared_room(plan: LaunchPlan, devices: tuple[str, ...]) -> DeviceRoom:
    from specserve.memory.situation import GPU_MEMORY_UTILIZATION

    least_bytes = kv_cache_bytes(plan.engine_kwargs, plan.env if plan.platform == "cpu" else {})
    utilization = plan.engine_kwargs.get("gpu_memory_utilization")
    share = float(utilization) if isinstance(utilization, int | float) else GPU_MEMORY_UTILIZATION
    return DeviceRoom(devices, share if least_bytes is None else None, least_bytes)


def _own_devices(profile: Profile, plan: LaunchPlan) -> dict[str, int]:
    """The bytes of each device that it takes. As CUDA counts them: the first that it may see, one for each rank."""
    from specserve.hardware.accelerators import gpus, selected, this_cpu
    from specserve.profile.schema import world_size

    if plan.platform == "cpu":
        return {"cpu": this_cpu().accelerator.total_bytes}
    visible = plan.env.get("CUDA_VISIBLE_DEVICES")
    listed = visible.split(",") if isinstance(visible, str) else None
    found = selected(gpus(), devices=listed, environ=os.environ)
    return {gpu.uuid: gpu.total_bytes for gpu in found[: world_size(profile)]}


def _running_records() -> Iterator[Record]:
    for name in registry.names():
        with contextlib.suppress(FactError):
            record = registry.read(name)
            if record is not None and Detached(record).members():
                yield record
