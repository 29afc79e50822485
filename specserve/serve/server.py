"""One server from launch to end: started, watched, stopped, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.hardware.host import holder
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import causes, events, health
from specserve.serve.events import MemoryFigures, OnEvent, Phase, next_phase
from specserve.serve.health import Links, ProgressWatch, StallClock
from specserve.serve.logs import LogTail
from specserve.serve.process import Child, end, resident_bytes, resolve_env
from specserve.serve.signals import StopRequest, notify, signal_name

_TICK_S = 0.1
_NEWS_S = 0.5
_SAMPLE_S = 1.0
_LOOK_EVERY_S = 15.0
_CHECK_S = 1.0
_DYING_S = 10.0
_DYING_LOOK_S = 0.1
_LOADED = (Phase.KV_CACHE, Phase.GRAPHS, Phase.API, Phase.SERVING)


class RunningServer:
    """A server that runs, in the foreground or watched by a process of its own."""

    def __init__(
        self,
        plan: LaunchPlan,
        child: Child,
        *,
        stop: StopRequest,
        emit: OnEvent,
        warms_up: bool = False,
    ) -> None:
        """`warms_up`: whether one request is answered before it counts as ready."""
        self.plan = plan
        self.child = child
        limit = plan.engine_kwargs.get("max_model_len")
        self.figures = MemoryFigures(max_model_len=limit if isinstance(limit, int) else None)
        self.phase = Phase.ENGINE
        self.log_path = child.log_path
        self._warms_up = warms_up
        self.stop = stop
        self._emit = _never_failing(emit)
        self._tail = LogTail(child.log_path)
        self._phase_began_s = 0.0
        self._links = Links(plan) if plan.node_rank is not None else None

    @property
    def url(self) -> str:
        """Where it answers, without `/v1`."""
        return self.plan.url

    @property
    def pid(self) -> int:
        """vLLM's first process."""
        return self.child.pid

    def start(self) -> None:
        """Wait until it answers. Raises LaunchError and Interrupted."""
        self._emit(events.Started(self.pid, str(self.log_path)))
        self._emit(events.PhaseStarted(self.phase, self.child.elapsed_s))
        if self._until(self._is_up):
            self._read_log()
            self._end_phase()
            if self._warms_up and self.plan.answers:
                self._warm_up()
        if self.stop.count:
            number = self.stop.signal or signal.SIGTERM
            message = f"{signal_name(number)} came before the server was ready, so it was stopped"
            raise Interrupted(message, exit_code=128 + number)
        self.check()
        self.phase = Phase.SERVING
        self.child.note_traces()
        self._emit(self._up())
        where = f"at {self.url}" if self.plan.answers else f"as node {self.plan.node_rank}"
        notify("READY=1", f"STATUS=serving {self.plan.model} {where}")

    def _until(self, is_done: Callable[[], bool]) -> bool:
        """Follow the log until `is_done`; False if the process ended, or the stop was requested.

        Raises LaunchError when nothing has moved for too long; there is no limit on the whole.
        """
        clock = StallClock(self.plan.stall_timeout_s)
        next_news_s = next_sample_s = 0.0
        while not self.stop.wait(_TICK_S):
            has_ended = not self.child.is_running()
            self._read_log()
            if has_ended:
                return False
            now_s = self.child.elapsed_s
            if now_s >= next_sample_s:
                next_sample_s = now_s + min(_SAMPLE_S, self.plan.stall_timeout_s / 4)
                self.child.note_traces()
                self._look_at_nodes(complete=False)
                clock.refuse_stall(self.child, self.phase)
            if is_done():
                return True
            if now_s >= next_news_s:
                next_news_s = now_s + _NEWS_S
                self._emit(events.PhaseGoesOn(self.phase, now_s - self._phase_began_s))
        return False

    def _read_log(self) -> None:
        for line in self._tail.read():
            self.figures = events.add_line(self.figures, line)
            phase = next_phase(self.phase, line)
            if phase is not self.phase:
                self._end_phase()
                self._begin_phase(phase)

    def _begin_phase(self, phase: Phase) -> None:
        self.phase, self._phase_began_s = phase, self.child.elapsed_s
        self._emit(events.PhaseStarted(phase, self._phase_began_s))

    def _end_phase(self) -> None:
        self._emit(events.PhaseEnded(self.phase, self.child.elapsed_s - self._phase_began_s))

    def _warm_up(self) -> None:
        """Send one short completion and wait; a server that refuses it is ready all the same."""
        reasons: list[str | None] = []
        # a thread: the process is watched meanwhile, and a server that hangs never answers
        asking = threading.Thread(
            target=lambda: reasons.append(health.why_no_completion(self.plan)), daemon=True
        )
        self._begin_phase(Phase.WARM_UP)
        asking.start()
        if self._until(lambda: not asking.is_alive()):
            self._end_phase()
            if reasons and reasons[0] and self.child.is_running():
                self.check_soon()  # the request may have ended the engine
                self._emit(events.StaysCold(reasons[0]))

    def _is_up(self) -> bool:
        """Whether it answers; a node that only computes: whether it is loaded and linked."""
        if self.plan.answers:
            return health.is_healthy(self.url)
        return self.phase in _LOADED and self._links is not None and self._links.is_joined

    def _up(self) -> events.Event:
        """The news that it is up."""
        elapsed_s = self.child.elapsed_s
        if self.plan.answers:
            resident = resident_bytes(self.child.members())
            return events.Ready(self.url, self.plan.model, elapsed_s, self.figures, resident)
        nodes = int(str(self.plan.engine_kwargs["nnodes"]))
        return events.Joined(self.plan.node_rank or 0, nodes, elapsed_s)

    def wait(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Wait until someone asks for the stop. Raises LaunchError if it ends by itself.

        `on_tick` is called about once a second.
        """
        watch, was_still, look_at_s = ProgressWatch(), False, 0.0
        while not self.stop.wait(_CHECK_S):
            self.check()
            on_tick()
            self._look_at_nodes(complete=True)
            if self.plan.answers and time.monotonic() >= look_at_s:
                look_at_s = time.monotonic() + _LOOK_EVERY_S
                hang = watch.look(health.metrics(self.url), at_s=time.monotonic())
                if bool(hang) is not was_still:  # a hang is reported once, and its end
                    was_still = bool(hang)
                    self._emit(hang or events.GoesOn())

    def _look_at_nodes(self, *, complete: bool) -> None:
        """Raises LaunchError if another node is gone; its own death comes first."""
        if self._links is not None and self.child.is_running():
            self._links.look(self.child.members(), complete=complete)

    def check(self) -> None:
        """Raises LaunchError if the server is gone."""
        if self.child.is_running():
            return
        self.child.note_traces()
        raise causes.died(self.child, self.phase, after_s=self.child.elapsed_s)

    def check_soon(self) -> None:
        """As `check`; one that answers no more is waited for: its port closes first."""
        ends_s = time.monotonic() + _DYING_S
        while self.child.is_running() and not self.stop.count and time.monotonic() < ends_s:
            if not self.plan.answers or health.is_healthy(self.url):
                return
            time.sleep(_DYING_LOOK_S)
        self.check()

    @contextlib.contextmanager
    def explaining_failures(self) -> Iterator[None]:
        """Raises LaunchError instead of what failed if the server died meanwhile."""
        try:
            yield
        except LaunchError:
            raise
        except Exception:
            self.check_soon()
            raise

    def end(self) -> None:
        """Stop it, by force if needed, and remove what it leaves. Safe to call on a dead server."""
        if self.child.is_running():
            notify("STOPPING=1")
        # a node that only computes has no requests of its own to drain
        is_serving = self.phase is Phase.SERVING and self.plan.answers
        drain_s = self.plan.shutdown_timeout_s
        end(self.child, is_serving=is_serving, drain_s=drain_s, stop=self.stop, emit=self._emit)


@contextlib.contextmanager
def running(
    plan: LaunchPlan,
    *,
    log_path: Path,
    on_event: OnEvent = events.ignore,
    stop: StopRequest | None = None,
    warms_up: bool = False,
) -> Iterator[RunningServer]:
    """Start the plan's server, hand it over when it is ready, stop it at the end whatever happens.

    Raises UsageError (a variable is unset), LaunchError (did not come up, or died meanwhile),
    Interrupted (`stop` was requested before it was ready).
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        child = Child(plan.argv, env=env, log_path=log_path)
        server = RunningServer(plan, child, stop=stop, emit=on_event, warms_up=warms_up)
        stack.callback(server.end)
        server.start()
        with server.explaining_failures():
            yield server
        if not stop.count:
            server.check()


def become(plan: LaunchPlan) -> NoReturn:
    """Replace this process by vLLM. Raises UsageError (a variable is unset) and LaunchError."""
    env = resolve_env(plan.env)
    refuse_taken_port(plan)
    try:
        os.execvpe(plan.argv[0], plan.argv, env)  # noqa: S606  # no shell on purpose
    except OSError as error:
        raise LaunchError(f"cannot start `{plan.argv[0]}`: {error.strerror}") from error


def _never_failing(on_event: OnEvent) -> OnEvent:
    """A terminal that went away must not keep a server from being stopped."""

    def emit(event: events.Event) -> None:
        with contextlib.suppress(OSError, ValueError):
            on_event(event)

    return emit


def refuse_taken_port(plan: LaunchPlan) -> None:
    """Raises LaunchError if another process holds the port."""
    if not plan.answers:
        return
    try:
        found = holder(plan.host, plan.port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on `{plan.host}`: {error.strerror or error}",
            hint="correct `server.host` in the profile",
        ) from error
    if found is None:
        return
    hint = "use `--port 0` for a free one; `specserve ps` lists detached servers"
    raise LaunchError(f"port {plan.port} is taken by {found}", hint=hint)
