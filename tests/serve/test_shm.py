"""What a killed server leaves behind, and what must stay."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specserve.serve import files

HOLDER = """
import mmap, socket, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 4096)
ipc = socket.socket(socket.AF_UNIX); ipc.bind(sys.argv[2]); ipc.listen()
print("ready", flush=True); sys.stdin.read()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/psm_test{os.getpid()}")
    path.write_bytes(b"\0" * 4096)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def ipc() -> Iterator[Path]:
    path = Path(tempfile.gettempdir()) / f"specserve-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def holder(segment: Path, ipc: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(segment), str(ipc)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_traces_are_noted_while_the_process_lives_and_removed_when_it_is_gone(
    holder: subprocess.Popen[bytes], segment: Path, ipc: Path
) -> None:
    traces = files.traces([psutil.Process(holder.pid)])
    assert {segment, ipc} <= traces
    assert files.remove(traces) == ()
    assert segment.exists()
    assert ipc.exists()
    holder.kill()
    holder.wait()
    assert set(files.remove(traces)) == {str(segment), str(ipc)}
    assert not segment.exists()
    assert not ipc.exists()


def test_a_semaphore_is_traced_although_it_is_mapped_under_another_name() -> None:
    lock = multiprocessing.get_context("spawn").Lock()
    name = f"sem.{lock._semlock.name.lstrip('/')}"  # type: ignore[attr-defined]
    assert Path("/dev/shm", name) in files.traces([psutil.Process(os.getpid())])
    assert files.remove([Path("/dev/shm", name)]) == ()


def test_shared_memory_that_another_process_maps_stays(segment: Path) -> None:
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert files.remove([segment]) == ()
    assert files.remove([segment]) == (str(segment),)


def test_a_socket_on_which_someone_listens_stays(ipc: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ipc))
        server.listen()
        assert files.remove([ipc]) == ()
    assert files.remove([ipc]) == (str(ipc),)


def test_folders_links_and_what_is_gone_are_left_alone(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    assert files.remove([tmp_path, link, tmp_path / "missing"]) == ()
    assert link.is_symlink()
