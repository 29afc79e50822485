"""Ports of this host: which is free, and who holds one. Does not know who should have it."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a port; `pid` None where this user may not see it."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        return f"`{self.command}` (pid {self.pid})" if self.pid else "a process that cannot be seen from here"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((_bindable(host), 0))
        return int(probe.getsockname()[1])


def holder(host: str, port: int) -> Holder | None:
    """Who stops a server from listening there; None: nobody. Raises OSError for a host that is not ours."""
    if _can_bind(host, port, as_vllm=True) and (_can_bind(host, port, as_vllm=False) or _in_time_wait(port)):
        return None
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and _port(connection) == port and connection.pid:
                return _named(connection.pid)
    return Holder(None, "")


def _can_bind(host: str, port: int, *, as_vllm: bool) -> bool:
    """As vLLM: with SO_REUSEADDR, so that TIME_WAIT is no obstacle.

    That also gets past a vLLM that is still loading (bound, not yet listening), and one of the two would die
    at the end of its start.
    """
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(as_vllm))
        try:
            probe.bind((_bindable(host), port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _in_time_wait(port: int) -> bool:
    """Whether closed connections explain that a port cannot be bound exclusively."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(_port(connection) == port for connection in psutil.net_connections("tcp"))
    return True


def _port(connection: Any) -> int | None:
    return getattr(connection.laddr, "port", None)


def _named(pid: int) -> Holder:
    with contextlib.suppress(psutil.Error):
        return Holder(pid, " ".join(psutil.Process(pid).cmdline()[:3]) or psutil.Process(pid).name())
    return Holder(pid, "?")


def _bindable(host: str) -> str:
    return host.strip("[]")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
