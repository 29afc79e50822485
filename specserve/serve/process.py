"""vLLM as processes: started in a session of their own, found, signalled and ended as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import json
import operator
import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from specserve.engine.jsonlines import message_in
from specserve.errors import FactError, LaunchError, UsageError
from specserve.plan.launchplan import FromEnv
from specserve.serve import files
from specserve.serve.files import Process, is_alive
from specserve.serve.logs import is_disk_full, open_log

_PR_SET_PDEATHSIG = 1
_LAST_WORDS_S = 3.0
"""How long a process that ended gets to complete its log and its messages."""
_KERNEL_PATIENCE_S, _TRACKER_PATIENCE_S = 30.0, 3.0
_IO_NOISE_BYTES = 1 << 20
_IDLE_CPU_SHARE = 0.01
_WITHOUT_LOG_S = 30.0
"""A vLLM that cannot write its log dies of it, or waits for ever for the process that did."""


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


class Group:
    """The processes of one vLLM that was started by another command, and what they held.

    The first one, the API server, may be unknown (None).
    """

    def __init__(
        self,
        log_path: Path,
        leader: Process | None = None,
        others: Iterable[Process] = (),
        traces: Iterable[str] = (),
    ) -> None:
        self.log_path = log_path
        self.traces = frozenset(map(Path, traces))
        """Shared memory and sockets that they held when they were last looked at."""
        self._processes = {leader, *others}

    @property
    def exit_code(self) -> int | None:
        """Of the first process, negative for a signal; None while it runs, and if nobody saw it."""
        return None

    def members(self) -> list[psutil.Process]:
        """Every living process of it."""
        found = []
        for pid, since in filter(None, self._processes):
            with contextlib.suppress(psutil.Error):
                if is_alive(pid, since=since):
                    found.append(psutil.Process(pid))
        return found

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

    def clear(self) -> tuple[bool, tuple[str, ...]]:
        """Kill what is left, remove what it held. Returns whether it took SIGKILL, and the latter.

        Raises FactError if the kernel keeps a process. The traces are read once everything stands
        still: an orphan that still starts must not make more meanwhile.
        """
        began_s = time.monotonic()
        try:
            is_left = self.send_all(signal.SIGSTOP) > 0
            self.note_traces()
        finally:  # an interruption must not leave frozen processes behind
            while left := self.members():
                waited_s = time.monotonic() - began_s
                if waited_s > _KERNEL_PATIENCE_S:
                    pids = ", ".join(str(each.pid) for each in left)
                    raise FactError(
                        f"the kernel has not ended process {pids}",
                        hint="it is waiting for a device or a disk: see `dmesg`",
                    )
                self.send_all(signal.SIGKILL, spares_trackers=waited_s < _TRACKER_PATIENCE_S)
                time.sleep(0.02)
        return is_left, files.remove(self.traces)


def resolve_env(env: Mapping[str, str | FromEnv]) -> dict[str, str]:
    """Our environment with the plan's on top. Raises UsageError for a variable that is unset."""
    # vLLM starts `python -m vllm…`: a folder of that name in the working directory is not it
    resolved = {**os.environ, "PYTHONSAFEPATH": "1"}
    for name, value in env.items():
        if isinstance(value, FromEnv):
            if not os.environ.get(value.name):
                text = f"the environment variable `{value.name}` is not set"
                why = f"the profile reads the server's `{name}` from it"
                raise UsageError(text, hint=f"{why}: run `export {value.name}=…`")
            resolved[name] = os.environ[value.name]
        else:
            resolved[name] = value
    return resolved


