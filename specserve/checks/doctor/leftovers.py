"""Files that killed servers left: shared memory and sockets that no living process holds. Removes none."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specserve.checks.doctor.limits import SHM
from specserve.checks.doctor.line import Line
from specserve.checks.doctor.processes import PROC
from specserve.checks.doctor.rendezvous import find_rendezvous
from specserve.checks.figures import gib

_SHARED = re.compile(
    r"psm_[0-9a-f]{8}"  # Python's multiprocessing.shared_memory: vLLM's message queues
    r"|sem\.mp-[a-z0-9_]{8}"  # Python's multiprocessing semaphores
    r"|__KMP_REGISTERED_LIB_(?P<pid>\d+)_\d+"  # Intel OpenMP, kmp_runtime.cpp: its process stands in the name
    r"|nccl-[A-Za-z0-9]{6}"  # NCCL, between the ranks of a node
    r"|vllm_dist_[0-9a-f]{32}\S*"  # vLLM's CPU workers, vllm/v1/worker/cpu_worker.py
    r"|vllm_(offload|ec)_\S+\.mmap"  # shared_offload_region.py and ec_shared_region.py of vLLM
)
_SOCKET = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""vLLM's sockets: a random UUID. (vllm/utils/network_utils.py, get_open_zmq_ipc_path)"""
_MAPPED = re.compile(r"^\S+ \S+ \S+ (?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) (?P<inode>\d+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files of this user that nobody holds any more, sorted."""

    shared: tuple[Path, ...] = ()
    sockets: tuple[Path, ...] = ()
    rendezvous: tuple[Path, ...] = ()
    """Files by which workers found each other."""
    shared_bytes: int = 0
    """Memory that the first take; they are larger by name."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return (*self.shared, *self.sockets, *self.rendezvous)


def find_leftovers(
    *, shm: Path = SHM, temporary: Path | None = None, proc: Path = PROC, user: int | None = None
) -> Leftovers:
    """What lies in the folder of shared memory, and in that for temporary files.

    A process in another container that shares these folders cannot be seen from here.
    """
    user = os.geteuid() if user is None else user
    folder = temporary or Path(os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir())
    # the files first: what is made meanwhile is in nobody's way
    memory = [(path, status) for path, status in _named(shm, _SHARED, user) if stat.S_ISREG(status.st_mode)]
    ends = [path for path, status in _named(folder, _SOCKET, user) if stat.S_ISSOCK(status.st_mode)]
    held = _mapped(proc) if memory else frozenset()
    bound = _bound(proc) if ends else frozenset()
    left = [
        (path, status)
        for path, status in memory
        if (status.st_dev, status.st_ino) not in held and not _is_of_living(path.name, proc)
    ]
    return Leftovers(
        tuple(sorted(path for path, _ in left)),
        tuple(sorted(path for path in ends if str(path) not in bound and _is_deserted(path))),
        find_rendezvous(proc, user=user, folder=temporary),
        sum(status.st_blocks * 512 for _, status in left),
    )


def _named(folder: Path, name: re.Pattern[str], user: int) -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == user:
                        yield Path(entry.path), status


def _mapped(proc: Path) -> frozenset[tuple[int, int]]:
    """Device and inode of every file that some process maps: a semaphore is mapped under another name."""
    found: set[tuple[int, int]] = set()
    for entry in _pids(proc):
        with suppress(OSError):
            found |= set(mapped((entry / "maps").read_text(encoding="utf-8", errors="replace")))
    return frozenset(found)


def mapped(maps: str) -> Iterator[tuple[int, int]]:
    """Device and inode of the files in a text of /proc/PID/maps. (proc_pid_maps(5))"""
    for match in _MAPPED.finditer(maps):
        if match["inode"] != "0":
            yield os.makedev(int(match["major"], 16), int(match["minor"], 16)), int(match["inode"])


def _pids(proc: Path) -> Iterable[Path]:
    return (entry for entry in proc.iterdir() if entry.name.isdecimal())


def _is_of_living(name: str, proc: Path) -> bool:
    """OpenMP maps its file for a moment only, and keeps it while its process runs."""
    match = _SHARED.fullmatch(name)
    return match is not None and match["pid"] is not None and (proc / match["pid"]).exists()


def _bound(proc: Path) -> frozenset[str]:
    """The paths of sockets in this network namespace."""
    with suppress(OSError):
        lines = (proc / "net" / "unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return frozenset(parts[7] for line in lines[1:] if len(parts := line.split(maxsplit=7)) == 8)
    return frozenset()


def _is_deserted(path: Path) -> bool:
    """Whether nobody listens, in another namespace neither; in doubt somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def leftover_lines(found: Leftovers) -> Iterator[Line]:
    """How much it is, and how it goes away."""
    kinds = []
    if found.shared:
        kinds.append(
            f"{_count(found.shared)} of shared memory in {found.shared[0].parent} ({gib(found.shared_bytes)})"
        )
    if found.sockets:
        kinds.append(f"{_count(found.sockets, 'socket')} in {found.sockets[0].parent}")
    if found.rendezvous:
        kinds.append(f"{_count(found.rendezvous, 'vllm_dist file')} in {found.rendezvous[0].parent}")
    if kinds:
        fix = "`specserve doctor --leftovers | xargs -d '\\n' rm`, unless containers share these folders"
        yield Line("leftovers", "note", f"no process here holds {', '.join(kinds)}", fix)


def _count(items: tuple[Path, ...], word: str = "file") -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"
