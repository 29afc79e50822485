"""`specserve up` with real vLLM: it serves, it ends cleanly, and it says why where it fails."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.engine.conftest import FROM_HUB, HUB_TARGET
from tests.engine.texts import post

if TYPE_CHECKING:
    from hub_server import HubServer

    from tests.engine.conftest import StartUp, Up

pytestmark = pytest.mark.engine
BODY = {"model": "tiny", "prompt": "def fibonacci(n):", "max_tokens": 16, "temperature": 0}


def held_by(processes: list[psutil.Process]) -> set[Path]:
    """Shared memory and sockets in the temporary folder that these processes hold."""
    held: set[Path] = set()
    for process in processes:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            addresses = [str(connection.laddr) for connection in process.net_connections("unix")]
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            continue  # it has ended since it was listed, as vLLM's short-lived children do
        held |= {path for path in Path("/dev/shm").iterdir() if f"/dev/shm/{path.name}" in maps}
        held |= {Path(address) for address in addresses if address.startswith(tempfile.gettempdir())}
    return held


@contextlib.contextmanager
def nothing_is_left(up: Up) -> Iterator[None]:
    """What this server's processes hold at the beginning is gone at the end, and so are they and the port."""
    members = up.members()
    held = held_by(members)
    yield
    assert [process for process in members if process.is_running() and process.status() != "zombie"] == []
    assert {path for path in held if path.exists()} == set()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", up.port))


def test_a_locked_profile_serves_with_the_hub_down_and_ctrl_c_ends_it_with_a_stream_open(
    start_up: StartUp, hub_of_yesterday: HubServer
) -> None:
    with start_up("--locked", changes=FROM_HUB) as up:
        up.wait_ready()
        argv = [word for process in up.members() for word in process.cmdline()]
        assert argv[argv.index("--revision") + 1] == hub_of_yesterday.repositories[HUB_TARGET].commit
        assert f"url      {up.url}/v1\n" in up.out
        assert "model    tiny\n" in up.out
        for phase in ("starting the engine", "loading weights", "allocating the KV cache"):
            assert f"  {phase} … " in up.err
        assert post(up, **BODY)["usage"]["completion_tokens"] == 16
        with nothing_is_left(up):
            stream = http.client.HTTPConnection("127.0.0.1", up.port, timeout=60)
            body = BODY | {"stream": True, "max_tokens": 400, "ignore_eos": True}
            stream.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = stream.getresponse()
            first = response.readline()
            reader = threading.Thread(target=lambda: read_all(response))
            reader.start()
            assert up.stop(signal.SIGINT) == 0
            reader.join(timeout=30)
            response.close()
            stream.close()
        assert first.startswith(b"data: ")
        assert "stopped in" in up.err
        (log,) = (up.state / "logs").iterdir()
        assert "vLLM server" in log.read_text()
    assert hub_of_yesterday.requests == []


def read_all(response: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # a server that is stopped may cut it
        response.read()


def test_an_engine_killed_while_it_starts_is_told_as_that(start_up: StartUp) -> None:
    with start_up() as up:
        up.wait_for(up.engine_core)
        engine = up.engine_core()
        assert engine is not None
        with nothing_is_left(up):
            engine.kill()
            assert up.process.wait(timeout=120) == 2
    assert "the engine process" in up.err
    assert "SIGKILL" in up.err
    assert "Engine core initialization failed" not in up.err
    assert "while starting the engine" in up.err
    assert "Traceback" not in up.err


def test_an_engine_killed_while_it_serves_is_told_as_that_even_under_a_quiet_log(start_up: StartUp) -> None:
    with start_up(changes={"env": {"VLLM_LOGGING_LEVEL": "ERROR"}}) as up:
        up.wait_ready()
        engine = up.engine_core()
        assert engine is not None
        with nothing_is_left(up):
            engine.kill()
            assert up.process.wait(timeout=120) == 2
    assert "while serving" in up.err
    assert "SIGKILL" in up.err
    assert "exited with code 0" in up.err


def test_a_second_server_on_the_port_is_refused(tiny_server: Up, start_up: StartUp) -> None:
    with start_up("--port", str(tiny_server.port)) as second:
        assert second.process.wait(timeout=120) == 2
    assert f"port {tiny_server.port} is taken by" in second.err
    assert post(tiny_server, **BODY)["model"] == "tiny"
