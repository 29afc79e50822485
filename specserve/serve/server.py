"""One server from launch to end: started, watched, stopped, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from specserve.errors import Interrupted, LaunchError, TrafficError, UsageError
from specserve.hardware.host import holder
from specserve.memory import starts
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events
from specserve.serve.causes import signal_name, stalled
from specserve.serve.client import is_healthy
from specserve.serve.events import OnEvent, Phase
from specserve.serve.logs import LogTail
from specserve.serve.process import Child, StopRequest, resolve_env, send_all

_TICK_S, _LOOK_S, _CHECK_S = 0.1, 0.5, 0.25
_BEFORE_READY_GRACE_S, _ORPHAN_GRACE_S = 5.0, 2.0
_LOADED = (Phase.KV_CACHE, Phase.GRAPHS, Phase.API)


class RunningServer:
    """A server that runs, in the foreground or watched by a process of its own."""

    def __init__(
        self, plan: LaunchPlan, child: Child, *, stop: StopRequest, on_event: OnEvent
    ) -> None:
        self.plan, self.child, self.stop = plan, child, stop
        self.logged = dict[str, float]()
        """What vLLM's log says of memory, as `memory/starts.py` names it."""
        self.phase = Phase.ENGINE
        self._phase_began_s = 0.0
        self._has_loaded = False
        self._on_event = on_event
        self._tail = LogTail(child.log_path)

    @property
    def kv_cache_tokens(self) -> int | None:
        """Of one engine."""
        return int(self.logged["kv_tokens"]) if "kv_tokens" in self.logged else None

    def start(self) -> None:
        """Wait until it answers; a node that only computes: until it is loaded.

        How it went is kept on disk. Raises LaunchError if it ended or nothing moves any more (there
        is no limit on the whole), Interrupted.
        """
        try:
            self._start()
        except LaunchError as error:
            self._read_log()
            if self.plan.answers:
                self._keep("; ".join(error.causes) or error.message)
            raise

    def _start(self) -> None:
        child, stall_s, look_s = self.child, self.plan.stall_timeout_s, 0.0
        self._emit(events.Started(child.pid, str(child.log_path)))
        self._emit(events.Progress(self.phase))
        is_up = False
        while not is_up and not self.stop.wait(_TICK_S) and child.is_running():
            self._read_log()
            now_s = child.elapsed_s
            if now_s >= look_s:
                look_s = now_s + min(_LOOK_S, stall_s / 4)
                child.note_traces()
                if (still_s := child.stalled_s(stall_s)) is not None:
                    raise stalled(child.log_path, self.phase, limit_s=still_s)
                self._emit(events.Progress(self.phase, now_s - self._phase_began_s))
            is_up = is_healthy(self.plan.url) if self.plan.answers else self._has_loaded
        if self.stop.count:
            number = self.stop.signal or signal.SIGTERM
            message = f"{signal_name(number)} came before the server was ready, so it was stopped"
            raise Interrupted(message, exit_code=128 + number)
        self._read_log()
        self.check()
        self._begin(Phase.SERVING)
        child.note_traces()
        url, memory = None, ""
        if self.plan.answers:
            url, memory = self.plan.url, str(self._keep())
        self._emit(events.Ready(url, self.plan.model, self._phase_began_s, memory))

    def _keep(self, cause: str = "") -> starts.Start:
        log_path, took_s = str(self.child.log_path), self.child.elapsed_s
        return starts.keep(self.plan, self.logged, log_path=log_path, took_s=took_s, cause=cause)

    def _emit(self, event: events.Event) -> None:
        """A terminal that went away must not keep a server from being stopped."""
        with contextlib.suppress(OSError, ValueError):
            self._on_event(event)

    def _read_log(self) -> None:
        for line in self._tail.read():
            starts.note(self.logged, line.text)
            if (phase := events.next_phase(self.phase, line)) is not self.phase:
                self._has_loaded |= phase in _LOADED
                self._begin(phase)
                self._emit(events.Progress(phase))

    def _begin(self, phase: Phase) -> None:
        now_s = self.child.elapsed_s
        self._emit(events.Progress(self.phase, now_s - self._phase_began_s, is_over=True))
        self.phase, self._phase_began_s = phase, now_s

    def wait(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Wait until someone asks for the stop. Raises LaunchError if it ends by itself.

        `on_tick` is called a few times a second.
        """
        while not self.stop.wait(_CHECK_S):
            self.check()
            on_tick()

    def check(self) -> None:
        """Raises LaunchError if the server is gone."""
        if not self.child.is_running():
            self.child.note_traces()
            raise self.child.death(self.phase)

    def end(self) -> None:
        """Stop every process, by force if needed, and remove what they leave; a dead one's too.

        A server that serves may finish the requests that run; one that starts is not trusted to
        stop, and a node that only computes has none. Raises FactError if the kernel keeps one.
        """
        child, began_s = self.child, time.monotonic()
        if child.is_running():
            child.note_traces()
            is_serving = self.phase is Phase.SERVING and self.plan.answers
            number = signal.SIGTERM if is_serving else signal.SIGINT
            grace_s = self.plan.shutdown_timeout_s if is_serving else _BEFORE_READY_GRACE_S
            self._emit(events.Stopping(signal_name(number), grace_s))
            # vLLM drains its requests only if its workers do not get it too
            if is_serving:
                with contextlib.suppress(OSError):
                    os.kill(child.pid, number)
            else:
                send_all(child.members(), number)
            ends_s = began_s + grace_s
            while child.members() and time.monotonic() < ends_s and self.stop.count < 2:
                if not child.is_running():
                    ends_s = min(ends_s, time.monotonic() + _ORPHAN_GRACE_S)
                self.stop.wait(0.05)  # or for a second Ctrl-C
        killed = child.clear()
        self._emit(events.Stopped(time.monotonic() - began_s, killed=killed))


@contextlib.contextmanager
def running(
    plan: LaunchPlan,
    *,
    log_path: Path,
    on_event: OnEvent = lambda _event: None,
    stop: StopRequest | None = None,
) -> Iterator[RunningServer]:
    """Start the plan's server, hand it over when it is ready, stop it at the end whatever happens.

    Raises UsageError (a variable is unset), LaunchError (did not come up, or died meanwhile),
    Interrupted (`stop` was requested before it was ready).
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        child = Child(plan.argv, env=env, log_path=log_path, grace_s=plan.shutdown_timeout_s)
        server = RunningServer(plan, child, stop=stop, on_event=on_event)
        stack.callback(server.end)
        server.start()
        try:
            yield server
        except TrafficError:
            child.wait()  # one that answers no more: its port closes first
            server.check()
            raise
        if not stop.count:
            server.check()


def refuse_taken_port(plan: LaunchPlan) -> None:
    """Raises LaunchError if another process holds the port."""
    try:
        found = holder(plan.host, plan.port) if plan.answers else None
    except OSError as error:
        text = f"cannot listen on `{plan.host}`: {error.strerror or error}"
        raise UsageError(text, hint="correct `server.host` in the profile") from error
    if found is not None:
        hint = "use `--port 0` for a free one; `specserve ps` lists detached servers"
        raise LaunchError(f"port {plan.port} is taken by {found}", hint=hint)
