"""What a server leaves on this machine: a process id, state, a temporary folder, shared memory and sockets."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import psutil


def ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None where there is none. (proc(5), stat, field 22)"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, *, since: int) -> bool:
    """Whether this very process still runs: the start time is the same, and it is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        fields = stat[stat.rindex(b")") + 2 :].split()
        return int(fields[19]) == since and fields[0] not in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return False


_SHM = Path("/dev/shm")  # noqa: S108  # psm_*, sem.mp-*, __KMP_* of vLLM, torch and OpenMP
_OPENMP = "__KMP_REGISTERED_LIB_"
"""What OpenMP maps for a moment while it loads; the name holds the pid."""
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (?P<inode>\d+) +/dev/shm/", re.MULTILINE)


def traces(processes: Sequence[psutil.Process]) -> frozenset[Path]:
    """Files in /dev/shm that these processes map, and socket files of theirs in the temporary folder."""
    import psutil

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
    import psutil

    left = [path for path in paths if _is_our_trace(path)]
    if not left:
        return ()
    in_use = set().union(*(_mapped(pid) for pid in psutil.pids()))
    removed = []
    for path in sorted(left):
        with contextlib.suppress(OSError):  # another command may be removing it too
            if path.lstat().st_ino in in_use or _answers(path) or _is_of_the_living(path):
                continue
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


def _is_our_trace(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if path.parent != _SHM and not (stat.S_ISSOCK(status.st_mode) and path.is_absolute()):
        return False  # the paths stand in a file: nothing but shared memory and sockets is ever removed
    kind = status.st_mode
    return status.st_uid == os.geteuid() and (stat.S_ISREG(kind) or stat.S_ISSOCK(kind))


def _is_of_the_living(path: Path) -> bool:
    import psutil

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


_MADE = re.compile(r"specserve-(\d{1,10}-\d{1,20}-)?[a-z0-9_]{8}")
_LONGEST = 70
"""Of the folder's path: vLLM puts sockets with names of 36 characters into it, and a socket's path has 107."""


_OWNED = re.compile(r"specserve-(?P<pid>\d{1,10})-(?P<ticks>\d{1,20})-\w+")


def make_scratch(env: Mapping[str, str], *, outlives_us: bool = False) -> Path | None:
    """A new folder in the temporary one; None where there is no room for it, and vLLM uses the common one.

    Folders whose command was killed are removed on the way; those that outlive theirs have another to see to them.
    """
    base = env.get("TMPDIR") or tempfile.gettempdir()
    _sweep(Path(base))
    owner = f"{os.getpid()}-{ticks(os.getpid())}-"
    with contextlib.suppress(OSError):
        made = Path(tempfile.mkdtemp(prefix="specserve-" if outlives_us else f"specserve-{owner}", dir=base))
        if len(str(made)) <= _LONGEST:
            return made
        made.rmdir()
    return None


def _sweep(base: Path) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            owned = _OWNED.fullmatch(entry.name)
            if owned is None or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            if not is_alive(int(owned["pid"]), since=int(owned["ticks"])):
                remove_scratch(Path(entry.path))


def within(env: Mapping[str, str], scratch: Path | None) -> dict[str, str]:
    """The environment of a server that uses the folder. Caches that outlive a server stay where they were."""
    if scratch is None:
        return dict(env)
    cache = Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"torchinductor_{_user()}"
    # at the end: setproctitle names no process where the first variable was changed (vLLM changes this one)
    return {
        **env,
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": env.get("TORCHINDUCTOR_CACHE_DIR", str(cache)),
    }


def _user() -> str:
    """As torch writes it into a path (torch/_inductor/runtime/cache_dir_utils.py, 2.13)."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):
        return str(os.getuid())


def remove_scratch(scratch: Path | None) -> None:
    """The folder and all in it; safe where it is gone."""
    if scratch is not None and _MADE.fullmatch(scratch.name) and _is_our_scratch(scratch):
        shutil.rmtree(scratch, ignore_errors=True)


def _is_our_scratch(scratch: Path) -> bool:
    """Whether it is as `mkdtemp` makes them: the path stands in a file, and a folder of the user's is no scratch."""
    with contextlib.suppress(OSError):
        status = scratch.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        return private and status.st_uid == os.geteuid()
    return False


@contextlib.contextmanager
def scratch_env(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a server whose temporary folder ends with this block."""
    scratch = make_scratch(env)
    try:
        yield within(env, scratch)
    finally:
        remove_scratch(scratch)


def state_folder() -> Path:
    """`SPECSERVE_STATE_DIR`, or the user's state folder as the platform has it."""
    import platformdirs

    return Path(os.environ.get("SPECSERVE_STATE_DIR") or platformdirs.user_state_dir("specserve"))


def private(folder: Path) -> Path:
    """The folder, made where it is missing, for its owner alone: as is every folder of ours above it.

    Raises OSError, also where one of ours is a link or belongs to somebody else: who may exchange what lies in it
    chooses which processes are signalled.
    """
    base = state_folder()
    if folder != base and folder.is_relative_to(base):
        private(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)
        _keep_private(folder)
    elif not folder.is_dir():
        for above in reversed(folder.parents):
            above.mkdir(exist_ok=True, mode=0o700)  # `parents=True` would let the umask choose
        folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _keep_private(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link, not a folder", str(folder))
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "the folder belongs to another user", str(folder))
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def open_regular(path: Path) -> BinaryIO:
    """A plain file to read. Raises OSError, also for a pipe or a device, which might never answer."""
    return os.fdopen(_regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path), "rb")


def read_own(path: Path, *, most_bytes: int) -> bytes:
    """What stands in a plain file of this user; of a larger one a byte more than `most_bytes`.

    Raises OSError, also for a link and for a file of somebody else: it might name what is then signalled or removed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(_regular(descriptor, path), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        return file.read(most_bytes + 1)


def append_own(path: Path) -> int:
    """A descriptor that appends to a plain file, made for its owner alone where it is missing. Raises OSError.

    A link is not followed: it may lead to a file that must not be written.
    """
    # as serve/detached/watcher.py opens it, which imports nothing of ours
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return _regular(os.open(path, flags, 0o600), path)


def write_anew(path: Path, data: bytes) -> None:
    """Make a file for its owner alone, in the place of whatever has the name, and see it on disk. Raises OSError."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _regular(descriptor: int, path: Path) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no plain file", str(path))
