"""The limits of this host's memory, and its ports: which is free, and who holds one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage, in bytes, of this process's control group (version 2) and its parents.

    `root`: where `sys` and `proc/self/cgroup` are. In a container the mount itself is the group.
    """
    mount, path = root / "sys/fs/cgroup", Path()
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                path = Path(line.removeprefix("0::").strip("/"))
    for group in (path, *path.parents):
        with suppress(OSError, ValueError):  # absent, or the word `max`
            limit = int((mount / group / "memory.max").read_text(encoding="ascii"))
            yield limit, int((mount / group / "memory.current").read_text(encoding="ascii"))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a port; `pid` None if this user may not see it."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        unseen = "a process that cannot be seen from here"
        return f"`{self.command}` (pid {self.pid})" if self.pid else unseen


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host.strip("[]"), 0))
        return int(probe.getsockname()[1])


def holder(host: str, port: int) -> Holder | None:
    """Who stops a server from listening there; None: nobody. Raises OSError for a foreign host."""
    import psutil

    # with SO_REUSEADDR, as vLLM binds: that gets past closed connections, but also past a vLLM
    # that still loads (bound, not yet listening), and one of the two would die
    can_listen, is_alone = (_can_bind(host, port, reuse=reuse) for reuse in (True, False))
    if can_listen and is_alone:
        return None
    seen = []
    with suppress(psutil.Error, OSError):
        every = psutil.net_connections("tcp")
        seen = [each for each in every if getattr(each.laddr, "port", None) == port]
    if can_listen and seen:
        return None
    pids = [each.pid for each in seen if each.status == psutil.CONN_LISTEN and each.pid]
    with suppress(psutil.Error):
        for process in map(psutil.Process, pids):
            return Holder(process.pid, " ".join(process.cmdline()[:3]) or process.name())
    return Holder(pids[0] if pids else None, "?")


def _can_bind(host: str, port: int, *, reuse: bool) -> bool:
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            probe.bind((host.strip("[]"), port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
