"""A detached server with real vLLM: left, asked, listed, killed, found out, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from specserve.serve.client import is_healthy

if TYPE_CHECKING:
    from tests.engine.conftest import StartUp, Up

pytestmark = pytest.mark.engine


def command(up: Up, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(up.state)}
    whole = [sys.executable, "-m", "specserve", *words]
    return subprocess.run(whole, env=env, capture_output=True, text=True, check=False, timeout=120)


def listed(up: Up) -> dict[str, Any]:
    (server,) = json.loads(command(up, "ps", "--format", "json").stdout)["servers"]
    return dict(server)


def members(server: dict[str, Any]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == server["record"]["leader"][0]:
                found.append(process)
    return found


def test_a_server_is_left_and_its_engines_death_is_told_though_vllm_leaves_with_code_0(
    start_up: StartUp,
) -> None:
    with start_up("--detach") as up:
        assert up.process.wait(timeout=240) == 0, up.err
        assert "`specserve down tiny` stops it" in up.err
        server = listed(up)
        try:
            assert server["state"] == "ready"
            asked = ["ask", "def f(", "--max-tokens", "8", "--temperature", "0", "--server", up.url]
            assert command(up, *asked).returncode == 0
            processes = members(server)
            engine = next(item for item in processes if "EngineCore" in " ".join(item.cmdline()))
            engine.send_signal(signal.SIGSTOP)
            stopped = listed(up)
            assert stopped["state"] == "hung"
            assert f"process {engine.pid} was stopped" in stopped["detail"]
            engine.kill()
            deadline = time.monotonic() + 60
            while (now := listed(up))["state"] != "dead":
                assert time.monotonic() < deadline, now
                time.sleep(0.5)
            assert "the engine process" in now["record"]["cause"]
            assert "SIGKILL" in now["record"]["cause"]
            psutil.wait_procs(processes, timeout=20)
            assert [item for item in processes if item.is_running() and item.status() != "zombie"] == []
            assert not is_healthy(up.url)
        finally:
            down = command(up, "down", "--all")
        assert down.returncode == 0, down.stderr
        assert "there are no detached servers" in command(up, "ps").stderr
        ours = {f"__KMP_REGISTERED_LIB_{item.pid}_{os.geteuid()}" for item in processes}
        assert not ours & {path.name for path in Path("/dev/shm").iterdir()}
