"""`up --detach`, `ps`, `logs` and `down` as a user runs them, with the stand-in server."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run as run
from specserve.cli.up import default_name, start
from specserve.errors import UsageError
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve import records
from specserve.serve.client import is_healthy
from specserve.serve.files import identity
from specserve.serve.process import StopRequest
from specserve.serve.records import locate
from specserve.serve.watcher import stop_server
from tests.serve.conftest import make_plan


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path / "state"
    with StopRequest() as stop:
        for name in records.names():
            stop_server(name, stop=stop)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    """A stand-in server that runs detached."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("MY_KEY", "k" * 20)
    plan = make_plan(name="demo", env={"VLLM_API_KEY": FromEnv("MY_KEY")})
    start(plan, name="demo", profile="demo.yaml")
    return plan


def servers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["ps", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["servers"]
    assert isinstance(found, list)
    return found


def test_a_server_is_left_listed_and_stopped(
    capsys: pytest.CaptureFixture[str], state: Path, left: LaunchPlan
) -> None:
    captured = capsys.readouterr()
    assert f"url      {left.url}/v1\n" in captured.out
    assert "`specserve down demo` stops it" in captured.err
    assert "Ctrl-C" not in captured.err
    (seen,) = servers(capsys)
    assert (seen["name"], seen["state"]) == ("demo", "ready")
    assert (seen["record"]["url"], seen["record"]["profile"]) == (left.url, "demo.yaml")
    environment = Path(f"/proc/{seen['record']['leader'][0]}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=2,3" in environment
    assert run(["ps"]) == 0
    assert capsys.readouterr().out.startswith("NAME  STATE  URL")
    log = next((state / "logs").glob("demo-*.log"))
    with log.open("a") as file:
        file.write("later \x1b]0;t\x07 and evil\n")
    assert run(["logs", "-n", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"{log}\n"
    assert len(captured.out.splitlines()) == 2
    assert captured.out.endswith("later \\x1b]0;t\\x07 and evil\n")
    assert run(["logs", "demo"]) == 0
    assert "non-default args" in capsys.readouterr().out.splitlines()[0]
    assert run(["down", "demo"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "demo: stopping; running requests may finish"
    assert told[1].startswith("demo: nothing is left running; its log: ")
    assert not is_healthy(left.url)
    assert servers(capsys) == []


def test_a_client_finds_the_only_server_or_the_one_it_names_and_gives_each_its_own_key(
    monkeypatch: pytest.MonkeyPatch, left: LaunchPlan
) -> None:
    def found(server: str | None) -> tuple[str, str | None]:
        place, _ = locate(server)
        return place.root, place.api_key

    monkeypatch.setenv("VLLM_API_KEY", "v" * 20)
    assert found(None) == (left.url, "k" * 20)
    assert found("http://h:1") == ("http://h:1", "v" * 20)
    record = records.read("demo")
    assert record is not None
    me = identity(os.getpid())
    records.write(dataclasses.replace(record, name="other", watcher=me, api_key_env=""))
    assert found(None) == ("http://127.0.0.1:8000", None)
    assert found("other") == (left.url, None)
    records.remove("other")
    with pytest.raises(UsageError, match="there is no server 'other'"):
        locate("other")


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
        ["down"],
        ["down", "demo", "--all"],
        ["down", "--", "--help"],
    ):
        assert run(words) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert run(["logs"]) == 2
    assert capsys.readouterr().err.startswith("error: there are no servers\n")


@pytest.mark.usefixtures("left")
def test_a_death_is_listed_with_its_cause_and_cleared_by_down(capsys: pytest.CaptureFixture[str]) -> None:
    (seen,) = servers(capsys)
    os.kill(seen["record"]["leader"][0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (found := servers(capsys))[0]["state"] != "dead":
        assert time.monotonic() < deadline
    for words in (
        ["ask", "hi", "--server", "demo"],
        ["ask", "hi"],
        ["watch", "demo", "--once"],
        ["verify", "demo"],
    ):
        assert run(words) == 2
        told = capsys.readouterr().err
        assert "error: the server `demo` is dead: vLLM was killed by SIGKILL" in told
        assert found[0]["record"]["cause"] in told
    assert run(["down", "demo"]) == 0
    assert "demo: had ended by itself: vLLM was killed by SIGKILL" in capsys.readouterr().err
    assert servers(capsys) == []


def test_variants_of_a_profile_have_names_of_their_own() -> None:
    assert default_name("demo", variant=None) == "demo"
    assert default_name("demo", variant="baseline") == "demo-baseline"
    assert default_name("demo", variant="Eagle_3") == "demo-eagle-3"


@pytest.mark.parametrize("words", [["--name", "x"], ["--detach", "--name", "../x"]])
def test_options_that_do_not_go_together_are_refused(words: list[str], tmp_path: Path) -> None:
    assert run(["up", str(Path("configs/demo.yaml").resolve()), "--no-check", *words]) == 2
