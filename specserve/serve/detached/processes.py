"""The processes of a detached server: found again by another command, stopped, or tidied up after they ended.

The watcher becomes this program (`python -P -m specserve.serve.detached.processes NAME RUN`) when vLLM has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from specserve.errors import FactError, SpecserveError, UsageError
from specserve.serve.detached import registry
from specserve.serve.detached.registry import NAME, Ended, Record, folder_of
from specserve.serve.events import OnEvent, Phase
from specserve.serve.files import is_alive, read_own, state_folder, ticks
from specserve.serve.process import Group, clear, end
from specserve.serve.signals import StopRequest

MARK = "SPECSERVE_RUN"
"""The variable by which a process tells the launch that it came out of, as `PLACE:NAME:RUN`."""


def identity(pid: int) -> tuple[int, int]:
    """A process as a record names it: its id and when it started, since ids are used again."""
    return pid, ticks(pid) or 0


def is_running(process: tuple[int, int] | None) -> bool:
    """Whether the process that a record names still runs."""
    return process is not None and is_alive(process[0], since=process[1])


def boot_id() -> str:
    """A name of this boot of this host; empty if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def mark(name: str, run: str = "") -> str:
    """What the processes of a server carry in their environment; without a run, how it begins for every launch."""
    place = os.fsencode(os.path.realpath(state_folder()))  # servers of another state folder are not ours
    return f"{hashlib.sha256(place).hexdigest()[:8]}:{name}:{run}"


def mark_of(pid: int) -> str:
    """What a process's environment says of its launch; empty if it says nothing, or not to us.

    vLLM's engine processes write their title over their environment, so silence proves nothing.
    """
    return _variable(pid, MARK)


