"""Every process that came out of one launch, found and signalled as a whole. Does not know who started it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

_TRACKER_PATIENCE_S = 3.0


class Group(ABC):
    """The session of one vLLM: `pid` is its first process, the API server, and the id of the session."""

    pid: int
    log_path: Path

    @property
    @abstractmethod
    def elapsed_s(self) -> float:
        """Since the launch."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether the first process runs."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Of the first process, negative for a signal; None while it runs, and where nobody saw its end."""

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

    def send(self, number: int) -> None:
        """A signal to the first process alone, if it is still that one."""
        with contextlib.suppress(OSError):
            if self.is_running():
                os.kill(self.pid, number)

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
            self.is_running()  # reaps it, where it is our child
            if waited_s > patience_s:
                return False
            time.sleep(0.02)
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
