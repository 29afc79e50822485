"""Plans that start the stand-in server, a state folder for each test, and what is left when a server is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from specserve.hardware.host import free_port
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve import records
from specserve.serve.process import StopRequest
from specserve.serve.records import Record
from specserve.serve.watcher import launch, stop_server

FAKE = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
FakePlan = Callable[..., LaunchPlan]


def make_plan(
    *arguments: str,
    name: str = "fake",
    port: int | None = None,
    env: dict[str, str | FromEnv] | None = None,
    stall_timeout_s: float = 30.0,
    shutdown_timeout_s: float = 5.0,
) -> LaunchPlan:
    """A plan of the stand-in: `make_plan("--fault", "never-ready", stall_timeout_s=1)`."""
    port = port or free_port()
    return LaunchPlan(
        name=name,
        fingerprint="0" * 64,
        vllm="0.32.0+cpu",
        platform="cpu",
        argv=(sys.executable, str(FAKE), "--port", str(port), *arguments),
        env=env or {},
        engine_kwargs={},
        host="127.0.0.1",
        port=port,
        model="tiny",
        stall_timeout_s=stall_timeout_s,
        shutdown_timeout_s=shutdown_timeout_s,
    )


@pytest.fixture
def fake_plan() -> FakePlan:
    """The function that makes one."""
    return make_plan


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of state and logs."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def start(fake_plan: FakePlan, state: Path) -> Iterator[Callable[..., Record]]:
    """Starts a detached stand-in server; what it started is ended with the test."""

    def started(*arguments: str, name: str = "demo", log_path: Path | None = None, **more: object) -> Record:
        log_path = log_path or state / "logs" / f"{name}.log"
        return launch(fake_plan(*arguments, **more), name=name, profile="demo.yaml", log_path=log_path)

    yield started
    for name in records.names():
        stop_now(name)


def stop_now(name: str = "demo") -> None:
    with StopRequest() as stop:
        stop_server(name, stop=stop)


def nothing_is_left(leader: int, url: str) -> bool:
    """Whether no process of the session, no shared memory, and nobody at the port is left of a server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", urlsplit(url).port))
    ours = {f"psm_fake{leader}", f"psm_leak{leader}"}
    assert [path for path in Path("/dev/shm").iterdir() if path.name in ours] == []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_there = process.status() != psutil.STATUS_ZOMBIE
            assert not is_there or os.getsid(process.pid) != leader, process
    return True
