"""Every way in which a server can be broken or ended: what is said, and that nothing is left."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.server import DEMO, END_LIMIT_S, Server

CYCLES = int(os.environ.get("SOAK", "5"))
TWO_RANKS = (
    *("--set", "target.tensor_parallel_size=2"),
    *("--set", "speculation.draft_tensor_parallel_size=2"),
)


@pytest.mark.parametrize("cycle", range(CYCLES))
@pytest.mark.parametrize("way", ["idle", "open stream", "while it starts"])
def test_it_ends_cleanly_again_and_again(server: Server, way: str, cycle: int) -> None:
    server.up()
    if way == "while it starts":
        server.member("EngineCore")
    else:
        server.wait_ready()
    assert server.process is not None
    with contextlib.ExitStack() as stack:
        if way == "open stream":
            body = {
                "model": "demo",
                "prompt": "def f(",
                "max_tokens": 400,
                "stream": True,
                "ignore_eos": True,
            }
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=END_LIMIT_S)
            stack.callback(connection.close)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            stack.enter_context(connection.getresponse()).readline()
        server.note()
        server.process.send_signal(signal.SIGTERM if way == "open stream" else signal.SIGINT)
        server.ends_with(130 if way == "while it starts" else 0)
    server.leaves_nothing()


@pytest.mark.parametrize(
    ("victim", "cause", "options"),
    [
        ("serve", "SIGKILL", ()),
        ("EngineCore", "SIGKILL", ("--set", "env.VLLM_LOGGING_LEVEL=ERROR")),
        ("EngineCore", "the engine process .*SIGKILL", None),
        ("Worker_TP1", "a worker process .*SIGKILL", TWO_RANKS),
    ],
)
def test_kill_9_of_a_process_is_named(
    server: Server, victim: str, cause: str, options: tuple[str, ...] | None
) -> None:
    """Without options while it starts."""
    server.up(*(options or ()))
    if options is not None:
        server.wait_ready()
    server.member(victim).kill()
    server.ends_with(2)
    server.leaves_nothing()
    server.names_cause(cause)


@pytest.mark.parametrize("is_ready", [True, False], ids=["serving", "while it starts"])
def test_vllm_goes_with_specserve(server: Server, is_ready: bool) -> None:
    server.up()
    if is_ready:
        server.wait_ready()
    else:
        server.member("EngineCore")
    assert server.process is not None
    server.process.kill()
    server.ends_with(-signal.SIGKILL)
    server.wait_for(lambda: not server.alive(), "vLLM lives on", 30)


def test_kill_9_of_a_detached_server_is_named(server: Server) -> None:
    """tests/engine kills the engine process of a detached server."""
    server.up_detached()
    server.member("serve").kill()
    server.names_cause("SIGKILL", server.state_becomes("dead"))
    server.leaves_nothing()


def test_the_next_command_tidies_up_after_a_watcher_that_was_killed(server: Server) -> None:
    server.up_detached()
    process = server.member("serve")
    watcher = process.parent()
    assert watcher is not None and "specserve.serve.watcher" in " ".join(watcher.cmdline())
    watcher.kill()
    process.kill()
    server.names_cause("how it ended is not known", server.state_becomes("dead"))
    server.leaves_nothing()


def test_an_engine_that_is_stopped_hangs_and_comes_back(server: Server) -> None:
    server.up_detached()
    engine = server.member("EngineCore")
    engine.suspend()
    server.names_cause("was stopped", server.state_becomes("hung"))
    engine.resume()
    server.state_becomes("ready")
    server.down("demo")


def test_a_start_without_progress_is_given_up(server: Server) -> None:
    server.up("--set", "server.stall_timeout_s=10")
    for process in (server.member("EngineCore"), server.member("serve")):
        process.suspend()
    server.ends_with(2)
    server.leaves_nothing()
    server.names_cause("no progress for 10s")


@pytest.mark.parametrize(
    ("options", "phase"),
    [
        ((), "starting the engine"),
        (("--set", "engine.enforce_eager=false", "--log-format", "json"), '"phase": "compiling"'),
    ],
)
def test_sigterm_ends_a_start(server: Server, options: tuple[str, ...], phase: str) -> None:
    server.up(*options)
    server.wait_for(lambda: phase in server.output, f"no phase {phase}: is there a C++ compiler?")
    server.member("EngineCore")
    assert server.process is not None
    server.process.terminate()
    server.ends_with(143)
    server.leaves_nothing()
    server.names_cause("SIGTERM came before the server was ready")


def test_a_port_that_is_taken_after_the_check_is_named(server: Server) -> None:
    server.up()
    server.wait_for(lambda: "starting vLLM" in server.output, "not started")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", server.port))
        other.listen()
        server.ends_with(2)
    server.leaves_nothing()
    server.names_cause("[Aa]ddress already in use")


def test_a_state_that_is_gone_or_cut_off_is_written_again(server: Server) -> None:
    server.up_detached()
    shutil.rmtree(server.state_folder)
    server.state_becomes("ready")
    (server.state_folder / "servers" / "demo.json").write_text('{"name": "de')
    server.state_becomes("ready")
    server.down("demo")


@contextlib.contextmanager
def small_disk(folder: Path, *, size: str) -> Iterator[None]:
    """A file system of its own there, which only root may mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("to mount a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_at_the_start_is_named(server: Server) -> None:
    with small_disk(server.state_folder, size="32k"):
        (server.state_folder / "filler").write_bytes(b"x" * 24576)
        server.up()
        server.ends_with(2)
        server.leaves_nothing()
        server.names_cause("the disk of the log is full")


def test_a_server_serves_on_when_its_disk_is_full(server: Server) -> None:
    with small_disk(server.state_folder, size="1m"):
        server.up_detached()
        with contextlib.suppress(OSError), (server.state_folder / "filler").open("ab", buffering=0) as file:
            while file.write(b"x" * 512):
                pass
        for _ in range(3):
            asked = server.run("ask", "def f", "--max-tokens", "4", "--server", server.url)
            assert asked.returncode == 0, asked.stderr
        server.state_becomes("ready")
        other = server.run("up", DEMO, *server.small, "--detach", "--name", "other", "--port", "0")
        assert other.returncode == 2 and "no space left" in other.stderr
        server.down("demo")


def test_four_servers_start_side_by_side_and_stop_together(server: Server) -> None:
    words = [sys.executable, "-m", "specserve", "up", DEMO, *server.small, "--detach", "--port", "0"]
    starts = [
        subprocess.Popen([*words, "--name", f"demo-{number}"], env=server.env, stderr=subprocess.PIPE)
        for number in range(4)
    ]
    for process in starts:
        _, text = process.communicate(timeout=600)
        assert process.returncode == 0, text.decode()
    assert server.run("ps").stdout.count(" ready ") == 4
    assert server.run("down", "--all").returncode == 0
    assert [path for path in (server.state_folder / "servers").iterdir() if path.name[0] != "."] == []
