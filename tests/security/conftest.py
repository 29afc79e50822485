"""A state folder for each test, and servers that end with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specserve.hardware.host import free_port
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve import records
from specserve.serve.records import Record
from specserve.serve.signals import StopRequest
from specserve.serve.watcher import launch, stop_server

FAKE = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
Start = Callable[..., Record]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of state and logs."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def make_plan() -> Callable[..., LaunchPlan]:
    """A function that makes the launch of a stand-in server: `make_plan("--fault", "orphan", env={…})`."""
    return _plan


def _plan(*arguments: str, env: dict[str, str | FromEnv] | None = None) -> LaunchPlan:
    port = free_port()
    return LaunchPlan(
        name="demo", fingerprint="0" * 64, vllm="0.32.0+cpu", platform="cpu",
        argv=(sys.executable, str(FAKE), "--port", str(port), *arguments), env=env or {}, engine_kwargs={},
        host="127.0.0.1", port=port, model="tiny", stall_timeout_s=30.0, shutdown_timeout_s=5.0,
    )  # fmt: skip


@pytest.fixture
def start(state: Path) -> Iterator[Start]:
    """Starts a detached stand-in server, which ends with the test."""

    def started(
        *arguments: str, env: dict[str, str | FromEnv] | None = None, log_path: Path | None = None
    ) -> Record:
        return launch(
            _plan(*arguments, env=env),
            name="demo",
            profile="demo.yaml",
            log_path=log_path or state / "logs" / "demo.log",
        )

    yield started
    with StopRequest() as stop:
        for name in records.names():
            stop_server(name, stop=stop)
