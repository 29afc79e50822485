"""vLLM as processes: started in a session of their own, found, signalled and ended as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from specserve.engine.jsonlines import message_in
from specserve.errors import FactError, LaunchError, UsageError
from specserve.plan.launchplan import FromEnv
from specserve.serve import events, files
from specserve.serve.events import OnEvent
from specserve.serve.signals import StopRequest, signal_name

_TRACKER_PATIENCE_S = 3.0


def session(leader: int) -> list[psutil.Process]:
    """Every living process of the session of a first process, those without a parent included."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if leader in (os.getsid(pid), os.getpgid(pid)):
                process = psutil.Process(pid)
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(process)
    return found


class Group(ABC):
    """The processes of one vLLM: `pid` is its first one, the API server."""

    pid: int
    log_path: Path
    traces: frozenset[Path] = frozenset()
    """Shared memory that its processes held when they were last looked at."""
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
        """Of the first process, negative for a signal; None while it runs, and if nobody saw it."""

    def members(self) -> list[psutil.Process]:
        """Every living process of it."""
        return session(self.pid)

    def note_traces(self) -> None:
        """Remember what the living processes hold: a killed process cannot remove it."""
        self.traces |= files.traces(process.pid for process in self.members())

    def send_all(self, number: int, *, spares_trackers: bool = True) -> int:
        """A signal to every member; returns how many got it.

        Python's resource trackers are spared: with nobody left they unlink what leaked, and end.
        """
        sent = 0
        for process in self.members():
            with contextlib.suppress(psutil.Error, OSError):
                command = " ".join(process.cmdline())
                if not (spares_trackers and "multiprocessing.resource_tracker" in command):
                    process.send_signal(number)
                    sent += 1
        return sent


def resident_bytes(processes: Sequence[psutil.Process]) -> int | None:
    """Memory of all of them, pages they share counted once; None if the kernel does not tell."""
    try:
        return sum(process.memory_full_info().pss for process in processes) or None
    except (psutil.Error, OSError, AttributeError):
        return None


_PR_SET_PDEATHSIG = 1
_LAST_WORDS_S = 3.0
"""How long a process that ended gets to complete its log and its messages."""


def resolve_env(env: Mapping[str, str | FromEnv]) -> dict[str, str]:
    """Our environment with the plan's on top. Raises UsageError for a variable that is unset."""
    resolved = dict(os.environ)
    resolved.pop("NOTIFY_SOCKET", None)  # the service manager's messages are ours to send
    # vLLM starts `python -m vllm…`: a folder of that name in the working directory is not it
    resolved["PYTHONSAFEPATH"] = "1"
    for name, value in env.items():
        if isinstance(value, FromEnv):
            if not os.environ.get(value.name):
                raise UsageError(
                    f"the environment variable `{value.name}` is not set",
                    hint=f"the profile reads the server's `{name}` from it:"
                    f" run `export {value.name}=…`",
                )
            resolved[name] = os.environ[value.name]
        else:
            resolved[name] = value
    return resolved


class Child(Group):
    """A command started by us, which ends with us. Must be killed or waited for by the owner."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        """Start it in its own session, so that a terminal's Ctrl-C reaches specserve only.

        Raises LaunchError if the program cannot be started or the log not written.
        """
        self.log_path = log_path
        self.began_s = time.monotonic()
        try:
            files.private(log_path.parent)
            log = files.append_own(log_path)
        except OSError as error:
            raise LaunchError(f"cannot write the log `{log_path}`: {error.strerror}") from error
        # vLLM's sockets lie here: a killed process cannot remove its own
        self._sockets = tempfile.mkdtemp(prefix=files.SOCKETS)
        env = {"VLLM_RPC_BASE_PATH": self._sockets, **env}
        try:
            # no handler of a signal may raise meanwhile (StopRequest): the child would be unknown
            self._popen = subprocess.Popen(
                list(argv),
                env=env,
                stderr=log,
                start_new_session=True,
                **self._streams(log),
            )
        except OSError as error:
            self.remove_sockets()
            raise LaunchError(
                f"cannot start `{argv[0]}`: {error.strerror}",
                hint="in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup`"
                " (CPU)",
            ) from error
        finally:
            os.close(log)
        self.pid = self._popen.pid

    def _streams(self, log: int) -> dict[str, Any]:
        """What its standard input and output are, and how it learns that we are gone."""
        return {"stdin": subprocess.DEVNULL, "stdout": log, "preexec_fn": _die_with_parent()}

    def remove_sockets(self) -> None:
        """Remove the folder of its sockets, once nothing of it runs."""
        shutil.rmtree(self._sockets, ignore_errors=True)

    def wait(self, limit_s: float = _LAST_WORDS_S) -> None:
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


def _die_with_parent() -> Callable[[], None] | None:
    """Ask the kernel to stop vLLM when specserve is killed -9; its engine follows its API server.

    The kernel watches the thread that forked, so this holds for the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) and None


