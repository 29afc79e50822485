"""One server from launch to end: started, watched, stopped, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.hardware.host import holder
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events
from specserve.serve.causes import died, stalled
from specserve.serve.events import MemoryFigures, OnEvent, Phase
from specserve.serve.logs import LogTail
from specserve.serve.process import Child, resolve_env
from specserve.serve.requests import is_healthy
from specserve.serve.signals import StopRequest, signal_name

_TICK_S, _NEWS_S, _SAMPLE_S, _CHECK_S = 0.1, 0.5, 1.0, 1.0
_DYING_S, _BEFORE_READY_GRACE_S, _ORPHAN_GRACE_S = 10.0, 5.0, 2.0
_LOADED = (Phase.KV_CACHE, Phase.GRAPHS, Phase.API)


class RunningServer:
    """A server that runs, in the foreground or watched by a process of its own."""

    def __init__(
        self, plan: LaunchPlan, child: Child, *, stop: StopRequest, on_event: OnEvent
    ) -> None:
        self.plan, self.child, self.stop = plan, child, stop
        limit = plan.engine_kwargs.get("max_model_len")
        self.figures = MemoryFigures(max_model_len=limit if isinstance(limit, int) else None)
        self.phase = Phase.ENGINE
        self._phase_began_s = 0.0
        self._has_loaded = False
        self._on_event = on_event
        self._tail = LogTail(child.log_path)

    @property
    def url(self) -> str:
        """Where it answers, without `/v1`."""
        return self.plan.url

    def start(self) -> None:
        """Wait until it answers; a node that only computes: until it is loaded.

        Raises LaunchError if it ended or nothing moves any more (there is no limit on the whole),
        Interrupted.
        """
        child, stall_s = self.child, self.plan.stall_timeout_s
        self._emit(events.Started(child.pid, str(child.log_path)))
        self._emit(events.PhaseStarted(self.phase, child.elapsed_s))
        is_up, next_news_s, next_sample_s = False, 0.0, 0.0
        while not is_up and not self.stop.wait(_TICK_S):
            has_ended = not child.is_running()
            self._read_log()
            if has_ended:
                break
            now_s = child.elapsed_s
            if now_s >= next_sample_s:
                next_sample_s = now_s + min(_SAMPLE_S, stall_s / 4)
                child.note_traces()
                if (still_s := child.stalled_s(stall_s)) is not None:
                    raise stalled(child, self.phase, limit_s=still_s)
            is_up = is_healthy(self.url) if self.plan.answers else self._has_loaded
            if now_s >= next_news_s and not is_up:
                next_news_s = now_s + _NEWS_S
                self._emit(events.PhaseGoesOn(self.phase, now_s - self._phase_began_s))
        if self.stop.count:
            number = self.stop.signal or signal.SIGTERM
            message = f"{signal_name(number)} came before the server was ready, so it was stopped"
            raise Interrupted(message, exit_code=128 + number)
        self.check()
        self._read_log()
        self._begin(Phase.SERVING)
        child.note_traces()
        url, resident, began_s = self.url if self.plan.answers else None, 0, self._phase_began_s
        with contextlib.suppress(psutil.Error, OSError, AttributeError):
            resident = sum(each.memory_full_info().pss for each in child.members())
        self._emit(events.Ready(url, self.plan.model, began_s, self.figures, resident or None))

    def _emit(self, event: events.Event) -> None:
        """A terminal that went away must not keep a server from being stopped."""
        with contextlib.suppress(OSError, ValueError):
            self._on_event(event)

    def _read_log(self) -> None:
        for line in self._tail.read():
            self.figures = events.add_line(self.figures, line)
            phase = events.next_phase(self.phase, line)
            if phase is not self.phase:
                self._has_loaded |= phase in _LOADED
                self._begin(phase)
                self._emit(events.PhaseStarted(phase, self._phase_began_s))

    def _begin(self, phase: Phase) -> None:
        now_s = self.child.elapsed_s
        self._emit(events.PhaseEnded(self.phase, now_s - self._phase_began_s))
        self.phase, self._phase_began_s = phase, now_s

    def wait(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Wait until someone asks for the stop. Raises LaunchError if it ends by itself.

        `on_tick` is called about once a second.
        """
        while not self.stop.wait(_CHECK_S):
            self.check()
            on_tick()

    def check(self) -> None:
        """Raises LaunchError if the server is gone."""
        if not self.child.is_running():
            self.child.note_traces()
            raise died(self.child, self.phase, after_s=self.child.elapsed_s)

    @contextlib.contextmanager
    def explaining_failures(self) -> Iterator[None]:
        """Raises LaunchError instead of what failed if the server died meanwhile."""
        try:
            yield
        except LaunchError:
            raise
        except Exception:
            # one that answers no more is waited for: its port closes first
            ends_s = time.monotonic() + _DYING_S
            while self.child.is_running() and not self.stop.count and time.monotonic() < ends_s:
                if not self.plan.answers or is_healthy(self.url):
                    raise
                time.sleep(_TICK_S)
            self.check()
            raise

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
                child.send_all(number, spares_trackers=False)
            deadline, has_leader = began_s + grace_s, True
            while time.monotonic() < deadline and child.members():
                if has_leader and not child.is_running():
                    has_leader = False
                    deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
                self.stop.wait(0.05)
                if self.stop.count >= 2:  # a second Ctrl-C
                    break
        killed, removed = child.clear()
        child.wait()
        self._emit(events.Stopped(time.monotonic() - began_s, killed=killed, removed=removed))


@contextlib.contextmanager
def running(
    plan: LaunchPlan,
    *,
    log_path: Path,
    on_event: OnEvent = events.ignore,
    stop: StopRequest | None = None,
) -> Iterator[RunningServer]:
    """Start the plan's server, hand it over when it is ready, stop it at the end whatever happens.

    Raises UsageError (a variable is unset), LaunchError (did not come up, or died meanwhile),
    Interrupted (`stop` was requested before it was ready).
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        child = Child(plan.argv, env=env, log_path=log_path)
        server = RunningServer(plan, child, stop=stop, on_event=on_event)
        stack.callback(server.end)
        server.start()
        with server.explaining_failures():
            yield server
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
