"""vLLM as processes: started in a session of their own, found, signalled and ended as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from specserve.errors import FactError, LaunchError, UsageError
from specserve.plan.launchplan import FromEnv
from specserve.serve import events, files
from specserve.serve.causes import signal_name
from specserve.serve.events import OnEvent
from specserve.serve.files import append_own, private
from specserve.serve.signals import StopRequest

_TRACKER_PATIENCE_S = 3.0


class Group(ABC):
    """The session of one vLLM: `pid` is its first process, the API server, and the id of the session."""

    pid: int
    log_path: Path
    traces: frozenset[Path] = frozenset()
    """Shared memory that its processes held when they were last looked at."""
    scratch: Path | None = None
    """Its temporary folder, which ends with it."""

    began_s = 0.0
    """When it was launched, on the monotonic clock."""

    @property
    def elapsed_s(self) -> float:
        """Since the launch."""
        return time.monotonic() - self.began_s

    @abstractmethod
    def is_running(self) -> bool:
        """Whether the first process runs."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Of the first process, negative for a signal; None while it runs, and if nobody saw its end."""

    def members(self) -> list[psutil.Process]:
        """Every living process of the session or the group, those that lost their parent included."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if self._has(pid):
                    process = psutil.Process(pid)
                    if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                        found.append(process)
        return found

    def _has(self, pid: int) -> bool:
        return self.pid in (os.getsid(pid), os.getpgid(pid))

    def note_traces(self) -> None:
        """Remember what the living processes hold: a killed process cannot remove it."""
        self.traces |= files.traces(process.pid for process in self.members())

    def send(self, number: int, *, to_all: bool = False) -> None:
        """A signal to the first process alone, if it is still that one, or to every member."""
        if to_all:
            _send(self.members(), number)
        elif self.is_running():
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def kill(self, *, patience_s: float = 10.0) -> bool:
        """SIGKILL to every member until none is left. False if the kernel keeps one (uninterruptible).

        Python's resource trackers go last: with nobody left they unlink what leaked, and end by themselves.
        """
        began = time.monotonic()
        while members := self.members():
            victims = [process for process in members if not _is_tracker(process)]
            waited_s = time.monotonic() - began
            _send(victims or (members if waited_s > _TRACKER_PATIENCE_S else []), signal.SIGKILL)
            self.is_running()  # reaps it, if it is our child
            if waited_s > patience_s:
                return False
            time.sleep(0.02)
        files.remove_scratch(self.scratch)
        return True


def _is_tracker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    return False


def _send(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.send_signal(number)


def resident_bytes(processes: Sequence[psutil.Process]) -> int | None:
    """Memory of all of them, pages they share counted once; None if the kernel does not tell."""
    total = 0
    for process in processes:
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
            total += 1024 * next(
                int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")
            )
        except (OSError, StopIteration, ValueError):
            return None
    return total or None


_PR_SET_PDEATHSIG = 1


def resolve_env(env: Mapping[str, str | FromEnv]) -> dict[str, str]:
    """Our environment with the plan's on top. Raises UsageError for a variable that is unset."""
    resolved = dict(os.environ)
    resolved.pop("NOTIFY_SOCKET", None)  # the service manager's messages are ours to send
    for name, value in env.items():
        if isinstance(value, FromEnv):
            if not os.environ.get(value.name):
                raise UsageError(
                    f"the environment variable `{value.name}` is not set",
                    hint=f"the profile reads the server's `{name}` from it: run `export {value.name}=…`",
                )
            resolved[name] = os.environ[value.name]
        else:
            resolved[name] = value
    return resolved


