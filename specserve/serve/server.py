"""One server from launch to end: started, watched, stopped, nothing left. Does not know who uses it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from specserve.errors import Interrupted, LaunchError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events, oom, shm
from specserve.serve.causes import find_cause, signal_name
from specserve.serve.events import OnEvent
from specserve.serve.figures import Figures
from specserve.serve.logs import read_end
from specserve.serve.notify import notify
from specserve.serve.phases import Phase
from specserve.serve.process import Child, resident_bytes, resolve_env
from specserve.serve.start import wait_ready
from specserve.serve.stop import StopRequest

_BEFORE_READY_GRACE_S = 5.0
_ORPHAN_GRACE_S = 2.0
_SERVING_LOG_BYTES = 256 << 10


class Server:
    """A server that runs. Made by `running`, which also ends it."""

    def __init__(self, plan: LaunchPlan, child: Child, *, stop: StopRequest, emit: OnEvent) -> None:
        self.plan = plan
        self.child = child
        self.figures = Figures()
        self.phase = Phase.ENGINE
        self.log_path = child.log_path
        self._stop = stop
        self._emit = emit
        self._traces: frozenset[Path] = frozenset()
        self._oom_kills = oom.kills()

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
        end = wait_ready(self.child, self.plan, stop=self._stop, emit=self._emit, look=self._note)
        self.phase, self.figures = end.phase, end.figures
        if end.is_stalled:
            raise self._stalled()
        if self._stop.count:
            number = self._stop.signal or signal.SIGTERM
            message = f"{signal_name(number)} before the server was ready: it was stopped"
            raise Interrupted(message, signal_number=number)
        self.check()
        self.phase = Phase.SERVING
        self._note()
        notify("READY=1", f"STATUS=serving {self.plan.model} at {self.url}")
        self._emit(
            events.Ready(
                self.url,
                self.plan.model,
                self.child.elapsed_s,
                self.figures,
                resident_bytes(self.child.members()),
            )
        )

    def wait(self) -> None:
        """Until someone asks for the stop. Raises LaunchError where it ends by itself."""
        with _death_of(self.pid) as death:
            while not self._stop.wait(1.0 if death is None else 60.0, also=death):
                self.check()

    def check(self) -> None:
        """Raises LaunchError where the server is gone."""
        if self.child.poll() is not None:
            raise self._died()

    def end(self) -> None:
        """Stop it, by force where needed, and remove what it leaves. Safe to call on a dead server."""
        began = time.monotonic()
        if self.child.poll() is None:
            notify("STOPPING=1")
            self._note()
            if self.phase is Phase.SERVING:
                # vLLM drains its requests only if its workers do not get the signal too.
                self._ask(signal.SIGTERM, grace_s=self.plan.shutdown_timeout_s)
            else:
                self._ask(signal.SIGINT, grace_s=_BEFORE_READY_GRACE_S)
        killed = self.child.freeze()  # an orphan that still starts must not make more while we look
        self._note()
        gone = self.child.kill()
        removed = shm.remove(self._traces) if gone else ()
        self._emit(events.Stopped(time.monotonic() - began, killed=killed, removed=removed))

    def _ask(self, number: int, *, grace_s: float) -> None:
        """Send the signal and wait: `grace_s` for the first process, a moment more for its orphans."""
        self._emit(events.Stopping(signal_name(number), grace_s))
        deadline = time.monotonic() + grace_s
        if number == signal.SIGTERM:
            self.child.send(number)
        else:
            self.child.send_all(number)
        leader_left = False
        while time.monotonic() < deadline and self.child.members():
            if self.child.poll() is not None and not leader_left:
                leader_left = True
                deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
            self._stop.wait(0.05)
            if self._stop.count >= 2:  # a second Ctrl-C
                return

    def _note(self) -> None:
        """Remember what the living processes hold, for `end` to remove."""
        self._traces |= shm.traces(self.child.members())

    def _died(self) -> LaunchError:
        code = self.child.poll()
        how = (
            f"was killed by {signal_name(-code)}"
            if code is not None and code < 0
            else f"exited with code {code}"
        )
        when = "while serving" if self.phase is Phase.SERVING else f"while {self.phase}"
        self._note()
        return self._failure(f"vLLM {how} after {_duration(self.child.elapsed_s)}, {when}", exit_code=code)

    def _stalled(self) -> LaunchError:
        limit = _duration(self.plan.stall_timeout_s)
        message = f"vLLM made no progress for {limit} while {self.phase}: it was stopped"
        hint = "no log line, no bytes read, no CPU time moved; `server.stall_timeout_s` is the limit"
        return self._failure(message, exit_code=None, hint_without_cause=hint)

    def _failure(
        self, message: str, *, exit_code: int | None, hint_without_cause: str | None = None
    ) -> LaunchError:
        if self.phase is Phase.SERVING:  # a log of days is full of other people's errors
            lines = read_end(self.log_path, limit_bytes=_SERVING_LOG_BYTES)
        else:
            lines = read_end(self.log_path)
        struck = oom.kills() > self._oom_kills
        cause = find_cause(lines, exit_code=exit_code, out_of_memory=struck)
        return LaunchError(
            message,
            phase=str(self.phase),
            log_path=str(self.log_path),
            # where the cause is known, the end of the log is its echo
            log_tail=() if cause.is_known else tuple(line.text for line in lines[-5:]),
            causes=(cause.message,),
            hint=cause.hint if cause.is_known else hint_without_cause or cause.hint,
        )


@contextlib.contextmanager
def running(
    plan: LaunchPlan, *, log_path: Path, on_event: OnEvent = events.ignore, stop: StopRequest | None = None
) -> Iterator[Server]:
    """Start the plan's server, hand it over when it answers, stop it at the end whatever happens.

    Raises UsageError (a variable is unset), LaunchError (did not come up, or died meanwhile), Interrupted
    (`stop` was requested before it was ready).
    """
    env = resolve_env(plan.env)
    with contextlib.ExitStack() as stack:
        stop = stop or stack.enter_context(StopRequest())
        child = Child(plan.argv, env=env, log_path=log_path)
        server = Server(plan, child, stop=stop, emit=_never_failing(on_event))
        stack.callback(server.end)
        server.start()
        try:
            yield server
        except Exception as error:
            if child.poll() is None or isinstance(error, LaunchError):
                raise
            server.check()  # the server's death explains what went wrong with it
            raise
        else:
            if not stop.count:
                server.check()


def supervise(
    plan: LaunchPlan, *, log_path: Path, stop: StopRequest, on_event: OnEvent = events.ignore
) -> None:
    """Run the server until `stop` is requested. Raises as `running` does."""
    with running(plan, log_path=log_path, on_event=on_event, stop=stop) as server:
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


def _never_failing(on_event: OnEvent) -> OnEvent:
    """A terminal that went away must not keep a server from being stopped."""

    def emit(event: events.Event) -> None:
        with contextlib.suppress(OSError, ValueError):
            on_event(event)

    return emit


def _duration(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
