"""A state folder for each test, and servers that end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specserve.plan.launchplan import FromEnv
from specserve.serve import records
from specserve.serve.process import StopRequest
from specserve.serve.records import Record
from specserve.serve.watcher import launch, stop_server
from tests.serve.conftest import FakePlan, fake_plan

__all__ = ["fake_plan"]
Start = Callable[..., Record]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of state and logs."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def start(state: Path, fake_plan: FakePlan) -> Iterator[Start]:
    """Starts a detached stand-in server, which ends with the test."""

    def started(
        *arguments: str, env: dict[str, str | FromEnv] | None = None, log_path: Path | None = None
    ) -> Record:
        log_path = log_path or state / "logs" / "demo.log"
        return launch(fake_plan(*arguments, env=env), name="demo", profile="demo.yaml", log_path=log_path)

    yield started
    with StopRequest() as stop:
        for name in records.names():
            stop_server(name, stop=stop)