def _variable(pid: int, name: str) -> str:
    """A variable of one of our processes; empty if it has none."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/environ").open("rb") as file:
        start = f"{name}=".encode()
        # root may read it of others, and must not believe it
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            found = (item for item in file.read().split(b"\0") if item.startswith(start))
            return next(found, b"").removeprefix(start).decode(errors="replace")
    return ""


def marked(name: str | None = None) -> dict[int, str]:
    """Processes of this user that say that they belong to a detached server (of this name), with its name."""
    found, ours = {}, mark("").partition(":")[0]
    for pid in psutil.pids():
        place, its_name, _ = [*mark_of(pid).split(":", 2), "", ""][:3]
        if place == ours and name in (None, its_name) and NAME.fullmatch(its_name):
            found[pid] = its_name
    return found


_EXIT_IS_WRITTEN_WITHIN_S = 2.0
_LONGEST_EXIT = 4096
_MOST_CODE = 255


def exit_file(name: str) -> Path:
    """Where the watcher writes how it ended: `{code, at_s}`."""
    return folder_of(name) / "exit.json"


class Detached(Group):
    """A server that a record describes. A pid that now means another process is never taken for it."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._leader = record.leader if record.boot_id == boot_id() else None
        self.pid = self._leader[0] if self._leader else 0
        self.began_s = time.monotonic() - max(0.0, time.time() - record.started_at_s)
        self.log_path = Path(record.log_path)
        self.oom_kills = record.oom_kills
        self.traces = frozenset(map(Path, record.traces))
        self.scratch = Path(record.scratch) if record.scratch else None

    def is_running(self) -> bool:
        """Whether vLLM's first process runs."""
        return is_running(self._leader)

    @property
    def exit_code(self) -> int | None:
        """Of the first process, as the watcher saw it; None while it runs, and if nobody saw its end."""
        if self.is_running():
            return None
        deadline = time.monotonic() + _EXIT_IS_WRITTEN_WITHIN_S
        while (code := self._written_code()) is None and time.monotonic() < deadline:
            if not is_running(self._record.watcher):
                return self._written_code()
            time.sleep(0.02)
        return code

    def _written_code(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            code = json.loads(read_own(exit_file(self._record.name), most_bytes=_LONGEST_EXIT))["code"]
            return code if type(code) is int and -_MOST_CODE <= code <= _MOST_CODE else None
        return None

    def members(self) -> list[psutil.Process]:
        """Every living process of the server; none if the host was restarted."""
        return super().members() if self._leader else []

    def _has(self, pid: int) -> bool:
        if self.is_running():  # then the number of its session is nobody else's
            return super()._has(pid)
        if identity(pid) in self._record.members:
            return True
        return super()._has(pid) and mark_of(pid) == mark(self._record.name, self._record.run)

    def keep_ready(self) -> Record | None:
        """Write down since when it is ready, its processes and what they hold; None as `registry.change`."""
        self.note_traces()
        return registry.change(
            self._record,
            ready_at_s=time.time(),
            members=tuple(identity(process.pid) for process in self.members()),
            traces=tuple(sorted(map(str, self.traces))),
        )


class Marked(Group):
    """Processes that carry the mark of a server whose state is lost: all sessions with such a process."""

    log_path = Path(os.devnull)
    exit_code = None

    def __init__(self, name: str) -> None:
        self._mark = mark(name)
        self._sessions = set()
        for pid in marked(name):
            self.scratch = Path(_variable(pid, "TMPDIR"))  # removed only if it is one that we made
            with contextlib.suppress(OSError):
                self._sessions |= {pid} & {os.getsid(pid)}
        self._leader = identity(min(self._sessions)) if self._sessions else None
        self.pid = self._leader[0] if self._leader else 0

    def is_running(self) -> bool:
        """Whether its first process runs."""
        return is_running(self._leader)

    def _has(self, pid: int) -> bool:
        if text := mark_of(pid):
            return text.startswith(self._mark)
        return os.getsid(pid) in self._sessions and self.is_running()


_UNKNOWN_DRAIN_S = 30.0


def stop_server(record: Record, *, stop: StopRequest, emit: OnEvent) -> None:
    """End it, its orphans and what they left, whether it runs or died; then nothing is known of it any more.

    If another command is stopping it already, its end is waited for. Raises FactError if a process cannot be ended,
    or the state not be written.
    """
    with registry.held(record.name):
        now = registry.read(record.name)
        if now is None or now.run != record.run:
            return
        if not is_running(now.stopper):
            with contextlib.suppress(FactError):  # a full disk must not keep it from being stopped
                registry.write(dataclasses.replace(now, stopper=identity(os.getpid())))
    while is_running(now.stopper):
        left = registry.read(record.name)
        if left is None or left.run != record.run or stop.wait(0.1):
            return
    is_serving = now.ready_at_s is not None
    end(Detached(now), is_serving=is_serving, drain_s=now.shutdown_timeout_s, stop=stop, emit=emit)
    registry.remove(now.name, run=now.run)


def stop_marked(name: str, *, stop: StopRequest, emit: OnEvent) -> bool:
    """End what runs under a name whose state is lost or unreadable. False if nothing does."""
    group = Marked(name)
    if not group.members():
        return False
    end(group, is_serving=True, drain_s=_UNKNOWN_DRAIN_S, stop=stop, emit=emit)
    return True


def stop_named(name: str, *, stop: StopRequest, emit: OnEvent) -> Record | None:
    """End the server of a name, even if its state is lost or unreadable: then there is no record of it."""
    record = None
    with contextlib.suppress(FactError):
        record = registry.read(name)
    if record is None:
        stop_marked(name, stop=stop, emit=emit)
        registry.remove(name)
    else:
        stop_server(record, stop=stop, emit=emit)
    return record


def tidy(record: Record) -> Record:
    """The same server with how it ended, on disk too. Call it only if its first process is gone."""
    from specserve.serve.causes import died  # `check` needs no causes

    group = Detached(record)
    _, removed = clear(group)
    # last: whatever the log holds, no process may be left
    error = died(group, Phase.ENGINE if record.ready_at_s is None else Phase.SERVING)
    ended = Ended(time.time(), group.exit_code, error.message, error.causes[0], error.hint, removed)
    if record.stopper is not None:  # a `down` that gave up before the kernel had ended it
        ended = dataclasses.replace(
            ended, message="vLLM was stopped", cause="`specserve down` asked it to", hint=None
        )
    with contextlib.suppress(SpecserveError):  # a full disk: the next command reports it
        return registry.change(record, ended=ended) or record
    return record


def is_cared_for(record: Record) -> bool:
    """Whether another command sees to its end: the one that stops it, or that still waits for its start."""
    return is_running(record.stopper) or (record.ready_at_s is None and is_running(record.launcher))


def running_command(name: str) -> list[str] | None:
    """The command of a detached server as its process has it; None if none has that name."""
    if name not in registry.names():
        return None
    record = registry.read(name)
    if record is None or not Detached(record).is_running() or record.leader is None:
        raise UsageError(f"the server `{name}` is not running", hint="`specserve ps` lists the servers")
    words = psutil.Process(record.leader[0]).cmdline()
    return words[1:] if "python" in Path(words[0]).name else words  # a script's first word is its interpreter


def main(name: str, run: str) -> None:
    """What the watcher becomes. It has no one to talk to: what fails is found by the next command."""
    with contextlib.suppress(SpecserveError):
        record = registry.read(name)
        if record is not None and record.run == run and not is_cared_for(record):
            tidy(record)


if __name__ == "__main__":
    main(*sys.argv[1:3])


def running_records() -> Iterator[Record]:
    """The records of the servers that run, or start."""
    for name in registry.names():
        with contextlib.suppress(FactError):
            record = registry.read(name)
            if record is not None and Detached(record).members():
                yield record
