"""Stop a detached server from another command: drain, signal, force; then forget it. Tells each step."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path

from specserve.errors import FactError
from specserve.serve import events, shm
from specserve.serve.detached import registry
from specserve.serve.detached.group import Detached, Marked
from specserve.serve.detached.record import Record
from specserve.serve.ending import ask_to_end, clear
from specserve.serve.events import OnEvent
from specserve.serve.group import Group
from specserve.serve.identity import is_alive, ticks
from specserve.serve.scratch import remove_scratch
from specserve.serve.stop import StopRequest

_UNKNOWN_DRAIN_S = 30.0


def stop_server(record: Record, *, stop: StopRequest, emit: OnEvent) -> None:
    """End it, its orphans and what they left, whether it runs or died; then nothing is known of it any more.

    Where another command is stopping it already, its end is waited for. Raises FactError where a process cannot be
    ended, or the state not be written.
    """
    mine = (os.getpid(), ticks(os.getpid()) or 0)
    with registry.held(record.name):
        now = registry.read(record.name)
        if now is None or now.run != record.run:
            return
        other = (
            now.stopper
            if now.stopper is not None and is_alive(now.stopper[0], since=now.stopper[1])
            else None
        )
        if other is None:
            with contextlib.suppress(FactError):  # a full disk must not keep it from being stopped
                registry.write(dataclasses.replace(now, stopper=mine))
    if other is not None and _is_gone(record, stopper=other, stop=stop):
        return
    group = Detached(now)
    held = frozenset(Path(path) for path in now.traces) | shm.traces(group.members())
    _end(
        group,
        is_serving=now.ready_at_s is not None,
        drain_s=now.shutdown_timeout_s,
        stop=stop,
        emit=emit,
        held=held,
    )
    remove_scratch(Path(now.scratch) if now.scratch else None)
    registry.remove(now.name, run=now.run)


def stop_marked(name: str, *, stop: StopRequest, emit: OnEvent) -> bool:
    """End what runs under a name whose state is lost or unreadable. False where nothing does."""
    group = Marked(name)
    held = shm.traces(group.members())
    found = bool(group.members())
    if found:
        _end(group, is_serving=True, drain_s=_UNKNOWN_DRAIN_S, stop=stop, emit=emit, held=held)
    return found


def _end(
    group: Group, *, is_serving: bool, drain_s: float, stop: StopRequest, emit: OnEvent, held: frozenset[Path]
) -> None:
    began = time.monotonic()
    if group.is_running():
        ask_to_end(group, is_serving=is_serving, drain_s=drain_s, stop=stop, emit=emit)
    killed, removed = clear(group, traces=lambda: held | shm.traces(group.members()))
    if left := group.members():
        pids = ", ".join(str(process.pid) for process in left)
        raise FactError(
            f"the kernel does not end process {pids}", hint="it waits for a device or a disk: `dmesg`"
        )
    emit(events.Stopped(time.monotonic() - began, killed=killed, removed=removed))


def _is_gone(record: Record, *, stopper: tuple[int, int], stop: StopRequest) -> bool:
    """Wait for the other command. False where that ended, and the server is still there."""
    while is_alive(stopper[0], since=stopper[1]):
        now = registry.read(record.name)
        if now is None or now.run != record.run or stop.wait(0.1):
            return True
    return False
