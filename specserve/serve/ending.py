"""The end of a server: asked for politely, then by force, and what it leaves is removed. Does not start any."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from specserve.serve import events, shm
from specserve.serve.causes import signal_name
from specserve.serve.events import OnEvent
from specserve.serve.group import Group
from specserve.serve.stop import StopRequest

_BEFORE_READY_GRACE_S = 5.0
_ORPHAN_GRACE_S = 2.0


def ask_to_end(group: Group, *, is_serving: bool, drain_s: float, stop: StopRequest, emit: OnEvent) -> None:
    """Send the signal and wait: its grace for the first process, a moment more for its orphans.

    A server that serves may take `drain_s` for the requests that run; one that starts is not trusted to stop.
    """
    number = signal.SIGTERM if is_serving else signal.SIGINT
    grace_s = drain_s if is_serving else _BEFORE_READY_GRACE_S
    emit(events.Stopping(signal_name(number), grace_s))
    deadline = time.monotonic() + grace_s
    if is_serving:
        group.send(number)  # vLLM drains its requests only if its workers do not get the signal too
    else:
        group.send_all(number)
    leader_left = False
    while time.monotonic() < deadline and group.members():
        if not group.is_running() and not leader_left:
            leader_left = True
            deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
        stop.wait(0.05)
        if stop.count >= 2:  # a second Ctrl-C
            return


def clear(group: Group, *, traces: Callable[[], frozenset[Path]]) -> tuple[bool, tuple[str, ...]]:
    """Kill what is left, remove what it held. Says whether it took SIGKILL, and what was removed.

    `traces` is asked once everything stands still: an orphan that still starts must not make more meanwhile.
    """
    killed = group.freeze()
    held = traces()
    gone = group.kill()
    return killed, shm.remove(held) if gone else ()
