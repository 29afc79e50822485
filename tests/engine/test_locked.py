"""A locked profile starts while the Hub is down: what was pulled is served, and nobody is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specserve.serve.health import is_healthy
from tests.engine.conftest import ROOT, StartUp, tiny_profile

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from hub_server import HubServer

pytestmark = pytest.mark.engine
TARGET, DRAFT = "org/target", "org/draft"
MODELS = {"target": {"model": TARGET}, "speculation": {"model": DRAFT}}


def specserve(*arguments: object) -> None:
    """Runs one command to its end; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "specserve", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def hub_of_yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Locked and pulled while the Hub answered; now every question to it gets an error."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "own"))
    with HubServer() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name, folder in ((TARGET, "target"), (DRAFT, "draft")):
            hub.add(name, ROOT / "demo" / folder)
        profile = tiny_profile(tmp_path, port=0, changes=MODELS)
        specserve("lock", profile)
        specserve("pull", profile)
        for repository in hub.repositories.values():
            repository.fault = "500"
        hub.requests.clear()
        yield hub


def test_up_locked_serves_the_locked_commits_and_asks_nobody(
    start_up: StartUp, hub_of_yesterday: HubServer
) -> None:
    with start_up("--locked", changes=MODELS) as up:
        up.wait_ready()
        assert is_healthy(up.url)
        argv = [word for process in up.members() for word in process.cmdline()]
        assert argv[argv.index("--revision") + 1] == hub_of_yesterday.repositories[TARGET].commit
        assert up.stop() == 0
    assert hub_of_yesterday.requests == []


@pytest.mark.soak
def test_exec_becomes_a_vllm_that_asks_nobody(start_up: StartUp, hub_of_yesterday: HubServer) -> None:
    with start_up("--exec", changes=MODELS) as up:
        deadline = time.monotonic() + 240
        while not is_healthy(up.url):
            assert up.process.poll() is None, up.err
            assert time.monotonic() < deadline, up.err
            time.sleep(0.2)
        assert "vllm" in " ".join(psutil.Process(up.process.pid).cmdline())
        assert up.process.poll() is None
        up.process.send_signal(signal.SIGTERM)
        up.process.wait(timeout=60)
    assert hub_of_yesterday.requests == []
    assert os.environ["HF_ENDPOINT"] == hub_of_yesterday.url
