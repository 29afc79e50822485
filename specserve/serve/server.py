"""One server from launch to end: started, watched, stopped, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events, files, health, logs, postmortem
from specserve.serve.causes import signal_name
from specserve.serve.events import OnEvent
from specserve.serve.files import scratch_env
from specserve.serve.health import Links, ProgressWatch, warm_up
from specserve.serve.logs import Figures, LogTail, Phase, is_disk_full, next_phase
from specserve.serve.process import (
    Child,
    Group,
    ask_to_end,
    clear,
    holder,
    is_own,
    resident_bytes,
    resolve_env,
)
from specserve.serve.signals import StopRequest, notify

_TICK_S = 0.1
_NEWS_S = 0.5
_SAMPLE_S = 1.0
_WITHOUT_LOG_S = 30.0
"""A vLLM that cannot write its log dies of it, or waits for ever for the process that did."""


@dataclass(slots=True)
class Progress:
    """How far the start has come. `is_stalled`: given up because nothing moved."""

    phase: Phase = Phase.ENGINE
    began_s: float = 0.0
    figures: Figures = field(default_factory=Figures)
    is_stalled: bool = False
    limit_s: float = 0.0
    """How long nothing may move."""


def wait_ready(
    child: Group,
    plan: LaunchPlan,
    *,
    stop: StopRequest,
    emit: OnEvent,
    look: Callable[[], None],
    is_up: Callable[[Phase], bool],
) -> Progress:
    """Until the server is up, dies, stalls, or `stop` is requested; the caller sees which.

    `look` is called now and then while the processes live; what it raises ends the wait. `is_up` is asked often,
    with the phase. There is no limit on the whole.
    """
    progress = Progress(limit_s=plan.stall_timeout_s)
    tail = LogTail(child.log_path)
    clock = health.StallClock(plan.stall_timeout_s)
    sample_s = min(_SAMPLE_S, plan.stall_timeout_s / 4)
    next_news_s = next_sample_s = 0.0
    emit(events.PhaseStarted(progress.phase, child.elapsed_s))
    while not stop.wait(_TICK_S):
        ended = not child.is_running()
        _read_log(tail, progress, now_s=child.elapsed_s, emit=emit)
        if ended:
            return progress
        now_s = child.elapsed_s
        if now_s >= next_sample_s:
            next_sample_s = now_s + sample_s
            look()
            done = health.activity(child.members(), log_bytes=tail.offset)
            if is_disk_full(child.log_path):
                progress.limit_s = min(plan.stall_timeout_s, _WITHOUT_LOG_S)
            progress.is_stalled = clock.is_stalled(done, at_s=now_s, limit_s=progress.limit_s)
            if progress.is_stalled:
                return progress
        if is_up(progress.phase):
            _finish(tail, progress, plan, now_s=child.elapsed_s, emit=emit)
            return progress
        if now_s >= next_news_s:
            next_news_s = now_s + _NEWS_S
            emit(events.PhaseGoesOn(progress.phase, now_s - progress.began_s))
    return progress


def _read_log(tail: LogTail, progress: Progress, *, now_s: float, emit: OnEvent) -> None:
    for line in tail.read():
        progress.figures = logs.add_line(progress.figures, line)
        phase = next_phase(progress.phase, line)
        if phase is not progress.phase:
            emit(events.PhaseEnded(progress.phase, now_s - progress.began_s))
            emit(events.PhaseStarted(phase, now_s))
            progress.phase, progress.began_s = phase, now_s


def _finish(tail: LogTail, progress: Progress, plan: LaunchPlan, *, now_s: float, emit: OnEvent) -> None:
    """The last lines of the start, and from the metrics what a quiet log left out."""
    _read_log(tail, progress, now_s=now_s, emit=emit)
    emit(events.PhaseEnded(progress.phase, now_s - progress.began_s))
    answer = health.get(f"{plan.url}/metrics", timeout_s=2.0) if plan.answers else None
    if answer is not None and answer[0] == 200:
        with contextlib.suppress(ValueError):
            progress.figures = logs.add_metrics(progress.figures, answer[1])


_LOOK_EVERY_S = 15.0
_LOOK_AT_NODES_EVERY_S = 2.0
_DYING_S = 10.0
_DYING_LOOK_S = 0.1
_LOADED = (Phase.KV_CACHE, Phase.GRAPHS, Phase.API, Phase.SERVING)


class Server:
    """A server that runs. Made by `running`, which also ends it."""

    def __init__(self, plan: LaunchPlan, child: Group, *, stop: StopRequest, emit: OnEvent) -> None:
        self.plan = plan
        self.child = child
        self.figures = Figures()
        self.phase = Phase.ENGINE
        self.log_path = child.log_path
        self.tells_ready = True
        """Whether the service manager hears of it as soon as it answers."""
        self.warms_up = False
        """Whether one request is answered before it counts as ready."""
        self._stop = stop
        self._emit = emit
        self._traces: frozenset[Path] = frozenset()
        self._oom_kills = postmortem.kills()
        self._hangs = False
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
        """Wait until it answers. Raises LaunchError (died, stalled) or Interrupted."""
        self._emit(events.Started(self.pid, str(self.log_path)))
        end = wait_ready(
            self.child, self.plan, stop=self._stop, emit=self._emit, look=self._look_in, is_up=self._is_up
        )
        self.phase, self.figures = end.phase, end.figures
        if end.is_stalled:
            raise self._stalled(end.limit_s)
        if self.warms_up and self.plan.answers and self.child.is_running() and not self._stop.count:
            self.phase = Phase.WARM_UP
            if not warm_up(self.child, self.plan, stop=self._stop, emit=self._emit, look=self._look_in):
                raise self._stalled(self.plan.stall_timeout_s)
        if self._stop.count:
            number = self._stop.signal or signal.SIGTERM
            message = f"{signal_name(number)} before the server was ready: it was stopped"
            raise Interrupted(message, signal_number=number)
        self.check()
        self.phase = Phase.SERVING
        self._note()
        if self.tells_ready:
            self.tell_ready()
        self._emit(self._up())

    def _up(self) -> events.Event:
        """The news that it is up."""
        elapsed_s, resident = self.child.elapsed_s, resident_bytes(self.child.members())
        if not self.plan.answers:
            nodes = int(str(self.plan.engine_kwargs["nnodes"]))
            return events.Joined(self.plan.node_rank or 0, nodes, elapsed_s, resident)
        return events.Ready(self.url, self.plan.model, elapsed_s, self.figures, resident)

    def tell_ready(self) -> None:
        """Tell the service manager, if there is one."""
        where = f"at {self.url}" if self.plan.answers else f"as node {self.plan.node_rank}"
        notify("READY=1", f"STATUS=serving {self.plan.model} {where}")

    def wait(self) -> None:
        """Until someone asks for the stop. Raises LaunchError where it ends by itself."""
        watch, look_at_s = ProgressWatch(), 0.0
        with _death_of(self.pid) as death:
            pause_s = _LOOK_AT_NODES_EVERY_S if self._links else _LOOK_EVERY_S
            while not self._stop.wait(1.0 if death is None else pause_s, also=death):
                self.check()
                self._look_at_nodes(complete=True)
                if self.plan.answers and time.monotonic() >= look_at_s:
                    look_at_s = time.monotonic() + _LOOK_EVERY_S
                    self._look(watch)

    def _look(self, watch: ProgressWatch) -> None:
        """Tell a hang once, and its end."""
        still = watch.look(health.metrics(self.url), at_s=time.monotonic())
        if still is not None and not self._hangs:
            self._emit(events.Hangs(still.for_s, still.running_requests, still.waiting_requests))
        elif still is None and self._hangs:
            self._emit(events.GoesOn())
        self._hangs = still is not None

    def check(self) -> None:
        """Raises LaunchError where the server is gone."""
        if not self.child.is_running():
            raise self._died()

    def check_soon(self) -> None:
        """As `check`, and of one that answers no more: it is waited for, since its processes end after its port."""
        ends_s = time.monotonic() + _DYING_S
        while self.child.is_running() and not self._stop.count and time.monotonic() < ends_s:
            if not self.plan.answers or health.is_healthy(self.url):
                return
            time.sleep(_DYING_LOOK_S)
        self.check()

    def end(self) -> None:
        """Stop it, by force where needed, and remove what it leaves. Safe to call on a dead server."""
        began = time.monotonic()
        if self.child.is_running():
            notify("STOPPING=1")
            self._note()
            ask_to_end(
                self.child,
                # a node that only computes has no requests of its own to drain
                is_serving=self.phase is Phase.SERVING and self.plan.answers,
                drain_s=self.plan.shutdown_timeout_s,
                stop=self._stop,
                emit=self._emit,
            )
        killed, removed = clear(self.child, traces=self._noted)
        self._emit(events.Stopped(time.monotonic() - began, killed=killed, removed=removed))

    def _look_in(self) -> None:
        """What is looked at now and then during a start."""
        self._note()
        self._look_at_nodes(complete=False)

    def _is_up(self, phase: Phase) -> bool:
        """Whether it answers; of a node that only computes, whether it has loaded and is linked with node 0."""
        if self.plan.answers:
            return health.is_healthy(self.url)
        return phase in _LOADED and self._links is not None and self._links.is_joined

    def _look_at_nodes(self, *, complete: bool) -> None:
        """Raises LaunchError where another node is gone; its own death comes first, for it may be the cause."""
        if self._links is not None and self.child.is_running():
            self._links.look(self.child.members(), complete=complete)

    def _note(self) -> None:
        """Remember what the living processes hold, for `end` to remove."""
        self._traces |= files.traces(self.child.members())

    def _noted(self) -> frozenset[Path]:
        self._note()
        return self._traces

    def _died(self) -> LaunchError:
        self._note()
        return postmortem.died(
            self.phase,
            exit_code=self.child.exit_code,
            after_s=self.child.elapsed_s,
            log_path=self.log_path,
            oom_kills=self._oom_kills,
        )

    def _stalled(self, limit_s: float) -> LaunchError:
        return postmortem.stalled(
            self.phase,
            limit_s=limit_s,
            log_path=self.log_path,
            oom_kills=self._oom_kills,
        )


@contextlib.contextmanager
def running(
    plan: LaunchPlan,
    *,
    log_path: Path,
    on_event: OnEvent = events.ignore,
    stop: StopRequest | None = None,
    tells_ready: bool = True,
    warms_up: bool = False,
) -> Iterator[Server]:
    """Start the plan's server, hand it over when it answers, stop it at the end whatever happens.

    `warms_up`: it has answered one request by then.

    Raises UsageError (a variable is unset), LaunchError (did not come up, or died meanwhile), Interrupted
    (`stop` was requested before it was ready).
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        env = stack.enter_context(scratch_env(env))
        child = Child(plan.argv, env=env, log_path=log_path)
        server = Server(plan, child, stop=stop, emit=never_failing(on_event))
        server.tells_ready = tells_ready
        server.warms_up = warms_up
        stack.callback(server.end)
        server.start()
        try:
            yield server
        except LaunchError:
            raise
        except Exception:
            server.check_soon()  # the server's death explains what went wrong with it
            raise
        else:
            if not stop.count:
                server.check()


