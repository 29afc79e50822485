"""The loss of another node, seen by the connection to node 0's port: with real sockets and processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from specserve.errors import LaunchError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.health import Links

HOLD = (
    "import socket,sys,time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"
)


def plan(rank: int, port: int) -> LaunchPlan:
    return LaunchPlan(
        name="two", fingerprint="f", vllm="0.33", platform="cpu", argv=("vllm", "serve", "m"), env={},
        engine_kwargs={"nnodes": 2, "master_addr": "127.0.0.1", "master_port": port}, host="127.0.0.1", port=0,
        model="m", stall_timeout_s=60, shutdown_timeout_s=5, node_rank=rank,
    )  # fmt: skip


@pytest.fixture
def store() -> Iterator[socket.socket]:
    """Node 0's port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextlib.contextmanager
def other_node(server: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is linked with node 0, as a rank is."""
    port = server.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", HOLD, str(port)]) as process:
        accepted, _ = server.accept()
        try:
            yield process
        finally:
            process.kill()
            accepted.close()


def looked(links: Links, processes: list[psutil.Process], *, complete: bool = True) -> None:
    links.look(processes, complete=complete)


def until_lost(links: Links, processes: list[psutil.Process], *, complete: bool = True) -> LaunchError:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            links.look(processes, complete=complete)
        except LaunchError as error:
            return error
        time.sleep(0.05)
    raise AssertionError("nothing was noticed")


def test_node_0_notices_that_another_is_gone(store: socket.socket) -> None:
    here = [psutil.Process()]
    links = Links(plan(0, store.getsockname()[1]))
    with other_node(store) as process:
        for _ in range(3):
            links.look(here, complete=True)
        assert links.is_joined
        process.kill()
        error = until_lost(links, here)
    assert "another node is gone" in error.message
    assert "0 of 2" in error.message
    assert "restart all nodes" in (error.hint or "")


@pytest.mark.parametrize("complete", [False, True])
def test_another_node_notices_that_node_0_is_gone(store: socket.socket, complete: bool) -> None:
    port = store.getsockname()[1]
    links = Links(plan(1, port))
    with subprocess.Popen([sys.executable, "-c", HOLD, str(port)]) as process:
        there = [psutil.Process(process.pid)]
        accepted, _ = store.accept()
        for _ in range(3):
            links.look(there, complete=complete)
        accepted.close()
        error = until_lost(links, there, complete=complete)
        process.kill()
    assert f"node 0 (127.0.0.1:{port}) is gone" in error.message


def test_connections_among_its_own_processes_are_no_links(store: socket.socket) -> None:
    links = Links(plan(0, store.getsockname()[1]))
    with other_node(store) as process:
        links.look([psutil.Process(), psutil.Process(process.pid)], complete=True)
        assert not links.is_joined


def test_while_it_starts_a_connection_may_come_and_go(store: socket.socket) -> None:
    here = [psutil.Process()]
    links = Links(plan(0, store.getsockname()[1]))
    with other_node(store), other_node(store) as second:
        links.look(here, complete=False)
        second.kill()
        second.wait()
        for _ in range(4):
            links.look(here, complete=False)
        assert links.is_joined
