"""vLLM as processes, a session that ends as a whole; and signals that ask us to stop."""

from __future__ import annotations

import contextlib
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from specserve.engine.jsonlines import message_in
from specserve.errors import FactError, LaunchError, UsageError
from specserve.plan.launchplan import FromEnv
from specserve.serve import files
from specserve.serve.causes import died
from specserve.serve.logs import is_disk_full, open_log

# The guard waits for the pid, and for the end of its input: we are gone then, however it came.
# vLLM's first process may finish its requests; a start that swallows the signal is killed, and
# Python's resource trackers last: with nobody left they unlink what leaked, and end.
_GUARD = """
sockets=$2; trap 'rm -rf "$sockets"' EXIT
patiently() {  # for a process to end, a number of tenths of a second
  left=$2
  while read -r stat < "/proc/$1/stat" && [ "$left" -gt 0 ]; do
    case ${stat##*) } in Z*) break ;; esac
    sleep 0.1; left=$((left - 1))
  done
}
read -r pid || exit; read -r end
kill -TERM "$pid" && patiently "$pid" "$1"
for each in /proc/[0-9]*; do
  read -r stat < "$each/stat" && set -- ${stat##*) } && [ "$4" = "$pid" ] || continue
  member=${each#/proc/}
  grep -aq resource_tracker "$each/cmdline" && trackers="$trackers $member" && continue
  kill -KILL "$member"; rm -f "/dev/shm/__KMP_REGISTERED_LIB_${member}_"*
done
for each in $trackers; do patiently "$each" 30; done
kill -KILL "-$pid"
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS_S = 3.0  # for a process that ended, to complete its log and its messages
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


def send_all(
    processes: Iterable[psutil.Process], number: int, *, spares_trackers: bool = False
) -> int:
    """A signal to each; returns how many got it.

    `spares_trackers`: not to Python's resource trackers, which unlink what leaked once they are
    alone, and end.
    """
    sent = 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())
            if not (spares_trackers and "multiprocessing.resource_tracker" in command):
                process.send_signal(number)
                sent += 1
    return sent


def clear_session(leader: int, traces: Iterable[Path] = ()) -> bool:
    """Kill what is left of a session, remove what it held. Returns whether it took SIGKILL.

    Raises FactError if the kernel keeps a process.
    """
    began_s, sent = time.monotonic(), 0
    held = {*traces, *files.traces(process.pid for process in session(leader))}
    while left := session(leader):
        waited_s = time.monotonic() - began_s
        if waited_s > _KERNEL_PATIENCE_S:
            pids = ", ".join(str(each.pid) for each in left)
            raise FactError(
                f"the kernel has not ended process {pids}",
                hint="it is waiting for a device or a disk: see `dmesg`",
            )
        sent += send_all(left, signal.SIGKILL, spares_trackers=waited_s < _TRACKER_PATIENCE_S)
        time.sleep(0.02)
    files.remove(held)
    return sent > 0


def resolve_env(env: Mapping[str, str | FromEnv]) -> dict[str, str]:
    """Our environment with the plan's on top. Raises UsageError for a variable that is unset."""
    # vLLM starts `python -m vllm…`: a folder of that name in the working directory is not it
    resolved = {**os.environ, "PYTHONSAFEPATH": "1"}
    for name, value in env.items():
        if isinstance(value, FromEnv) and not os.environ.get(value.name):
            text = f"the environment variable `{value.name}` is not set"
            why = f"the profile reads the server's `{name}` from it"
            raise UsageError(text, hint=f"{why}: run `export {value.name}=…`")
        resolved[name] = os.environ[value.name] if isinstance(value, FromEnv) else value
    return resolved