class JsonChild(Child):
    """A child that is spoken to in lines of JSON; threads do the reading and the writing.

    A child that hangs does not read, and one that we left alone notices the end of its input.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        super().__init__(argv, env=env, log_path=log_path)
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def _streams(self, log: int) -> dict[str, Any]:
        return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as stream:
            for line in stream:
                if (message := message_in(line)) is not None:  # None: cut off by the child's death
                    self._inbox.put(message)
        self._inbox.put(None)

    def _write(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError), self._popen.stdin as stream:
            for message in iter(self._outbox.get, None):
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message as soon as the child reads."""
        self._outbox.put(message)

    def receive(self, limit_s: float) -> dict[str, Any] | None:
        """The next message; None if there will be none. Raises queue.Empty at the limit."""
        try:
            return self._inbox.get(timeout=limit_s)
        except queue.Empty:
            if self.is_running():
                raise
            self._threads[0].join(_LAST_WORDS_S)  # its last words may still be in the pipe
            return None if self._inbox.empty() else self._inbox.get()

    def close(self) -> None:
        """End it at once, with all that it started."""
        clear(self)
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)


_BEFORE_READY_GRACE_S, _ORPHAN_GRACE_S, _KERNEL_PATIENCE_S = 5.0, 2.0, 30.0


def end(
    child: Child, *, is_serving: bool, drain_s: float, stop: StopRequest, emit: OnEvent
) -> None:
    """Stop every process, by force if needed, and remove what they leave; a dead one's too.

    A server that serves may take `drain_s` for the requests that run; one that starts is not
    trusted to stop. Raises FactError if the kernel keeps a process.
    """
    began_s = time.monotonic()
    if child.is_running():
        child.note_traces()
        number = signal.SIGTERM if is_serving else signal.SIGINT
        grace_s = drain_s if is_serving else _BEFORE_READY_GRACE_S
        emit(events.Stopping(signal_name(number), grace_s))
        deadline = began_s + grace_s
        # vLLM drains its requests only if its workers do not get it too
        if is_serving:
            with contextlib.suppress(OSError):
                os.kill(child.pid, number)
        else:
            child.send_all(number, spares_trackers=False)
        has_leader = True
        while time.monotonic() < deadline and child.members():
            if has_leader and not child.is_running():
                has_leader = False
                deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
            stop.wait(0.05)
            if stop.count >= 2:  # a second Ctrl-C
                break
    killed, removed = clear(child)
    emit(events.Stopped(time.monotonic() - began_s, killed=killed, removed=removed))


def clear(group: Group) -> tuple[bool, tuple[str, ...]]:
    """Kill what is left, and remove what it held. Returns whether it took SIGKILL, and the latter.

    Raises FactError if the kernel keeps a process. The traces are read once everything stands
    still: an orphan that still starts must not make more meanwhile.
    """
    began_s = time.monotonic()
    try:
        is_left = group.send_all(signal.SIGSTOP) > 0
        group.note_traces()
    finally:  # an interruption must not leave frozen processes behind
        while left := group.members():
            waited_s = time.monotonic() - began_s
            if waited_s > _KERNEL_PATIENCE_S:
                raise FactError(
                    f"the kernel has not ended process {', '.join(str(each.pid) for each in left)}",
                    hint="it is waiting for a device or a disk: see `dmesg`",
                )
            group.send_all(signal.SIGKILL, spares_trackers=waited_s < _TRACKER_PATIENCE_S)
            group.is_running()  # reaps it, if it is our child
            time.sleep(0.02)
    if isinstance(group, Child):
        group.wait()
        group.remove_sockets()
    return is_left, files.remove(group.traces)
