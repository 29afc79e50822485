"""What earlier servers left behind: processes, shared memory, sockets, rendezvous files."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path, PurePath

from specserve.checks.doctor.limits import SHM, Line, examined
from specserve.checks.rules.memory import gib

PROC = Path("/proc")
_TITLE = re.compile(r"VLLM::\w+")
"""What vLLM calls its processes, if setproctitle is installed. (vllm/utils/system_utils.py, set_process_title)"""
_MODULE = re.compile(r"vllm\.(entrypoints|v1)\.")
_CHILD = re.compile(r"\bmultiprocessing\.(spawn|forkserver)\b")
_LOADED = re.compile(r"/vllm/\w+\.abi3\.so\b")
_TORCH = re.compile(r"/libtorch\w*\.so\b")
_OURS = re.compile(r"/specserve/(serve|engine|cli)/.*\.py$")
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
_RENDEZVOUS = re.compile(r"vllm_dist_[0-9a-f]{32}")
"""vllm/utils/network_utils.py 0.32, get_distributed_init_method: a FileStore of torch in the temporary folder."""
_MAPPED = re.compile(r"^\S+ \S+ \S+ (?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) (?P<inode>\d+) ", re.MULTILINE)
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as much as is needed."""

    pid: int
    parent: int
    group: int
    session: int
    argv: tuple[str, ...]
    state: str = "S"

    @property
    def command(self) -> str:
        """Its words up to the first option: a key may follow."""
        return " ".join(takewhile(lambda word: not word.startswith("--") and word != "-c", self.argv))

    def __str__(self) -> str:
        command = self.command
        return f"`{command if len(command) <= _LONGEST else command[:_LONGEST] + '…'}` (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Strays:
    """Processes of vLLM that belong to no server of specserve."""

    orphans: tuple[Process, ...] = ()
    """Engines and workers whose server is gone."""
    others: tuple[Process, ...] = ()
    """Servers that somebody else started, and engines of other programs."""


def find_strays(ours: Collection[int], *, proc: Path = PROC, user: int | None = None) -> Strays:
    """What runs under this user beside our servers. `ours`: pids of those, known from their state."""
    every = {process.pid: process for process in read_processes(proc)}
    user = os.geteuid() if user is None else user
    found = {
        pid: process
        for pid, process in every.items()
        if pid not in ours
        and process.state not in ("Z", "X")
        and _user(proc / str(pid)) == user
        and is_vllm(process, proc=proc)
        and not _is_of_specserve(process, every, ours)
    }
    orphans = [process for process in found.values() if _is_orphan(process, every, found)]
    roots = [item for item in found.values() if item not in orphans and item.parent not in found]
    return Strays(tuple(orphans), tuple(roots))


def read_processes(proc: Path = PROC) -> Iterator[Process]:
    """Every process; one that ends meanwhile is left out."""
    for entry in sorted(_pids(proc), key=lambda entry: entry.name):
        with suppress(OSError, ValueError, IndexError):
            state, parent, group, session = _fields(entry)[:4]
            words = (entry / "cmdline").read_bytes().rstrip(b"\0 ").split(b"\0")
            argv = tuple(word.decode(errors="replace") for word in words)
            yield Process(int(entry.name), int(parent), int(group), int(session), argv, state.decode())


def _pids(proc: Path) -> Iterable[Path]:
    return (entry for entry in proc.iterdir() if entry.name.isdecimal())


def _fields(entry: Path) -> list[bytes]:
    """The fields of /proc/PID/stat that follow the name of the program. (proc_pid_stat(5), from field 3)"""
    text = (entry / "stat").read_bytes()
    return text[text.rindex(b")") + 2 :].split()


def _maps(entry: Path) -> str:
    """What a process maps; empty if this user may not see it, or the process has ended."""
    with suppress(OSError):
        return (entry / "maps").read_text(encoding="utf-8", errors="replace")
    return ""


def _user(folder: Path) -> int | None:
    with suppress(OSError):
        return folder.stat().st_uid
    return None


def is_vllm(process: Process, *, proc: Path = PROC) -> bool:
    """Whether it is a server, an engine or a worker of vLLM; a program that merely imports vLLM is none."""
    if not any(process.argv):  # a thread of the kernel, a zombie
        return False
    if _TITLE.match(process.argv[0]) or _is_server(process):
        return True
    is_child = any(_CHILD.search(word) for word in process.argv)
    return is_child and _LOADED.search(_maps(proc / str(process.pid))) is not None


def _is_server(process: Process) -> bool:
    """`vllm serve …`, `python …/vllm serve …`, `python -m vllm.entrypoints.…`."""
    for word, after in pairwise((*process.argv[:5], "")):
        if word == "-m":
            return _MODULE.match(after) is not None
        if PurePath(word).name == "vllm" and after == "serve":
            return True
    return False


def _is_of_specserve(process: Process, every: dict[int, Process], ours: Collection[int]) -> bool:
    """Whether one of its ancestors, or the first of its session, is a server of ours or specserve itself."""
    if process.session in ours or process.group in ours:
        return True
    seen, parent = {process.pid}, every.get(process.parent)
    while parent is not None and parent.pid not in seen:
        if parent.pid in ours or is_specserve(parent.argv):
            return True
        seen.add(parent.pid)
        parent = every.get(parent.parent)
    return False


