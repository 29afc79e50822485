"""vLLM as a child: one session of processes, its output straight into a file. Does not know what it says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from specserve.errors import LaunchError, UsageError
from specserve.plan.launchplan import FromEnv

_PR_SET_PDEATHSIG = 1
_TRACKER_PATIENCE_S = 3.0


def resolve_env(env: Mapping[str, str | FromEnv]) -> dict[str, str]:
    """Our environment with the plan's on top. Raises UsageError for a variable that is unset."""
    resolved = dict(os.environ)
    resolved.pop("NOTIFY_SOCKET", None)  # the service manager's messages are ours to send
    for name, value in env.items():
        if isinstance(value, FromEnv):
            if not os.environ.get(value.name):
                raise UsageError(
                    f"the environment variable `{value.name}` is not set",
                    hint=f"the profile takes the server's `{name}` from it: `export {value.name}=…`",
                )
            resolved[name] = os.environ[value.name]
        else:
            resolved[name] = value
    return resolved


class Child:
    """A started command, and every process that came out of it. Must be killed or waited for by the owner."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        """Start it in its own session, so that a terminal's Ctrl-C reaches specserve only.

        Raises LaunchError where the program cannot be started or the log not written.
        """
        self.log_path = log_path
        self.started_at = time.monotonic()
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise LaunchError(f"cannot write the log `{log_path}`: {error.strerror}") from error
        try:
            self._popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509  # one system call, nothing else
            )
        except OSError as error:
            raise LaunchError(
                f"cannot start `{argv[0]}`: {error.strerror}",
                hint="`pip install 'specserve[vllm]'` installs vLLM; `make setup` installs it for the CPU",
            ) from error
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        """The first process: the API server. Also the id of the session and of its process group."""
        return self._popen.pid

    @property
    def elapsed_s(self) -> float:
        """Since the launch."""
        return time.monotonic() - self.started_at

    def poll(self) -> int | None:
        """The exit code of the first process, negative for a signal; None while it runs."""
        return self._popen.poll()

    def members(self) -> list[psutil.Process]:
        """Every living process of the session or the group, those that lost their parent included."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if self.pid in (os.getsid(pid), os.getpgid(pid)):
                    process = psutil.Process(pid)
                    if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                        found.append(process)
        return found

    def send(self, number: int) -> None:
        """A signal to the first process alone."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def send_all(self, number: int) -> None:
        """A signal to every member."""
        _send(self.members(), number)

    def freeze(self) -> bool:
        """SIGSTOP to every member but the trackers, before they are killed. False where there is none."""
        victims = [process for process in self.members() if not _is_tracker(process)]
        _send(victims, signal.SIGSTOP)
        return bool(victims)

    def kill(self, *, patience_s: float = 10.0) -> bool:
        """SIGKILL to every member until none is left. False where the kernel keeps one (uninterruptible).

        Python's resource trackers go last: with nobody left they unlink what leaked, and end by themselves.
        """
        began = time.monotonic()
        while members := self.members():
            victims = [process for process in members if not _is_tracker(process)]
            waited_s = time.monotonic() - began
            _send(victims or (members if waited_s > _TRACKER_PATIENCE_S else []), signal.SIGKILL)
            self.poll()
            if waited_s > patience_s:
                return False
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=patience_s)
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
    """Memory of all of them, pages they share counted once; None where the kernel does not tell."""
    total = 0
    for process in processes:
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
            total += (
                next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
            )
        except (OSError, StopIteration, ValueError):
            return None
    return total or None


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
