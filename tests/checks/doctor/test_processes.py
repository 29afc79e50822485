"""Processes of vLLM that belong to no server of specserve: which are orphans, which somebody else's."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specserve.checks.doctor.leftovers import (
    Process,
    Strays,
    find_strays,
    stray_lines,
)
from tests.checks.doctor.conftest import AddProcess

LOADED = "7f00-7f01 r-xp 00000000 08:01 7 /v/site-packages/vllm/_C_AVX512.abi3.so\n"
SPAWNED = ("/v/bin/python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=9)")


def pids(strays: Strays) -> tuple[list[int], list[int]]:
    return [item.pid for item in strays.orphans], [item.pid for item in strays.others]


@pytest.mark.parametrize(
    "argv",
    [
        ("/v/bin/python", "/v/bin/vllm", "serve", "m"),
        ("vllm", "serve", "m"),
        ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"),
        ("/v/bin/python", "-u", "-m", "vllm.entrypoints.cli.main", "serve", "m"),
        ("VLLM::APIServer_0",),
    ],
)
def test_a_server_that_somebody_else_started_is_named_and_is_no_orphan(
    argv: tuple[str, ...], proc: Path, add: AddProcess
) -> None:
    add(9, "bash")
    add(10, *argv, parent=9, group=9, session=9)
    assert pids(find_strays([], proc=proc)) == ([], [10])


@pytest.mark.parametrize(
    ("argv", "maps"),
    [
        (("bash",), ""),
        (("vim", "vllm", "notes"), ""),
        (("/v/bin/python", "-m", "vllm_plugins.x"), ""),
        (("/v/bin/vllm", "bench"), ""),
        (("/v/bin/python", "notebook.py"), LOADED),
        (SPAWNED, ""),
        (("grep", "VLLM::EngineCore"), ""),
        ((), ""),
    ],
)
def test_what_is_no_server_and_no_engine_is_not_named(
    argv: tuple[str, ...], maps: str, proc: Path, add: AddProcess
) -> None:
    add(10, *argv, maps=maps)
    assert find_strays([], proc=proc) == Strays()


@pytest.mark.parametrize(("argv", "maps"), [(("VLLM::EngineCore",), ""), (SPAWNED, LOADED)])
def test_an_engine_whose_server_is_gone_is_an_orphan(
    argv: tuple[str, ...], maps: str, proc: Path, add: AddProcess
) -> None:
    add(1, "init")
    add(11, *argv, parent=1, group=10, session=10, maps=maps)
    add(12, "VLLM::Worker_TP0", parent=11, group=10, session=10)
    assert pids(find_strays([], proc=proc)) == ([11, 12], [])


@pytest.mark.parametrize("leader", [7, 0])  # left, or outside of this container
def test_an_engine_whose_program_outlived_the_shell_is_somebodys(
    leader: int, proc: Path, add: AddProcess
) -> None:
    add(10, "python", "offline.py", parent=1, group=leader, session=leader)
    add(11, "VLLM::EngineCore", parent=10, group=leader, session=leader)
    add(12, "VLLM::Worker_TP0", parent=11, group=leader, session=leader)
    add(20, "vllm", "serve", "m", parent=1, group=leader, session=leader)
    add(21, "VLLM::EngineCore", parent=20, group=leader, session=leader)
    assert pids(find_strays([], proc=proc)) == ([], [11, 20])


@pytest.mark.parametrize(
    "above",
    [
        ("/v/bin/python", "/v/bin/specserve", "up", "p.yaml"),
        ("/v/bin/python", "-m", "specserve", "up", "p.yaml"),
        ("/v/bin/python", "-I", "-S", "/v/specserve/serve/detached/watcher.py"),
        ("/v/bin/python", "-m", "specserve.serve.detached.processes", "demo", "1"),
    ],
)
def test_what_specserve_started_belongs_to_it(above: tuple[str, ...], proc: Path, add: AddProcess) -> None:
    add(9, *above)
    add(10, "vllm", "serve", "m", parent=9)
    add(11, "VLLM::EngineCore", parent=10, group=10, session=10)
    assert find_strays([], proc=proc) == Strays()


def test_the_processes_of_a_detached_server_and_their_session_are_ours(proc: Path, add: AddProcess) -> None:
    add(10, "vllm", "serve", "m")
    add(11, "VLLM::EngineCore", parent=1, group=10, session=10)
    add(12, "VLLM::EngineCore", parent=1, group=9, session=9)
    assert pids(find_strays([10], proc=proc)) == ([12], [])
    assert pids(find_strays([10, 12], proc=proc)) == ([], [])


def test_an_engine_becomes_an_orphan_when_its_server_is_killed() -> None:
    sleep = shutil.which("sleep")
    program = (
        "import subprocess, sys\n"
        f"engine = subprocess.Popen(['VLLM::EngineCore', '60'], executable={sleep!r}, stdout=subprocess.DEVNULL)\n"
        "print(engine.pid, flush=True); sys.stdin.read()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    engine = int(server.stdout.readline())
    try:
        while engine not in [
            *itertools.chain(*pids(find_strays([])))
        ]:  # between fork and exec it has its parent's name
            time.sleep(0.01)
        assert engine in pids(find_strays([]))[1]
        assert engine not in [*itertools.chain(*pids(find_strays([server.pid])))]
        server.kill()
        server.communicate()
        assert engine in pids(find_strays([]))[0]
    finally:
        server.kill()
        server.communicate()
        os.kill(engine, signal.SIGKILL)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("vllm", "serve", "m", "--api-key", "sk-secret"), "vllm serve m"),
        (("vllm", "serve", "--api-key=sk-secret", "m"), "vllm serve"),
        (("python", "-m", "vllm.entrypoints.cli.main", "serve"), "python -m vllm.entrypoints.cli.main serve"),
        (SPAWNED, "/v/bin/python"),
    ],
)
def test_a_command_is_shown_up_to_its_first_option_since_a_key_may_follow(
    argv: tuple[str, ...], command: str
) -> None:
    assert Process(7, 1, 7, 7, argv).command == command
    assert str(Process(7, 1, 7, 7, argv)) == f"`{command}` (pid 7)"


def test_orphans_share_a_line_and_each_other_server_has_its_own(proc: Path, add: AddProcess) -> None:
    for pid in range(20, 25):
        add(pid, f"VLLM::Worker_TP{pid}", group=10, session=10)
    add(9, "bash")
    for pid in (30, 31):
        add(pid, "vllm", "serve", "m" * 100, parent=9)
    orphans, first, second = stray_lines(find_strays([], proc=proc))
    assert orphans.text.startswith("vLLM without its server: `VLLM::Worker_TP20` (pid 20), ")
    assert orphans.text.endswith(", …")
    assert orphans.fix == "`kill -9 20 21 22 23 24`"
    assert first.text.startswith("`vllm serve mmm") and len(first.text) < 120
    assert second.fix == "`kill 31` if it is not needed"
    assert list(stray_lines(Strays())) == []
