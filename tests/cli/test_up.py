"""`specserve up` with the stand-in server: ports, signals, what is printed where, becoming vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer

from specserve.cli.app import _run as run
from specserve.cli.up import start
from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.report import servers
from specserve.serve import events
from specserve.serve.client import is_healthy
from specserve.serve.server import refuse_taken_port
from tests.serve.conftest import make_plan


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def no_nohup() -> Iterator[None]:
    """Signals mean what they mean, under whatever runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def signal_when_ready(monkeypatch: pytest.MonkeyPatch, number: int = signal.SIGTERM) -> None:
    """The view's word that the server is ready is answered by a signal."""
    for name in ("TextView", "JsonView"):
        view = getattr(servers, name)

        def told(self: Any, event: events.Event, show: Any = view.__call__) -> None:
            show(self, event)
            if isinstance(event, events.Ready):
                os.kill(os.getpid(), number)

        monkeypatch.setattr(view, "__call__", told)


def test_a_signal_after_ready_is_a_clean_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_plan()
    signal_when_ready(monkeypatch, signal.SIGINT)
    start(server)
    captured = capsys.readouterr()
    assert f"url      http://127.0.0.1:{server.port}/v1\n" in captured.out
    assert "ready in" in captured.err
    assert "stopped in" in captured.err
    assert not is_healthy(server.url)
    (log,) = (tmp_path / "logs").glob("fake-*.log")
    assert "Starting vLLM server" in log.read_text()


def test_a_signal_before_ready_is_an_interruption(tmp_path: Path) -> None:
    def send() -> None:
        while "Loading weights" not in log_of(tmp_path):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(Interrupted) as caught:
        start(make_plan("--fault", "never-ready"))
    assert caught.value.exit_code == 143


def test_for_fleets_stdout_holds_one_object_as_soon_as_it_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_plan()
    signal_when_ready(monkeypatch)
    start(server, format="json")
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["url"], told["model"]) == (1, server.url, "tiny")


def test_for_fleets_the_failure_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        start(make_plan("--fault", "crash-loading"), format="json")
    assert caught.value.exit_code == 2
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert records[0]["event"] == "started"
    assert records[-1]["event"] == "failed"
    assert [each["phase"] for each in records if "phase" in each][-1] == "loading weights"


def test_a_port_of_another_program_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} is taken by .*\(pid {os.getpid()}\)"):
            start(make_plan(port=port))
    assert not (tmp_path / "logs").exists()


def test_an_address_of_another_host_is_a_usage_error() -> None:
    from dataclasses import replace

    with pytest.raises(UsageError, match=r"cannot listen on `192\.0\.2\.1`"):
        refuse_taken_port(replace(make_plan(), host="192.0.2.1"))


PROFILE = """\
target: {model: ./target, tensor_parallel_size: 2, max_model_len: 512}
speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 4, draft_tensor_parallel_size: 3}
server: {port: 18123, served_model_name: tiny}
"""


def test_what_stops_it_before_anything_starts_has_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "pair.yaml"
    profile.write_text(PROFILE)
    for file, code, said in ((profile, 1, "SD1"), (tmp_path / "missing.yaml", 2, "missing.yaml")):
        assert run(["up", str(file)]) == code
        captured = capsys.readouterr()
        assert said in captured.err and captured.out == ""
    assert not (tmp_path / "logs").exists()


LAUNCH = """
import os, subprocess, sys
from specserve.cli.up import start
class Popen(subprocess.Popen):
    def __init__(self, command, **more):
        super().__init__(command, **more)
        if "launching" in sys.argv and command[0] != "/bin/sh":
            os.kill(os.getpid(), 9)
subprocess.Popen = Popen
from specserve.plan.launchplan import LaunchPlan
port, argv = int(sys.argv[1]), tuple(sys.argv[2:])
start(LaunchPlan("fake", "0", "0.32.0", "cpu", argv, {}, {}, "127.0.0.1", port, "tiny", 30.0, 0.5))
"""


@pytest.mark.parametrize("when", ["launching", "starting", "serving"])
def test_a_specserve_that_is_killed_takes_vllm_along(when: str, tmp_path: Path) -> None:
    server = make_plan("--model", when, *(() if when == "serving" else ("--fault", "ignore-signals")))
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", LAUNCH, str(server.port), *server.argv]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if is_healthy(server.url) if when == "serving" else "Loading weights" in log_of(tmp_path):
                process.kill()
            time.sleep(0.05)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while left := [*started_in(tmp_path), *tmp_path.glob("specserve-*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def started_in(state: Path) -> Iterator[psutil.Process]:
    """Processes whose state folder this is, the guard among them."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_there = process.status() != psutil.STATUS_ZOMBIE
            if is_there and process.environ().get("SPECSERVE_STATE_DIR") == str(state):
                yield process


def log_of(state: Path) -> str:
    return "".join(log.read_text() for log in state.glob("logs/*.log"))