class Child(Group):
    """A command started by us, which ends with us. Must be ended or cleared by the owner."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        """Start it in its own session, so that a terminal's Ctrl-C reaches specserve only.

        Raises LaunchError if the program cannot be started or the log not written.
        """
        super().__init__(log_path)
        self._began_s, self._moved_s = time.monotonic(), 0.0
        self._activity: tuple[float, ...] = ()
        log = open_log(log_path)
        # vLLM's sockets lie here: a killed process cannot remove its own
        sockets = tempfile.mkdtemp(prefix=files.SOCKETS)
        self.traces = frozenset([Path(sockets)])
        try:
            # no handler of a signal may raise meanwhile (StopRequest): the child would be unknown
            self._popen = subprocess.Popen(
                list(argv),
                env={files.SOCKETS_VARIABLE: sockets, **env},
                stderr=log,
                start_new_session=True,
                **self._streams(log),
            )
        except OSError as error:
            files.remove(self.traces)
            raise LaunchError(
                f"cannot start `{argv[0]}`: {error.strerror}",
                hint="in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup`"
                " (CPU)",
            ) from error
        finally:
            os.close(log)
        self.pid = self._popen.pid

    def _streams(self, log: int) -> dict[str, Any]:
        """What its standard input and output are, and how it learns that we are gone.

        The kernel is asked to stop vLLM when specserve is killed -9; its engine follows its API
        server. It watches the thread that forked, so this holds for the main thread only.
        """
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log}
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None and threading.current_thread() is threading.main_thread():
            streams["preexec_fn"] = lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) and None
        return streams

    @property
    def elapsed_s(self) -> float:
        """Since the launch."""
        return time.monotonic() - self._began_s

    def members(self) -> list[psutil.Process]:
        """Every living process of it."""
        self._popen.poll()  # reaps it
        return session(self.pid)

    def is_running(self) -> bool:
        """Whether the first process runs."""
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the first process, negative for a signal; None while it runs."""
        return self._popen.poll()

    def wait(self) -> None:
        """Wait a moment until the first process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_LAST_WORDS_S)

    def stalled_s(self, limit_s: float) -> float | None:
        """The limit, or a lower one, if log, disk and CPU have stood still for so long; else None.

        Idle threads tick: under 1 % of a core is standing still.
        """
        log_bytes, io_bytes, cpu_s, now_s = 0, 0, 0.0, self.elapsed_s
        with contextlib.suppress(OSError):
            log_bytes = self.log_path.stat().st_size
        for process in self.members():  # one that ends takes its share away: that is movement
            with contextlib.suppress(psutil.Error, OSError, AttributeError):
                times, io = process.cpu_times(), process.io_counters()
                cpu_s += times.user + times.system
                # mapped files count in read_bytes only
                io_bytes += io.read_chars + io.write_chars + io.read_bytes
        activity = (log_bytes, io_bytes, cpu_s)
        noise = (0, _IO_NOISE_BYTES, limit_s * _IDLE_CPU_SHARE)
        changes = map(abs, map(operator.sub, activity, self._activity))
        if not self._activity or any(map(operator.gt, changes, noise)):
            self._activity, self._moved_s = activity, now_s
        if is_disk_full(self.log_path):
            limit_s = min(limit_s, _WITHOUT_LOG_S)
        return limit_s if now_s - self._moved_s >= limit_s else None


class JsonChild(Child):
    """A child that is spoken to in lines of JSON.

    One that hangs does not read, so a thread writes; one that we left alone notices the end of its
    input.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        super().__init__(argv, env=env, log_path=log_path)
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._input, self._output = self._popen.stdin, self._popen.stdout
        self._inbox: deque[dict[str, Any]] = deque()
        self._unread = b""
        self._outbox: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _streams(self, log: int) -> dict[str, Any]:
        return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    def _write(self) -> None:
        with contextlib.suppress(OSError), self._input:
            for message in iter(self._outbox.get, None):
                self._input.write(json.dumps(message).encode() + b"\n")
                self._input.flush()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message as soon as the child reads."""
        self._outbox.put(message)

    def receive(self, limit_s: float) -> dict[str, Any] | None:
        """The next message; None if there will be none. Raises queue.Empty at the limit."""
        while not self._inbox:
            has_ended = not self.is_running()
            if not select.select([self._output], [], [], 0 if has_ended else limit_s)[0]:
                if has_ended:
                    return None
                raise queue.Empty
            if not (chunk := os.read(self._output.fileno(), 1 << 16)):
                return None
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            self._inbox.extend(filter(None, map(message_in, lines)))
        return self._inbox.popleft()

    def close(self) -> None:
        """End it at once, with all that it started."""
        self.clear()
        self.wait()
        self._outbox.put(None)
        self._writer.join(_LAST_WORDS_S)
        self._output.close()