class Child:
    """A command with all that it starts, which ends with us. Must be cleared by the owner."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        grace_s: float = 10.0,
        speaks: bool = False,
    ) -> None:
        """Start it in its own session, so that a terminal's Ctrl-C reaches specserve only.

        `grace_s`: how long it may take to end if we are killed; `speaks`: its standard input and
        output are pipes. Raises LaunchError if it cannot be started or the log not written.
        """
        self.log_path = log_path
        self._traces = frozenset[Path]()
        """The folder of its sockets, and the shared memory that it held at the last look."""
        self._began_s, self._moved_s = time.monotonic(), 0.0
        self._activity: tuple[float, ...] = ()
        log = open_log(log_path)
        try:
            sockets = tempfile.mkdtemp(prefix=files.SOCKETS)  # a killed process leaves its own
            self._traces = frozenset([Path(sockets)])
            # no handler of a signal may raise meanwhile (StopRequest): the child would be unknown
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", f"{10 * grace_s:.0f}", sockets],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._guard.stdin is not None
            told = self._guard.stdin.fileno()
            self._popen = subprocess.Popen(
                list(argv),
                env={files.SOCKETS_VARIABLE: sockets, **env},
                stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if speaks else log,
                stderr=log,
                start_new_session=True,
                # the child tells the guard itself: we may be killed at any moment
                preexec_fn=lambda: os.write(told, b"%d\n" % os.getpid()),  # noqa: PLW1509
            )
        except OSError as error:
            with contextlib.suppress(AttributeError):  # the guard itself did not start
                self._end_guard()
            files.remove(self._traces)
            raise LaunchError(
                f"cannot start `{argv[0]}`: {error.strerror}",
                hint="in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup`"
                " (CPU)",
            ) from error
        finally:
            os.close(log)
        self.pid = self._popen.pid

    def _end_guard(self) -> None:
        self._guard.kill()
        self._guard.communicate()

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

    def wait(self) -> None:
        """Wait a moment until the first process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_LAST_WORDS_S)

    def death(self, phase: str, *, said: str = "") -> LaunchError:
        """Why it ended without being asked to. `said`: its own report, if the log has none."""
        code, after_s = self._popen.poll(), self.elapsed_s
        return died(self.log_path, phase, exit_code=code, after_s=after_s, said=said)

    def note_traces(self) -> None:
        """Remember what the living processes hold: a killed process cannot remove it."""
        self._traces |= files.traces(process.pid for process in self.members())

    def clear(self) -> bool:
        """Clear its session; the guard goes too. Returns and raises as `clear_session`."""
        killed = clear_session(self.pid, self._traces)
        self.wait()
        self._end_guard()
        return killed

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
    """A child that is spoken to in lines of JSON; one that hangs neither reads nor writes."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        super().__init__(argv, env=env, log_path=log_path, speaks=True)
        self._inbox = queue.SimpleQueue[dict[str, Any] | None]()
        self._outbox = queue.SimpleQueue[Mapping[str, Any] | None]()
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with contextlib.suppress(OSError), self._popen.stdout as lines:
            for message in filter(None, map(message_in, lines)):
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
        has_ended = not self.is_running()
        try:
            return self._inbox.get(timeout=limit_s)
        except queue.Empty:
            if has_ended:  # what it started may hold its output open
                return None
            raise

    def close(self) -> None:
        """End it at once, with all that it started."""
        self.clear()
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)


class StopRequest:
    """Set once or more, by a signal handler or a thread. (threading.Event may deadlock there.)"""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signal: int | None = None
        self.count = 0

    def request(self, number: int = signal.SIGTERM, _frame: object = None) -> None:
        """Ask for the stop; the first signal is remembered, the second means `at once`."""
        self.signal = self.signal or number
        if number != signal.SIGHUP or not self.count:  # a closing terminal may send it twice
            self.count += 1
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request newer than the last wait, or the time; whether one was ever made."""
        if select.select([self._read], [], [], timeout_s)[0]:
            with contextlib.suppress(OSError):
                os.read(self._read, 64)
        return self.count > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._read)
        os.close(self._write)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGINT, SIGTERM and SIGHUP become requests instead of exceptions. For the main thread.

    A SIGHUP that is ignored (`nohup`) stays ignored.
    """
    with StopRequest() as stop:
        numbers = _SIGNALS[: 2 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 3]
        before = {number: signal.signal(number, stop.request) for number in numbers}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
