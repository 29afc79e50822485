"""Hosts that the doctor can be shown: processes as files, and processes that really run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

AddProcess = Callable[..., int]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """An empty tree like /proc, of a host that was started at second 1000."""
    folder = tmp_path / "proc"
    (folder / "net").mkdir(parents=True)
    (folder / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    (folder / "net" / "unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n")
    return folder


@pytest.fixture
def add(proc: Path) -> AddProcess:
    """Adds a process to that tree."""

    def to_tree(
        pid: int, *argv: str, parent: int = 1, group: int | None = None, session: int | None = None, maps: str = "",
        state: str = "S", ticks: int = 0,
    ) -> int:  # fmt: skip
        folder = proc / str(pid)
        folder.mkdir()
        numbers = [
            parent,
            pid if group is None else group,
            pid if session is None else session,
            *[0] * 15,
            ticks,
        ]
        (folder / "stat").write_text(f"{pid} (a (b) c) {state} {' '.join(map(str, numbers))} 0 0\n")
        (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in argv) + b"\0")
        (folder / "maps").write_text(maps)
        return pid

    return to_tree


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def child() -> Iterator[Callable[[str], tuple[subprocess.Popen[str], str]]]:
    """Starts a Python program that prints one line and then waits; returns it with the line."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str) -> tuple[subprocess.Popen[str], str]:
        running = subprocess.Popen(
            [sys.executable, "-c", f"{program}\nimport sys; sys.stdout.flush(); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(running)
        assert running.stdout is not None
        return running, running.stdout.readline().strip()

    yield start
    for running in started:
        running.kill()
        running.communicate()
