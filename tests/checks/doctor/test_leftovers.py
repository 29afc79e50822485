"""What killed servers leave: named where no living process holds it, and only then."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.doctor.leftovers import Leftovers, find_leftovers, leftover_lines
from tests.checks.doctor.conftest import AddProcess

Start = Callable[[str], tuple["subprocess.Popen[str]", str]]
SHM = Path("/dev/shm")
NAMES = (
    "psm_0123abcd",
    "sem.mp-a_b0c1d2",
    "__KMP_REGISTERED_LIB_4711_0",
    "nccl-AbC123",
    f"vllm_dist_{'0' * 32}-tp:0-[0-1]-cpushm_0",
    "vllm_offload_17.mmap",
)
SHARED_MEMORY = """
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")  # or its tracker would remove it
print(memory.name)
"""
SEMAPHORE = """
import multiprocessing
from multiprocessing import resource_tracker
lock = multiprocessing.get_context("spawn").Lock()
resource_tracker.unregister(lock._semlock.name, "semaphore")
print("sem." + lock._semlock.name.lstrip("/"))
"""


@pytest.mark.parametrize("name", NAMES)
def test_shared_memory_of_the_engine_that_nobody_holds_is_named(
    name: str, tmp_path: Path, proc: Path
) -> None:
    (tmp_path / name).write_bytes(b"x" * 5000)
    found = find_leftovers(shm=tmp_path, temporary=tmp_path / "none", proc=proc)
    assert found.shared == found.files == (tmp_path / name,)
    assert found.shared_bytes >= 5000


@pytest.mark.parametrize(
    "name", ["psm_0123abcde", "sem.other", "chromium-x", "psm_XYZ01234", "__KMP_REGISTERED_LIB_x_0", "a.mmap"]
)
def test_what_other_programs_keep_there_is_not_named(name: str, tmp_path: Path, proc: Path) -> None:
    (tmp_path / name).touch()
    assert find_leftovers(shm=tmp_path, temporary=tmp_path / "none", proc=proc) == Leftovers()


@pytest.mark.parametrize("program", [SHARED_MEMORY, SEMAPHORE], ids=["memory", "semaphore"])
def test_shared_memory_is_left_when_its_process_is_killed_and_not_before(program: str, child: Start) -> None:
    running, name = child(program)
    try:
        assert (SHM / name).exists()
        assert SHM / name not in find_leftovers().shared
        running.kill()
        running.wait()
        assert SHM / name in find_leftovers().shared
    finally:
        (SHM / name).unlink(missing_ok=True)


def test_a_socket_is_left_when_nobody_is_bound_to_it_any_more(short: Path) -> None:
    path = short / str(uuid.uuid4())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert find_leftovers(shm=short / "none", temporary=short).sockets == ()
        server.listen()
        assert find_leftovers(shm=short / "none", temporary=short).sockets == ()
    assert find_leftovers(shm=short / "none", temporary=short).sockets == (path,)


def test_a_rendezvous_is_left_when_it_is_older_than_every_process_with_torch(
    tmp_path: Path, proc: Path, add: AddProcess
) -> None:
    for name, changed_s in (("0" * 32, 1500), ("1" * 32, 3000)):
        (tmp_path / f"vllm_dist_{name}").touch()
        os.utime(tmp_path / f"vllm_dist_{name}", (changed_s, changed_s))
    ticks = 1000 * os.sysconf("SC_CLK_TCK")  # second 2000 since the epoch
    maps = "7f00-7f01 r-xp 00000000 08:01 7 /v/lib/torch/lib/libtorch_cpu.so\n"
    add(17, "python", ticks=ticks, maps=maps)
    add(18, "bash", ticks=0)
    found = find_leftovers(shm=tmp_path / "none", temporary=tmp_path, proc=proc)
    assert [path.name for path in found.rendezvous] == [f"vllm_dist_{'0' * 32}"]


def test_the_line_says_how_much_it_is_and_how_it_goes_away(tmp_path: Path) -> None:
    found = Leftovers((tmp_path / "a",), (tmp_path / "b", tmp_path / "c"), (), 3 * 2**20)
    (line,) = leftover_lines(found)
    assert line.state == "note"
    assert line.text == (
        f"no process here holds 1 file of shared memory in {tmp_path} (3.0 MiB), 2 sockets in {tmp_path}"
    )
    assert line.fix and "specserve doctor --leftovers" in line.fix
    assert list(leftover_lines(Leftovers())) == []
