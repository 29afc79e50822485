"""`up --verify`: a server is verified before anybody is told that it is ready, and stopped where it is wrong."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve.cli.commands import run
from specserve.cli.options import TextOrJson
from specserve.cli.up import start
from specserve.cli.verify import verification_gate
from specserve.errors import Interrupted, UsageError, VerifyFailed
from specserve.hardware.host import free_port
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.detached.registry import names, read
from specserve.serve.health import is_healthy

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from service_manager import ServiceManager

FAKE = Path(__file__).parents[1] / "fakes" / "model_server.py"
LIMIT_S = 3.0


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def no_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def plan(*faults: str) -> LaunchPlan:
    port = free_port()
    return LaunchPlan(
        name="fake",
        fingerprint="0" * 64,
        vllm="0.32.0+cpu",
        platform="cpu",
        argv=(sys.executable, str(FAKE), "--port", str(port), *faults),
        env={"PYTHONPATH": str(FAKE.parent)},
        engine_kwargs={},
        host="127.0.0.1",
        port=port,
        model="small",
        stall_timeout_s=30.0,
        shutdown_timeout_s=5.0,
    )


def test_systemd_hears_of_it_when_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager, server = ServiceManager(tmp_path, monkeypatch), plan()
    start(server, gate=verification_gate(server, as_json=False, limit_s=LIMIT_S))
    first, second, *_ = manager.heard
    assert first.startswith("STATUS=verifying; the port is already open\nEXTEND_TIMEOUT_USEC=")
    assert second.startswith("READY=1")
    out, err = capsys.readouterr()
    assert out.startswith("url ")
    told = err.index("verifying; the port is already open"), err.index(f"`small` at {server.url}: ")
    assert err.index("ready in") < told[0] < told[1]
    assert not is_healthy(server.url)


def test_a_wrong_server_is_stopped_with_exit_code_1_and_is_never_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager, server = ServiceManager(tmp_path, monkeypatch), plan("wrong_every=20")
    with pytest.raises(VerifyFailed, match=r"did not pass its verification \(LOSSY\)") as raised:
        start(server, gate=verification_gate(server, as_json=False, limit_s=LIMIT_S))
    assert raised.value.exit_code == 1
    assert not any(state.startswith("READY=1") for state in manager.heard)
    assert "the target prefers" in capsys.readouterr().err
    assert not is_healthy(server.url)


def test_as_json_it_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ServiceManager(tmp_path, monkeypatch)
    server = plan()
    gate = verification_gate(server, as_json=True, limit_s=LIMIT_S)
    start(server, log_format=TextOrJson.JSON, gate=gate)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    names_ = [event["event"] for event in events]
    assert names_.index("ready") < names_.index("verified")
    found = events[names_.index("verified")]
    assert (found["version"], found["has_failed"], found["not_ok"]) == (1, False, [])


def test_a_signal_while_it_is_verified_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = plan("wait_s=0.3")
    ServiceManager(tmp_path, monkeypatch, word="STATUS=verifying", number=signal.SIGINT)
    with pytest.raises(Interrupted) as raised:
        start(server, gate=verification_gate(server, as_json=False, limit_s=30.0))
    assert raised.value.exit_code == 130
    assert not is_healthy(server.url)


def test_a_detached_server_is_left_only_where_it_passes(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = plan("wrong_every=20")
    with pytest.raises(VerifyFailed):
        detach(wrong, name="wrong")
    assert names() == []
    assert not is_healthy(wrong.url)
    right = plan()
    detach(right, name="right")
    try:
        record = read("right")
        assert record is not None and record.ready_at_s is not None
        assert is_healthy(right.url)
    finally:
        assert run(["down", "right"]) == 0
    assert not is_healthy(right.url)


def detach(server: LaunchPlan, *, name: str) -> None:
    gate = verification_gate(server, as_json=False, limit_s=LIMIT_S)
    start(server, name=name, profile="p.yaml", gate=gate)


def test_what_becomes_vllm_cannot_be_verified() -> None:
    with pytest.raises(UsageError, match="`--exec` and `--verify` cannot be combined: with `--exec`,"):
        run(["up", "configs/demo.yaml", "--exec", "--verify"])