def supervise(
    plan: LaunchPlan,
    *,
    log_path: Path,
    stop: StopRequest,
    on_event: OnEvent = events.ignore,
    first: Callable[[Server], None] | None = None,
    warms_up: bool = False,
) -> None:
    """Run the server until `stop` is requested. Raises as `running` does.

    `first` is called when it answers, before the service manager hears that it is ready; what it raises ends it.
    """
    with running(
        plan,
        log_path=log_path,
        on_event=on_event,
        stop=stop,
        tells_ready=first is None,
        warms_up=warms_up,
    ) as server:
        if first is not None:
            first(server)
            server.tell_ready()
        server.wait()


@contextlib.contextmanager
def _death_of(pid: int) -> Iterator[int | None]:
    """A file descriptor that is readable when the process ends; None where the kernel is older than 5.3."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def never_failing(on_event: OnEvent) -> OnEvent:
    """A terminal that went away must not keep a server from being stopped."""

    def emit(event: events.Event) -> None:
        with contextlib.suppress(OSError, ValueError):
            on_event(event)

    return emit


def refuse_taken_port(plan: LaunchPlan) -> None:
    """Raises LaunchError where another process holds the port; says so if it serves this model already."""
    if not plan.answers:
        return
    try:
        found = holder(plan.host, plan.port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on `{plan.host}`: {error.strerror or error}",
            hint="see `server.host` in the profile",
        ) from error
    if found is None:
        return
    key = os.environ.get(plan.api_key_env) if plan.api_key_env else None
    if plan.model in health.served_models(plan.url, key=key if is_own(found) else None):
        raise LaunchError(
            f"`{plan.model}` is served at {plan.url} already, by {found}",
            hint=f"`specserve ask --url {plan.url}` talks to it; `--port 0` starts another one",
        )
    raise LaunchError(f"port {plan.port} is taken by {found}", hint="`--port 0` takes a free one")
