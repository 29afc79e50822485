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

from specserve.errors import LaunchError, UsageError
from specserve.plan.launchplan import FromEnv
from specserve.serve.group import Group
from specserve.serve.ownfiles import append_own
from specserve.serve.statefolder import private

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
                    hint=f"the profile takes the server's `{name}` from it: `export {value.name}=…`",
                )
            resolved[name] = os.environ[value.name]
        else:
            resolved[name] = value
    return resolved


class Child(Group):
    """A command started by us, which ends with us. Must be killed or waited for by the owner."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        """Start it in its own session, so that a terminal's Ctrl-C reaches specserve only.

        Raises LaunchError where the program cannot be started or the log not written.
        """
        self.log_path = log_path
        self._started_at = time.monotonic()
        try:
            private(log_path.parent)
            log = append_own(log_path)
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
                hint="in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)",
            ) from error
        finally:
            os.close(log)
        self.pid = self._popen.pid

    @property
    def elapsed_s(self) -> float:
        """Since the launch."""
        return time.monotonic() - self._started_at

    def is_running(self) -> bool:
        """Whether the first process runs."""
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the first process, negative for a signal; None while it runs."""
        return self._popen.poll()

    def kill(self, *, patience_s: float = 10.0) -> bool:
        """As every group is killed; then the kernel is told that its end was seen."""
        if not super().kill(patience_s=patience_s):
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=patience_s)
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
