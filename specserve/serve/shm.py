"""Shared memory and sockets that a killed vLLM leaves behind: noted while it lives, removed afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

_SHM = Path("/dev/shm")  # noqa: S108  # psm_*, sem.mp-*, __KMP_* of vLLM, torch and OpenMP
_OPENMP = "__KMP_REGISTERED_LIB_"
"""What OpenMP maps for a moment while it loads; the name holds the pid."""
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (?P<inode>\d+) +/dev/shm/", re.MULTILINE)


def traces(processes: Sequence[psutil.Process]) -> frozenset[Path]:
    """Files in /dev/shm that these processes map, and socket files of theirs in the temporary folder."""
    inodes: set[int] = set()
    found: set[Path] = set()
    for process in processes:
        inodes |= _mapped(process.pid)
        with contextlib.suppress(psutil.Error, OSError, RuntimeError):
            addresses = [str(connection.laddr) for connection in process.net_connections("unix")]
            found |= {Path(address) for address in addresses if _is_temporary(address)}
        found.add(_SHM / f"__KMP_REGISTERED_LIB_{process.pid}_{os.geteuid()}")  # mapped for a moment only
    return frozenset(
        {path for path in found if path.exists()}
        | {path for path, inode in _shared_files() if inode in inodes}
    )


def remove(paths: Iterable[Path]) -> tuple[str, ...]:
    """Unlink what is still there, ours, and used by no living process. Returns what was removed."""
    left = [path for path in paths if _is_ours(path)]
    if not left:
        return ()
    in_use = set().union(*(_mapped(pid) for pid in psutil.pids()))
    removed = []
    for path in sorted(left):
        if path.lstat().st_ino in in_use or _answers(path) or _is_of_the_living(path):
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(str(path))
    return tuple(removed)


def _mapped(pid: int) -> set[int]:
    """Inodes, since a semaphore is mapped under a name that it had only while it was made."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return {int(match["inode"]) for match in _MAPPED.finditer(maps)}


def _shared_files() -> list[tuple[Path, int]]:
    try:
        return [(Path(entry.path), entry.inode()) for entry in os.scandir(_SHM)]
    except OSError:
        return []


def _is_temporary(path: str) -> bool:
    folder = os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir()
    return path.startswith(f"{folder.rstrip('/')}/")


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if path.parent != _SHM and not (stat.S_ISSOCK(status.st_mode) and path.is_absolute()):
        return False  # the paths stand in a file: nothing but shared memory and sockets is ever removed
    kind = status.st_mode
    return status.st_uid == os.geteuid() and (stat.S_ISREG(kind) or stat.S_ISSOCK(kind))


def _is_of_the_living(path: Path) -> bool:
    pid = path.name.removeprefix(_OPENMP).partition("_")[0]
    if not path.name.startswith(_OPENMP) or not pid.isdigit():
        return False
    try:
        return psutil.Process(int(pid)).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _answers(path: Path) -> bool:
    """Whether someone listens on this socket file; a plain file never answers."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(0.2)
            client.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True
