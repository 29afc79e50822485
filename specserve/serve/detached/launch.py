"""Start a server that outlives this command, and wait until it answers."""

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
from specserve.serve import events
from specserve.serve.detached import processes, registry, watcher
from specserve.serve.detached.processes import MARK, Detached, boot_id, exit_file, identity, is_running, mark
from specserve.serve.detached.registry import LaunchedArm, Record
from specserve.serve.detached.room import DeviceRoom
from specserve.serve.events import OnEvent
from specserve.serve.files import make_scratch, private, remove_scratch, within
from specserve.serve.logs import default_log
from specserve.serve.process import count_oom_kills, resolve_env
from specserve.serve.server import Gate, RunningServer, refuse_taken_port
from specserve.serve.signals import StopRequest, stop_on_signals


def launch(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    arm: LaunchedArm | None = None,
    room: DeviceRoom | None = None,
    log_path: Path | None = None,
    stop: StopRequest | None = None,
    on_event: OnEvent = events.ignore,
    gate: Gate | None = None,
    warms_up: bool = False,
) -> Record:
    """Start the plan's server under a name; return when it is ready, and leave it. A signal until then stops it.

    `room`: what it declares to take of each device. `arm`: which launch of the profile it is.

    Raises UsageError (no name, or a variable is unset), LaunchError (the name or the port is in use, it did not come
    up), Interrupted, and what the gate raises; nothing is left then, and nothing in the registry.
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        # no handler of a signal raises from here on: an exception while a process starts would leave it behind
        stop = stop or stack.enter_context(stop_on_signals())
        record = _new_record(plan, name, profile, arm, room, log_path or default_log(name))
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

        def keep_ready(server: RunningServer) -> None:
            _refuse_stopped(record, group.keep_ready())
            if gate is not None:
                gate(server)

        try:
            server.start(keep_ready)
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
    arm: LaunchedArm | None,
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
        arm=arm or LaunchedArm(),
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
        "then": [sys.executable, "-m", processes.__name__, record.name, record.run],
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