class Child(Group):
    """A command started by us, which ends with us. Must be killed or waited for by the owner."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path, has_pipes: bool = False
    ) -> None:
        """Start it in its own session, so that a terminal's Ctrl-C reaches specserve only.

        `has_pipes`: its standard input and output are `input` and `output`, and its log is stderr alone. Raises
        LaunchError if the program cannot be started or the log not written.
        """
        self.log_path = log_path
        self.began_s = time.monotonic()
        try:
            private(log_path.parent)
            log = append_own(log_path)
        except OSError as error:
            raise LaunchError(f"cannot write the log `{log_path}`: {error.strerror}") from error
        self.scratch = files.make_scratch(env)
        try:
            # no handler of a signal may raise meanwhile (StopRequest): the child would be unknown
            self._popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_pipes else log,
                stderr=log,
                env=files.within(env, self.scratch),
                start_new_session=True,
                # a child with pipes notices the end of its input
                preexec_fn=None if has_pipes else _die_with_parent(),  # noqa: PLW1509  # one system call
            )
        except OSError as error:
            files.remove_scratch(self.scratch)
            raise LaunchError(
                f"cannot start `{argv[0]}`: {error.strerror}",
                hint="in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)",
            ) from error
        finally:
            os.close(log)
        self.pid = self._popen.pid

    @property
    def input(self) -> IO[bytes]:
        """Its standard input; only for a child with pipes."""
        assert self._popen.stdin is not None
        return self._popen.stdin

    @property
    def output(self) -> IO[bytes]:
        """Its standard output; only for a child with pipes."""
        assert self._popen.stdout is not None
        return self._popen.stdout

    def wait(self, limit_s: float) -> None:
        """Wait until the first process has ended, or the time is up."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(limit_s)

    def is_running(self) -> bool:
        """Whether the first process runs."""
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the first process, negative for a signal; None while it runs."""
        return self._popen.poll()

    def kill(self, *, patience_s: float = 10.0) -> bool:
        """As every group is killed; then the first process is reaped."""
        if not super().kill(patience_s=patience_s):
            return False
        self.wait(patience_s)
        return True


def _die_with_parent() -> Callable[[], None] | None:
    """Ask the kernel to stop vLLM when specserve is killed -9; its engine follows its API server.

    The kernel watches the thread that forked, so this holds for the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) and None


_BEFORE_READY_GRACE_S = 5.0
_ORPHAN_GRACE_S = 2.0


def end(group: Group, *, is_serving: bool, drain_s: float, stop: StopRequest, emit: OnEvent) -> None:
    """Stop every process, by force if needed, and remove what they leave. Safe to call on a dead group.

    A server that serves may take `drain_s` for the requests that run; one that starts is not trusted to stop. Raises
    FactError if the kernel keeps a process.
    """
    began_s = time.monotonic()
    if group.is_running():
        group.note_traces()
        _ask_to_end(group, is_serving=is_serving, drain_s=drain_s, stop=stop, emit=emit)
    killed, removed = clear(group)
    if left := group.members():
        pids = ", ".join(str(process.pid) for process in left)
        raise FactError(
            f"the kernel has not ended process {pids}",
            hint="it is waiting for a device or a disk: see `dmesg`",
        )
    emit(events.Stopped(time.monotonic() - began_s, killed=killed, removed=removed))


def _ask_to_end(group: Group, *, is_serving: bool, drain_s: float, stop: StopRequest, emit: OnEvent) -> None:
    """Send the signal and wait: its grace for the first process, a moment more for its orphans."""
    number = signal.SIGTERM if is_serving else signal.SIGINT
    grace_s = drain_s if is_serving else _BEFORE_READY_GRACE_S
    emit(events.Stopping(signal_name(number), grace_s))
    deadline = time.monotonic() + grace_s
    group.send(
        number, to_all=not is_serving
    )  # vLLM drains its requests only if its workers do not get it too
    has_leader = True
    while time.monotonic() < deadline and group.members():
        if has_leader and not group.is_running():
            has_leader = False
            deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
        stop.wait(0.05)
        if stop.count >= 2:  # a second Ctrl-C
            return


def clear(group: Group) -> tuple[bool, tuple[str, ...]]:
    """Kill what is left, and remove what it held. Returns whether it took SIGKILL, and what was removed.

    The traces are read once everything stands still: an orphan that still starts must not make more meanwhile.
    """
    try:
        victims = [process for process in group.members() if not _is_tracker(process)]
        _send(victims, signal.SIGSTOP)
        group.note_traces()
        is_gone = group.kill()
    except BaseException:  # an interruption must not leave frozen processes behind
        group.kill()
        raise
    return bool(victims), files.remove(group.traces) if is_gone else ()
