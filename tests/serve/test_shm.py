"""What a killed server leaves behind, and what must stay."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve.serve import files

HOLDER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 4096)
print("ready", flush=True); sys.stdin.read()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/psm_test{os.getpid()}")
    path.write_bytes(b"\0" * 4096)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def holder(segment: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(segment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_traces_are_noted_while_the_process_lives_and_removed_when_it_is_gone(
    holder: subprocess.Popen[bytes], segment: Path
) -> None:
    traces = files.traces([holder.pid])
    assert traces == {segment}
    files.remove(traces)
    assert segment.exists()
    holder.kill()
    holder.wait()
    files.remove(traces)
    assert not segment.exists()


def test_a_semaphore_is_traced_although_it_is_mapped_under_another_name() -> None:
    lock = multiprocessing.get_context("spawn").Lock()
    name = f"sem.{lock._semlock.name.lstrip('/')}"  # type: ignore[attr-defined]
    assert Path("/dev/shm", name) in files.traces([os.getpid()])
    files.remove([Path("/dev/shm", name)])
    assert Path("/dev/shm", name).exists()


def test_shared_memory_that_another_process_maps_stays(segment: Path) -> None:
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        files.remove([segment])
        assert segment.exists()
    files.remove([segment])
    assert not segment.exists()


def test_what_openmp_leaves_is_removed_once_its_process_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        path = Path(f"/dev/shm/__KMP_REGISTERED_LIB_{process.pid}_{os.geteuid()}")
        path.write_bytes(b"x")
        assert files.traces([process.pid]) == {path}
        files.remove([path])
        assert path.exists()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        files.remove([path])
    assert not path.exists()


def test_the_folder_of_sockets_is_removed_once_nobody_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    path = tmp_path / "specserve-x"
    path.mkdir()
    (path / "ipc").touch()
    env = {**os.environ, files.SOCKETS_VARIABLE: str(path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as process:
        assert path in files.traces([process.pid])
        files.remove([path])
        assert path.exists()
        process.kill()
    files.remove([path])
    assert not path.exists()
