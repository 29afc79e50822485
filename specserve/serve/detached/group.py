"""The processes of a detached server, found again by another command than the one that started it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from specserve.serve import shm
from specserve.serve.detached.identity import boot_id, mark_of, place
from specserve.serve.detached.record import Record
from specserve.serve.detached.registry import NAME, folder_of
from specserve.serve.group import Group
from specserve.serve.identity import is_alive, ticks
from specserve.serve.ownfiles import read_own

_EXIT_IS_WRITTEN_WITHIN_S = 2.0
_LONGEST_EXIT = 4096
_MOST_CODE = 255


def exit_file(name: str) -> Path:
    """Where the watcher writes how it ended: `{code, at_s}`."""
    return folder_of(name) / "exit.json"


class Detached(Group):
    """A server as its record tells it. A pid that now means another process is never taken for it."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._is_of_this_boot = record.boot_id == boot_id()
        self.pid, self._ticks = record.leader or (0, 0)
        self.log_path = Path(record.log_path)

    @property
    def elapsed_s(self) -> float:
        """Since the launch."""
        return max(0.0, time.time() - self._record.started_at_s)

    def is_running(self) -> bool:
        """Whether vLLM's first process runs."""
        return self._is_of_this_boot and self.pid > 0 and is_alive(self.pid, since=self._ticks)

    @property
    def exit_code(self) -> int | None:
        """Of the first process, as the watcher saw it; None while it runs, and where nobody saw its end."""
        if self.is_running():
            return None
        deadline = time.monotonic() + _EXIT_IS_WRITTEN_WITHIN_S
        while (code := self._written_code()) is None and self._is_watched() and time.monotonic() < deadline:
            time.sleep(0.02)
        return code

    def _written_code(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            code = json.loads(read_own(exit_file(self._record.name), most_bytes=_LONGEST_EXIT))["code"]
            return code if type(code) is int and -_MOST_CODE <= code <= _MOST_CODE else None
        return None

    def _is_watched(self) -> bool:
        watcher = self._record.watcher
        return watcher is not None and is_alive(watcher[0], since=watcher[1])

    def members(self) -> list[psutil.Process]:
        """Every living process of the server; none where the host was started anew."""
        return super().members() if self._is_of_this_boot and self.pid > 0 else []

    def _has(self, pid: int) -> bool:
        if self.is_running():  # then the number of its session is nobody else's
            return super()._has(pid)
        if (pid, ticks(pid)) in self._record.members:
            return True
        return super()._has(pid) and mark_of(pid) == mark(self._record)


class Marked(Group):
    """Processes that carry the mark of a server whose state is lost: all sessions with such a process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.log_path = Path(os.devnull)
        self._began = time.monotonic()
        leaders = [pid for pid in marked(name) if _leads(pid)]
        self.pid = min(leaders, default=0)
        self._ticks = ticks(self.pid) or 0
        self._sessions = {os.getsid(pid) for pid in leaders}

    @property
    def elapsed_s(self) -> float:
        """Since it was found."""
        return time.monotonic() - self._began

    @property
    def exit_code(self) -> int | None:
        """Nobody saw it."""
        return None

    def is_running(self) -> bool:
        """Whether its first process runs."""
        return self.pid > 0 and is_alive(self.pid, since=self._ticks)

    def _has(self, pid: int) -> bool:
        text = mark_of(pid)
        if text is not None:
            return _parts(text)[:2] == (place(), self._name)
        return os.getsid(pid) in self._sessions and self.is_running()


def marked(name: str | None = None) -> dict[int, str]:
    """Processes of this user that say that they belong to a detached server (of this name), with its name."""
    found, here = {}, place()
    for pid in psutil.pids():
        its_place, its_name, _ = _parts(mark_of(pid))
        if its_place == here and name in (None, its_name) and NAME.fullmatch(its_name):
            found[pid] = its_name
    return found


def noted(group: Group) -> dict[str, Any]:
    """What a record keeps of a server that is ready: its processes, and what they hold."""
    held = group.members()
    return {
        "members": tuple((process.pid, ticks(process.pid) or 0) for process in held),
        "traces": tuple(sorted(map(str, shm.traces(held)))),
    }


def mark(record: Record) -> str:
    """What the processes of a server carry in their environment."""
    return f"{place()}:{record.name}:{record.run}"


def _parts(text: str | None) -> tuple[str, str, str]:
    its_place, _, rest = (text or "").partition(":")
    its_name, _, run = rest.partition(":")
    return its_place, its_name, run


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False
