"""`up --detach`, `ps`, `logs` and `down` as a user runs them, with the stand-in server."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specserve.checks.prepare import refuse_exposed
from specserve.cli.app import _run as run
from specserve.cli.up import start
from specserve.errors import LaunchError, ProfileError, UsageError
from specserve.hardware.accelerators import Accelerator
from specserve.hardware.host import free_port
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.profile.load import load_profile
from specserve.report.findings import StderrNotices
from specserve.serve import events
from specserve.serve.detached import registry
from specserve.serve.detached.launch import DeviceRoom, room_beside
from specserve.serve.detached.observe import find_server
from specserve.serve.detached.processes import stop_marked
from specserve.serve.detached.registry import LaunchedVariant, default_name, variant_of
from specserve.serve.health import is_healthy
from specserve.serve.signals import StopRequest

FAKE = Path(__file__).parents[1] / "fakes" / "vllm_server.py"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path / "state"
    with StopRequest() as stop:
        for name in ("demo", "other"):
            stop_marked(name, stop=stop, emit=events.ignore)


def plan(*arguments: str, name: str = "demo", kwargs: dict[str, Any] | None = None) -> LaunchPlan:
    port = free_port()
    return LaunchPlan(
        name=name,
        fingerprint="0" * 64,
        vllm="0.32.0+cpu",
        platform="cpu",
        argv=(sys.executable, str(FAKE), "--port", str(port), *arguments),
        env={},
        engine_kwargs=kwargs or {},
        host="127.0.0.1",
        port=port,
        model="tiny",
        stall_timeout_s=30.0,
        shutdown_timeout_s=5.0,
    )


def left(*arguments: str, name: str = "demo", room: DeviceRoom | None = None) -> LaunchPlan:
    server = plan(*arguments, name=name)
    start(server, name=name, profile="demo.yaml", room=room)
    return server


def servers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["ps", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["servers"]
    assert isinstance(found, list)
    return found


def test_a_server_is_left_listed_and_stopped(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    server = left()
    captured = capsys.readouterr()
    assert f"url      {server.url}/v1\n" in captured.out
    assert "`specserve down demo` stops it" in captured.err
    assert "Ctrl-C" not in captured.err
    (seen,) = servers(capsys)
    assert (seen["name"], seen["state"]) == ("demo", "ready")
    assert (seen["record"]["port"], seen["record"]["fingerprint"]) == (server.port, "0" * 64)
    assert run(["ps"]) == 0
    assert capsys.readouterr().out.startswith("NAME  STATE  PORT")
    assert run(["down", "demo"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "demo: sent SIGTERM; running requests may finish for up to 5.0 s"
    assert told[1].startswith("demo: stopped in ") and told[1].endswith("; nothing is left running")
    assert not is_healthy(server.url)
    assert servers(capsys) == []


def test_what_the_command_line_said_of_speculation_is_kept_and_no_environment() -> None:
    settings = ["speculation.num_speculative_tokens=2", "env.TOKEN=secret", "server.port=1", "expect=[]"]
    variant = variant_of("eagle3", settings)
    start(plan(), name="demo", profile="demo.yaml", variant=variant)
    record = registry.read("demo")
    assert record is not None
    assert record.variant == LaunchedVariant("eagle3", ("speculation.num_speculative_tokens=2", "expect=[]"))
    assert run(["down", "demo"]) == 0


def test_a_detached_server_keeps_the_devices_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    start(plan(), name="demo", profile="demo.yaml")
    record = registry.read("demo")
    assert record is not None and record.leader is not None
    environment = Path(f"/proc/{record.leader[0]}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=2,3" in environment
    assert run(["down", "demo"]) == 0


def test_without_a_server_each_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ps"]) == 0
    assert (
        capsys.readouterr().err
        == "there are no detached servers; `specserve up PROFILE --detach` starts one\n"
    )
    assert run(["down", "--all"]) == 0
    assert "there are no detached servers" in capsys.readouterr().err
    for words in (
        ["down", "demo"],
        ["logs", "demo"],
        ["logs"],
        ["down"],
        ["down", "demo", "--all"],
        ["down", "--", "--help"],
    ):
        assert run(words) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_a_death_is_listed_with_its_cause_and_cleared_by_down(capsys: pytest.CaptureFixture[str]) -> None:
    left()
    (seen,) = servers(capsys)
    os.kill(seen["record"]["leader"][0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (found := servers(capsys))[0]["state"] != "dead":
        assert time.monotonic() < deadline
    assert found[0]["record"]["ended"]["exit_code"] == -9
    for words in (
        ["ask", "hi", "--server", "demo"],
        ["ask", "hi"],
        ["watch", "demo", "--once"],
        ["verify", "demo"],
    ):
        assert run(words) == 2
        told = capsys.readouterr().err
        assert "error: the server `demo` is dead: vLLM was killed by SIGKILL" in told
        assert found[0]["record"]["ended"]["cause"] in told
    assert run(["down", "demo"]) == 0
    assert "demo: had ended by itself: vLLM was killed by SIGKILL" in capsys.readouterr().err
    assert servers(capsys) == []


def test_a_client_is_told_of_a_restart_of_the_host_and_still_asks_a_server_that_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left()
    record = registry.read("demo")
    assert record is not None
    assert find_server("demo") == (record.url, None)
    registry.write(dataclasses.replace(record, boot_id="another"))
    assert run(["ask", "hi", "--server", "demo"]) == 2
    assert "the server `demo` is gone: the host was restarted since" in capsys.readouterr().err
    registry.write(record)


@pytest.mark.parametrize("engines", [1, 2])
def test_ps_shows_no_acceptance_of_the_warm_up_request(
    capsys: pytest.CaptureFixture[str], engines: int
) -> None:
    server = plan()
    start(server, name="demo", profile="demo.yaml", warms_up=True)
    record = registry.read("demo")
    assert record is not None and record.ready_at_s is not None
    ready_at_s = record.ready_at_s

    def figures(after_s: float, *, accepted: int, drafted: int) -> None:
        """What vLLM logs at the end of a stretch; the second engine a second after the first."""
        with Path(record.log_path).open("a") as log:
            for engine in range(engines):
                at = time.strftime("%m-%d %H:%M:%S", time.localtime(ready_at_s + after_s + engine))
                head = f"(APIServer pid=7) INFO {at} [loggers.py:310] Engine 00{engine}: "
                log.write(
                    f"{head}Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
                    "Running: 0 reqs, Waiting: 0 reqs\n"
                    f"{head}SpecDecoding metrics: Mean acceptance length: 2.00, "
                    f"Accepted: {accepted} tokens, Drafted: {drafted} tokens\n"
                )

    figures(-10, accepted=5, drafted=5)  # before the server was ready
    figures(0.1, accepted=5, drafted=5)
    assert servers(capsys)[0]["lately"]["drafted_tokens"] == 0
    figures(10.1, accepted=10, drafted=40)
    assert servers(capsys)[0]["lately"]["drafted_tokens"] == 40 * engines


def test_a_broken_state_is_told_and_down_clears_what_runs(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    server = left()
    record = registry.read("demo")
    assert record is not None and record.scratch is not None and Path(record.scratch).exists()
    (state / "servers" / "demo" / "state.json").write_text("{")
    (seen,) = servers(capsys)
    assert seen["state"] == "lost"
    with pytest.raises(Exception, match="the state of `demo` cannot be used"):
        left()
    assert run(["down", "--all"]) == 0
    assert "demo: cleared" in capsys.readouterr().err
    assert not is_healthy(server.url)
    assert not Path(record.scratch).exists()
    assert servers(capsys) == []


def test_logs_shows_the_end_and_follows_until_the_server_is_gone(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    left()
    log = next((state / "logs").glob("demo-*.log"))
    capsys.readouterr()
    assert run(["logs", "-n", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["logs", "demo", "-n", "0"]) == 0
    assert "non-default args" in capsys.readouterr().out.splitlines()[0]

    command = [sys.executable, "-m", "specserve", "logs", "demo", "-f", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None and following.stdout.readline()  # it is there, and reads
        with log.open("a") as file:
            file.write("later \x1b]0;t\x07 and evil\n")
        subprocess.run([sys.executable, "-m", "specserve", "down", "demo"], check=True, capture_output=True)
        text = following.stdout.read()
    assert following.returncode == 0
    assert "later \\x1b]0;t\\x07 and evil\n" in text


def test_servers_that_declare_more_than_a_device_has_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    left(room=DeviceRoom(("cpu",), 0.7, None))
    profile = tmp_path / "p.yaml"
    profile.write_text("target: {model: m}\n")
    with pytest.raises(LaunchError, match=": together they would reserve"):
        room_beside(
            load_profile(profile),
            plan(kwargs={"gpu_memory_utilization": 0.5}),
            name="other",
            notices=StderrNotices(),
        )
    room = room_beside(
        load_profile(profile),
        plan(kwargs={"gpu_memory_utilization": 0.2}),
        name="other",
        notices=StderrNotices(),
    )
    assert room == DeviceRoom(("cpu",), 0.2, None)
    assert "the CPU is shared with `demo`: together they reserve 90% of its memory" in capsys.readouterr().err
    room_beside(
        load_profile(profile),
        plan(kwargs={"gpu_memory_utilization": 0.9}),
        name="demo",
        notices=StderrNotices(),
    )  # it takes its place


def test_each_replica_takes_a_device_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Accelerator("H100", 80 << 30, index=index, uuid=f"GPU-{index}") for index in range(4)]
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    profile = tmp_path / "p.yaml"
    profile.write_text("target: {model: m}\nengine: {data_parallel_size: 2}\n")
    on_gpus = dataclasses.replace(plan(), platform="cuda")
    room = room_beside(load_profile(profile), on_gpus, name="other", notices=StderrNotices())
    assert room.devices == ("GPU-0", "GPU-1")


@pytest.mark.parametrize(
    ("server", "refused"),
    [
        ("{host: 0.0.0.0}", True),
        ("{host: '::'}", True),
        ("{host: 192.168.1.5}", True),
        ("{host: 0.0.0.0, api_key_env: K}", False),
        ("{host: 127.0.0.1}", False),
        ("{host: '::1'}", False),
    ],
)
def test_a_server_for_everybody_is_refused_unless_that_is_said(
    tmp_path: Path, server: str, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"target: {{model: m}}\nserver: {server}\n")
    profile = load_profile(file)
    if refused:
        with pytest.raises(ProfileError, match="without an API key") as caught:
            refuse_exposed(profile, insecure=False, notices=StderrNotices())
        assert caught.value.hint is not None
        assert "/metrics" in caught.value.hint and "`--insecure`" in caught.value.hint
    else:
        refuse_exposed(profile, insecure=False, notices=StderrNotices())
    capsys.readouterr()
    refuse_exposed(profile, insecure=True, notices=StderrNotices())
    assert bool(capsys.readouterr().err) == refused


def test_a_client_finds_the_only_server_or_the_one_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(None) == ("http://127.0.0.1:8000", None)
    assert find_server("http://h:1") == ("http://h:1", None)
    with pytest.raises(UsageError, match="there is no server 'demo'"):
        find_server("demo")
    monkeypatch.setenv("MY_KEY", "k" * 20)
    first = plan()
    keyed = dataclasses.replace(first, env={"VLLM_API_KEY": FromEnv("MY_KEY")})
    start(keyed, name="demo", profile="p")
    assert find_server(None) == (first.url, "MY_KEY")
    second = left(name="other")
    assert find_server(None) == ("http://127.0.0.1:8000", None)
    assert find_server("other") == (second.url, None)


def test_variants_of_a_profile_have_names_of_their_own() -> None:
    assert default_name("demo", variant=None) == "demo"
    assert default_name("demo", variant="baseline") == "demo-baseline"
    assert default_name("demo", variant="Eagle_3") == "demo-eagle-3"


@pytest.mark.parametrize("words", [["--name", "x"], ["--detach", "--exec"], ["--detach", "--name", "../x"]])
def test_options_that_do_not_go_together_are_refused(words: list[str], tmp_path: Path) -> None:
    assert run(["up", str(Path("configs/demo.yaml").resolve()), "--no-check", *words]) == 2