def is_specserve(argv: tuple[str, ...]) -> bool:
    """Whether a command line is specserve's own; a folder of that name in a path is not enough."""
    head = argv[:4]
    named = any(PurePath(word).name == "specserve" for word in head[:2])
    module = any(word == "-m" and after.partition(".")[0] == "specserve" for word, after in pairwise(head))
    return named or module or any(_OURS.search(word) for word in head)


def _is_orphan(process: Process, every: dict[int, Process], found: Collection[int]) -> bool:
    """An engine or worker that has lost its server: it was adopted, or belongs to an engine that was.

    Who led a group or session may be gone from a server that runs (a shell that was left), or be outside of this
    container; a parent of the same group or session is no foster parent.
    """
    if _is_server(process):
        return False
    parent = every.get(process.parent)
    if parent is None or (parent.pid == 1 and not _is_server(parent)):
        return True
    if parent.pid in found:
        return _is_orphan(parent, every, found)
    is_kin = parent.session == process.session or parent.group == process.group
    return not is_kin and (process.group not in every or process.session not in every)


def stray_lines(strays: Strays) -> Iterator[Line]:
    """The orphans, which nobody wants, and the others, which somebody may."""
    if strays.orphans:
        names = ", ".join(map(str, strays.orphans[:3])) + (", …" if len(strays.orphans) > 3 else "")
        pids = " ".join(str(process.pid) for process in strays.orphans)
        yield Line("leftovers", "note", f"vLLM without its server: {names}", f"`kill -9 {pids}`")
    for process in strays.others:
        text = f"{process} is a vLLM process that specserve did not start"
        yield Line("leftovers", "note", text, f"`kill {process.pid}` if it is not needed")


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
    # a semaphore is mapped under another name, so places are compared
    held = {place for entry in _pids(proc) for place in mapped(_maps(entry))} if memory else set()
    bound = _bound(proc) if ends else frozenset()
    left = {
        path: status.st_blocks * 512
        for path, status in memory
        if (status.st_dev, status.st_ino) not in held and not _is_of_living(path.name, proc)
    }
    return Leftovers(
        tuple(sorted(left)),
        tuple(sorted(path for path in ends if str(path) not in bound and _is_deserted(path))),
        _find_rendezvous(proc, temporary or Path(tempfile.gettempdir()), user),
        sum(left.values()),
    )


def _named(folder: Path, name: re.Pattern[str], user: int) -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name.fullmatch(entry.name):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == user:
                        yield Path(entry.path), status


def mapped(maps: str) -> Iterator[tuple[int, int]]:
    """Device and inode of the files in a text of /proc/PID/maps. (proc_pid_maps(5))"""
    for match in _MAPPED.finditer(maps):
        if match["inode"] != "0":
            yield os.makedev(int(match["major"], 16), int(match["minor"], 16)), int(match["inode"])


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


def _find_rendezvous(proc: Path, folder: Path, user: int) -> tuple[Path, ...]:
    """Those that are older than every living process with torch in it: none of these can have made them."""
    files = _named(folder, _RENDEZVOUS, user)
    found = {path: status.st_mtime for path, status in files if stat.S_ISREG(status.st_mode)}
    since_s = min(_starts(proc), default=float("inf")) if found else 0
    return tuple(sorted(path for path, changed_s in found.items() if changed_s < since_s))


def _starts(proc: Path) -> Iterable[float]:
    """When each process with torch in it began, in seconds since the epoch."""
    boot = re.search(r"^btime (\d+)$", (proc / "stat").read_text(encoding="ascii"), re.MULTILINE)
    if boot is None:
        raise ValueError("the kernel does not report when the host booted")
    for entry in _pids(proc):
        if _TORCH.search(_maps(entry)):
            with suppress(OSError, ValueError, IndexError):
                yield int(boot[1]) + int(_fields(entry)[19]) / os.sysconf("SC_CLK_TCK")


def leftover_lines(found: Leftovers) -> Iterator[Line]:
    """How much it is, and how it goes away."""
    words = []
    for word, files in (
        ("file", found.shared),
        ("socket", found.sockets),
        ("vllm_dist file", found.rendezvous),
    ):
        if files:
            what = f"{len(files)} {word}{'' if len(files) == 1 else 's'}"
            memory = f" of shared memory in {files[0].parent} ({gib(found.shared_bytes)})"
            words.append(what + (memory if word == "file" else f" in {files[0].parent}"))
    if words:
        fix = "`specserve doctor --leftovers | xargs -d '\\n' rm`, unless containers share these folders"
        yield Line("leftovers", "note", f"no process here holds {', '.join(words)}", fix)


@dataclass(frozen=True, slots=True)
class Remains:
    """What killed servers left behind, as far as it could be found."""

    files: Leftovers
    processes: Strays


def remains(*, ours: Collection[int] | None) -> tuple[Remains, list[Line]]:
    """What killed servers left, and the lines about it. `ours` None: unknown, so no process is named."""
    files, processes = Leftovers(), Strays()

    def read_processes() -> Iterator[Line]:
        nonlocal processes
        processes = find_strays(ours) if ours is not None else Strays()
        yield from stray_lines(processes)

    def read_files() -> Iterator[Line]:
        nonlocal files
        files = find_leftovers()
        yield from leftover_lines(files)

    lines = [*examined("leftovers", read_processes), *examined("leftovers", read_files)]
    return Remains(files, processes), lines or [Line("leftovers", "ok", "nothing left of killed servers")]
