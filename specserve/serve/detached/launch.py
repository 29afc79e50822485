"""Start a server that outlives this command, and wait until it answers. Does not know what is served."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from specserve.errors import LaunchError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import causes, events
from specserve.serve.detached import registry, watcher
from specserve.serve.detached.observe import Room
from specserve.serve.detached.processes import (
    MARK,
    Detached,
    boot_id,
    exit_file,
    identity,
    is_running,
    mark,
    when_ready,
)
from specserve.serve.detached.registry import Arm, Record
from specserve.serve.events import OnEvent
from specserve.serve.files import make_scratch, private, remove_scratch, within
from specserve.serve.logs import default_log
from specserve.serve.process import resolve_env
from specserve.serve.server import Gate, Server, refuse_taken_port
from specserve.serve.signals import StopRequest, stop_on_signals


def leave(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    arm: Arm | None = None,
    room: Room | None = None,
    on_event: OnEvent = events.ignore,
    gate: Gate | None = None,
    warms_up: bool = False,
) -> None:
    """Start it under a name and return when it is ready; a signal until then stops it. Raises as `launch` does."""
    registry.folder_of(name)  # what cannot be a name ends it before anything starts
    refuse_running(name)
    refuse_taken_port(plan)
    with stop_on_signals() as stop:
        launch(
            plan,
            name=name,
            profile=profile,
            arm=arm,
            room=room or Room((), None, None),
            log_path=default_log(name),
            stop=stop,
            on_event=on_event,
            gate=gate,
            warms_up=warms_up,
        )


def launch(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    room: Room,
    log_path: Path,
    stop: StopRequest,
    on_event: OnEvent = events.ignore,
    gate: Gate | None = None,
    warms_up: bool = False,
    arm: Arm | None = None,
) -> Record:
    """Start the plan's server under a name; return when it is ready, and leave it.

    `room`: what it declares to take of each device. `arm`: which launch of the profile it is.

    Raises UsageError (a variable is unset), LaunchError (the name is in use, it did not come up), Interrupted, and
    what the gate raises; nothing is left then, and nothing in the registry.
    """
    env = resolve_env(plan.env)
    record = _claimed(plan, name=name, profile=profile, arm=arm or Arm(), room=room, log_path=log_path)
    with contextlib.ExitStack() as undo:
        undo.callback(registry.remove, name, run=record.run)
        scratch = make_scratch(env, outlives_us=True)
        undo.callback(remove_scratch, scratch)
        record = dataclasses.replace(record, scratch=str(scratch) if scratch else None)
        record = _spawned(record, plan, env={**within(env, scratch), MARK: mark(record)})
        group = Detached(record)
        server = Server(plan, group, stop=stop, emit=on_event, warms_up=warms_up)
        undo.callback(server.end)
        _keep(record, leader=record.leader, watcher=record.watcher, scratch=record.scratch)

        def keep_ready(server: Server) -> None:
            _keep(record, **when_ready(group))
            if gate is not None:
                gate(server)

        try:
            server.start(keep_ready)
        except LaunchError as error:
            now = registry.read(name)
            if (
                now is None or now.run != record.run or now.stopper is not None
            ):  # better than the signal it sent
                message = f"`{name}` was stopped by another command while it started"
                raise LaunchError(message) from error
            raise
        undo.pop_all()
    return registry.read(name) or record


def _claimed(plan: LaunchPlan, *, name: str, profile: str, arm: Arm, room: Room, log_path: Path) -> Record:
    """The name is ours from now on. A dead server of that name is tidied up and forgotten."""
    speculation = plan.speculation or {}
    count = speculation.get("num_speculative_tokens")
    record = Record(
        name=name,
        run=uuid.uuid4().hex,
        boot_id=boot_id(),
        started_at_s=time.time(),
        log_path=str(log_path),
        profile=profile,
        fingerprint=plan.fingerprint,
        vllm=plan.vllm,
        url=plan.url,
        host=plan.host,
        port=plan.port,
        model=plan.model,
        method=str(speculation["method"]) if "method" in speculation else None,
        num_speculative_tokens=count if isinstance(count, int) else None,
        devices=room.devices,
        device_share=room.share,
        device_bytes=room.least_bytes,
        shutdown_timeout_s=plan.shutdown_timeout_s,
        stall_timeout_s=plan.stall_timeout_s,
        api_key_env=plan.api_key_env,
        launcher=identity(os.getpid()),
        oom_kills=causes.count_oom_kills(),
        arm=arm,
    )
    with registry.held(name):
        before = registry.read(name)
        if before is not None:
            _refuse_running(before)
            exit_file(name).unlink(missing_ok=True)
        registry.write(record)
    return record


def refuse_running(name: str) -> None:
    """Raises LaunchError where a server of that name runs or starts, FactError where its state cannot be read."""
    record = registry.read(name)
    if record is not None:
        _refuse_running(record)


def _refuse_running(record: Record) -> None:
    if Detached(record).members():
        raise LaunchError(
            f"`{record.name}` runs already, at {record.url}",
            hint=f"`specserve down {record.name}` stops it; `--name` gives this one another name",
        )
    if record.leader is None and is_running(record.launcher):
        raise LaunchError(f"`{record.name}` is being started by another command (pid {record.launcher[0]})")


def _spawned(record: Record, plan: LaunchPlan, *, env: dict[str, str]) -> Record:
    """vLLM and its watcher run. The environment goes through a pipe: it may hold a key."""
    request = {
        "argv": list(plan.argv),
        "env": env,
        "log": record.log_path,
        "exit": str(exit_file(record.name)),
        "then": [sys.executable, "-m", "specserve.serve.detached.aftermath", record.name, record.run],
    }
    log = Path(record.log_path)
    try:
        private(log.parent)
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
        raise LaunchError(f"cannot start `{plan.argv[0]}`, or write its log `{log}`: {answer['error']}")
    leader, watching = int(answer["pid"]), int(answer["watcher"])
    return dataclasses.replace(record, leader=identity(leader), watcher=identity(watching))


def _keep(record: Record, **changes: Any) -> Record:
    """As `registry.change`; that another command took the entry away meanwhile ends this one."""
    changed = registry.change(record, **changes)
    if changed is None:
        folder = registry.folder_of(record.name)
        raise LaunchError(
            f"`{record.name}` was stopped by another command, or its state was removed: {folder}"
        )
    return changed
