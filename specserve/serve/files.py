"""What a server leaves on this machine: a process id, state, shared memory, sockets."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from specserve.files import open_descriptor

Process = tuple[int, int]
"""A process id, and when that process started, in clock ticks since the boot."""
SOCKETS, SOCKETS_VARIABLE = "specserve-", "VLLM_RPC_BASE_PATH"
"""How the folder of a server's sockets begins, in the temporary folder; what names it to vLLM."""
_SHM = Path("/dev/shm")  # noqa: S108  # psm_*, sem.mp-*, __KMP_* of vLLM, torch and OpenMP
_OPENMP = re.compile(r"__KMP_REGISTERED_LIB_(?P<pid>\d+)_\d+")
"""What OpenMP maps for a moment while it loads."""
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (?P<inode>\d+) +/dev/shm/", re.MULTILINE)


def identity(pid: int) -> Process:
    """A process as a record names it; its start is 0 if it does not live.

    Source: proc(5), stat. psutil's time of creation moves when the clock is set.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return pid, 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return pid, 0


def traces(pids: Iterable[int]) -> frozenset[Path]:
    """The shared memory of these processes, and the folder of their sockets."""
    pids, inodes, found = set(pids), set[int](), set[Path]()
    for pid in pids:
        with contextlib.suppress(OSError):
            # inodes: a semaphore is mapped under a name that it had only while it was made
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
            inodes |= {int(match["inode"]) for match in _MAPPED.finditer(maps)}
        with contextlib.suppress(OSError, psutil.Error):
            found.add(Path(psutil.Process(pid).environ().get(SOCKETS_VARIABLE, "/")))
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHM):
            openmp = _OPENMP.fullmatch(entry.name)
            if entry.inode() in inodes or (openmp and int(openmp["pid"]) in pids):
                found.add(Path(entry.path))
    return frozenset(filter(_is_our_trace, found))


def remove(paths: Iterable[Path]) -> None:
    """Remove traces that are still there, ours, and used by no living process."""
    left = [path for path in sorted(paths) if _is_our_trace(path)]
    # nobody may ever wait for a zombie, whose id OpenMP's file bears
    alive = [pid for pid in psutil.pids() if identity(pid)[1]]
    in_use = traces(alive) if left else frozenset()
    for path in left:
        with contextlib.suppress(OSError):  # another command may be removing it too
            if path not in in_use:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_our_trace(path: Path) -> bool:
    """Whether nothing of the user's would be removed: the path may stand in a changed file."""
    with contextlib.suppress(OSError, ValueError):
        status, folders = path.lstat(), (tempfile.gettempdir(), "/tmp")  # noqa: S108
        is_shm = path.parent == _SHM and stat.S_ISREG(status.st_mode)
        is_folder = str(path.parent) in folders and stat.S_ISDIR(status.st_mode)
        is_ours = is_shm or (is_folder and path.name.startswith(SOCKETS))
        return is_ours and status.st_uid == os.geteuid()
    return False


def append_own(path: Path) -> int:
    """A descriptor that appends to a plain file, made for its owner alone if it is missing.

    Raises OSError. A link is not followed: it may lead to a file that must not be written.
    """
    return open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
