"""Start a server that outlives this command, if it has room beside the others, and wait until it answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import LaunchError
from specserve.plan.host import kv_cache_bytes
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.serve import events
from specserve.serve.detached import processes, registry, watcher
from specserve.serve.detached.processes import (
    MARK,
    Detached,
    boot_id,
    exit_file,
    identity,
    is_running,
    mark,
    running_records,
)
from specserve.serve.detached.registry import LaunchedVariant, Record
from specserve.serve.events import OnEvent
from specserve.serve.files import make_scratch, private, remove_scratch, within
from specserve.serve.logs import default_log
from specserve.serve.process import count_oom_kills, resolve_env
from specserve.serve.server import RunningServer, refuse_taken_port
from specserve.serve.signals import StopRequest, stop_on_signals


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


def launch(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    variant: LaunchedVariant | None = None,
    room: DeviceRoom | None = None,
    log_path: Path | None = None,
    stop: StopRequest | None = None,
    on_event: OnEvent = events.ignore,
    warms_up: bool = False,
) -> Record:
    """Start the plan's server under a name; return when it is ready, and leave it. A signal until then stops it.

    `room`: what it declares to take of each device. `variant`: which launch of the profile it is.

    Raises UsageError (no name, or a variable is unset), LaunchError (the name or the port is in use, it did not come
    up), Interrupted; nothing is left then, and nothing in the registry.
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        # no handler of a signal raises from here on: an exception while a process starts would leave it behind
        stop = stop or stack.enter_context(stop_on_signals())
        record = _new_record(plan, name, profile, variant, room, log_path or default_log(name))
        _claim(record, plan)
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(registry.remove, name, run=record.run)
        scratch = make_scratch(env, outlives_us=True)
        undo.callback(remove_scratch, scratch)
        env = {**within(env, scratch), MARK: mark(name, record.run)}
        leader, its_watcher = _spawn(record, plan, env=env)
        changes: dict[str, Any] = {
            "leader": leader,
            "watcher": its_watcher,
            "scratch": str(scratch) if scratch else None,
        }
        group = Detached(dataclasses.replace(record, **changes))
        server = RunningServer(plan, group, stop=stop, emit=on_event, warms_up=warms_up)
        undo.callback(server.end)
        _refuse_stopped(record, registry.change(record, **changes))

        try:
            server.start(lambda: _refuse_stopped(record, group.keep_ready()))
        except LaunchError as error:
            now = registry.read(name)
            _refuse_stopped(record, None if now and now.stopper else now, cause=error)
            raise
        undo.pop_all()
    return registry.read(name) or record


def _refuse_stopped(record: Record, now: Record | None, *, cause: LaunchError | None = None) -> None:
    """Raises LaunchError if another command took the entry away: that says more than the signal which it sent."""
    if now is None or now.run != record.run:
        folder = registry.folder_of(record.name)
        message = f"`{record.name}` was stopped by another command, or its state was removed: {folder}"
        raise LaunchError(message) from cause


def _new_record(
    plan: LaunchPlan,
    name: str,
    profile: str,
    variant: LaunchedVariant | None,
    room: DeviceRoom | None,
    log_path: Path,
) -> Record:
    speculation = plan.speculation or {}
    count = speculation.get("num_speculative_tokens")
    taken_over = (
        "fingerprint",
        "vllm",
        "url",
        "host",
        "port",
        "model",
        "shutdown_timeout_s",
        "stall_timeout_s",
    )
    return Record(
        name=name,
        run=uuid.uuid4().hex,
        boot_id=boot_id(),
        started_at_s=time.time(),
        log_path=str(log_path),
        profile=profile,
        method=str(speculation["method"]) if "method" in speculation else None,
        num_speculative_tokens=count if isinstance(count, int) else None,
        devices=room.devices if room else (),
        device_share=room.share if room else None,
        device_bytes=room.least_bytes if room else None,
        api_key_env=plan.api_key_env,
        launcher=identity(os.getpid()),
        oom_kills=count_oom_kills(),
        variant=variant or LaunchedVariant(),
        **{key: getattr(plan, key) for key in taken_over},
    )


def _claim(record: Record, plan: LaunchPlan) -> None:
    """The name is ours from now on; what is known of a dead server of that name is forgotten."""
    with registry.held(record.name):
        before = registry.read(record.name)
        if before is not None and Detached(before).members():
            raise LaunchError(
                f"`{before.name}` is already running at {before.url}",
                hint=f"`specserve down {before.name}` stops it; use `--name` to give this one another name",
            )
        if before is not None and before.leader is None and is_running(before.launcher):
            message = f"`{before.name}` is being started by another command (pid {before.launcher[0]})"
            raise LaunchError(message)
        refuse_taken_port(plan)
        exit_file(record.name).unlink(missing_ok=True)
        registry.write(record)


def _spawn(
    record: Record, plan: LaunchPlan, *, env: dict[str, str]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Start vLLM and its watcher; returns both. The environment goes through a pipe: it may hold a key."""
    request = {
        "argv": list(plan.argv),
        "env": env,
        "log": record.log_path,
        "exit": str(exit_file(record.name)),
        "then": [sys.executable, "-P", "-m", processes.__name__, record.name, record.run],
    }
    try:
        private(Path(record.log_path).parent)
        ran = subprocess.run(
            [sys.executable, "-I", "-S", watcher.__file__],
            input=json.dumps(request),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            start_new_session=True,
        )
        answer: dict[str, Any] = json.loads(ran.stdout.partition("\n")[0])
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot start vLLM: {error}") from error
    if "error" in answer:
        message = f"cannot start `{plan.argv[0]}`, or write its log `{record.log_path}`: {answer['error']}"
        raise LaunchError(message)
    return identity(int(answer["pid"])), identity(int(answer["watcher"]))


def room_beside(profile: Profile, plan: LaunchPlan, *, name: str | None, notices: Notices) -> DeviceRoom:
    """What the launch declares to take. Warns about detached servers on the same devices.

    Raises LaunchError if all together declare more than a device has. `name`: of this one, if it is to be left.
    """
    totals = _own_devices(profile, plan)
    room = _declared_room(plan, tuple(totals))
    others = [record for record in running_records() if record.name != name]
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
                    "lower `engine.gpu_memory_utilization` (or `kv_cache_memory_bytes`), set "
                    f"CUDA_VISIBLE_DEVICES to other devices, or run "
                    f"`specserve down {beside[0].name}`; `--no-check` starts it anyway"
                ),
            )
        share = f": together they reserve {declared:.0%} of its memory" if declared else ""
        notices.warn(f"{what} is shared with {names}{share}")
    return room


def _declared_room(plan: LaunchPlan, devices: tuple[str, ...]) -> DeviceRoom:
    from specserve.memory.inputs import GPU_MEMORY_UTILIZATION

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
