"""The limits of this host's memory, and its ports: which is free, and who holds one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
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


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """A port that is free now; one that is given, if it is. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host.strip("[]"), port))
        return int(probe.getsockname()[1])


def holder(host: str, port: int) -> str | None:
    """Who stops a server from listening there; None: nobody. Raises OSError for a foreign host."""
    import psutil

    try:
        free_port(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    else:
        return None
    seen = []
    with suppress(psutil.Error, OSError):
        every = psutil.net_connections("tcp")
        seen = [each for each in every if getattr(each.laddr, "port", None) == port]
    listening = [each.pid for each in seen if each.status == psutil.CONN_LISTEN]
    if seen and not listening:  # only closed connections, which vLLM gets past
        return None
    with suppress(psutil.Error):
        for process in map(psutil.Process, filter(None, listening)):
            return f"`{' '.join(process.cmdline()[:3]) or process.name()}` (pid {process.pid})"
    return "a process that cannot be seen from here"  # or a vLLM that loads: bound, not listening
