"""What a server leaves on this machine: a process id, state, a scratch folder, shared memory."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from specserve.files import open_descriptor


def _stat(pid: int) -> tuple[int, bool] | None:
    """When a process started, in clock ticks since the boot, and whether it is no zombie; None if there is none.

    Source: proc(5), stat. psutil's time of creation moves when the clock is set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        fields = text[text.rindex(b")") + 2 :].split()
        return int(fields[19]), fields[0] not in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return None


def ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None if there is none."""
    found = _stat(pid)
    return found[0] if found else None


def is_alive(pid: int, *, since: int) -> bool:
    """Whether this very process still runs: the start time is the same, and it is not a zombie."""
    return _stat(pid) == (since, True)


_SHM = Path("/dev/shm")  # noqa: S108  # psm_*, sem.mp-*, __KMP_* of vLLM, torch and OpenMP
_OPENMP = re.compile(r"__KMP_REGISTERED_LIB_(?P<pid>\d+)_\d+")
"""What OpenMP maps for a moment while it loads."""
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (?P<inode>\d+) +/dev/shm/", re.MULTILINE)


def traces(pids: Iterable[int]) -> frozenset[Path]:
    """The shared memory of these processes. Their sockets lie in the scratch folder."""
    pids = set(pids)
    inodes = set().union(*map(_mapped, pids))
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHM):
            openmp = _OPENMP.fullmatch(entry.name)
            if entry.inode() in inodes or (openmp and int(openmp["pid"]) in pids):
                found.add(Path(entry.path))
    return frozenset(found)


def remove(paths: Iterable[Path]) -> tuple[str, ...]:
    """Unlink shared memory that is still there, ours, and used by no living process. Returns what was removed."""
    left = [path for path in sorted(paths) if _is_our_trace(path)]
    living = [pid for pid in psutil.pids() if (_stat(pid) or (0, False))[1]] if left else []
    in_use = traces(living)
    removed = []
    for path in left:
        with contextlib.suppress(OSError):  # another command may be removing it too
            if path not in in_use:
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


def _is_our_trace(path: Path) -> bool:
    """Whether nothing of the user's would be removed: the path may stand in a file that somebody changed."""
    if path.parent != _SHM:
        return False
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)
    return False


_MADE = re.compile(r"specserve-((?P<pid>\d{1,10})-(?P<ticks>\d{1,20})-)?[a-z0-9_]{8}")
_LONGEST = 70
"""Of the folder's path: vLLM puts sockets with names of 36 characters into it, and a socket's path has 107."""


def make_scratch(env: Mapping[str, str], *, outlives_us: bool = False) -> Path | None:
    """A new folder in the temporary one, in /tmp if that one's path is too long; None if neither can be written.

    Folders whose command was killed are removed on the way; those that outlive theirs have another to see to them.
    """
    owner = "" if outlives_us else f"{os.getpid()}-{ticks(os.getpid())}-"
    for base in (env.get("TMPDIR") or tempfile.gettempdir(), "/tmp"):  # noqa: S108  # a fresh private folder
        _sweep(Path(base))
        with contextlib.suppress(OSError):
            made = Path(tempfile.mkdtemp(prefix=f"specserve-{owner}", dir=base))
            if len(str(made)) <= _LONGEST:
                return made
            made.rmdir()
    return None


def _sweep(base: Path) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            owned = _MADE.fullmatch(entry.name)
            if owned and owned["pid"] and not is_alive(int(owned["pid"]), since=int(owned["ticks"])):
                remove_scratch(Path(entry.path))


def within(env: Mapping[str, str], scratch: Path | None) -> dict[str, str]:
    """The environment of a server that uses the folder. Caches that outlive a server stay where they were."""
    if scratch is None:
        return dict(env)
    cache = Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"torchinductor_{_user()}"
    # at the end: setproctitle names no process if the first variable was changed (vLLM changes this one)
    return {
        **{name: value for name, value in env.items() if name != "VLLM_RPC_BASE_PATH"},
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
    """Remove the folder and all in it, if it is one that `make_scratch` made: the path may stand in a file."""
    if scratch is None or not _MADE.fullmatch(scratch.name):
        return
    with contextlib.suppress(OSError):
        status = scratch.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if is_private and status.st_uid == os.geteuid():
            shutil.rmtree(scratch, ignore_errors=True)


def state_folder() -> Path:
    """`SPECSERVE_STATE_DIR`, or the user's state folder as the platform has it."""
    import platformdirs

    return Path(os.environ.get("SPECSERVE_STATE_DIR") or platformdirs.user_state_dir("specserve"))


def private(folder: Path) -> Path:
    """The folder, made if it is missing, for its owner alone: as is every folder of ours above it.

    Raises OSError, also if one of ours is a link or belongs to somebody else: who may exchange what lies in it
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


def read_own(path: Path, *, most_bytes: int) -> bytes:
    """What stands in a plain file of this user; of a larger one a byte more than `most_bytes`.

    Raises OSError, also for a link and for a file of somebody else: it might name what is then signalled or removed.
    """
    with os.fdopen(open_descriptor(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        return file.read(most_bytes + 1)


def append_own(path: Path) -> int:
    """A descriptor that appends to a plain file, made for its owner alone if it is missing. Raises OSError.

    A link is not followed: it may lead to a file that must not be written.
    """
    # as serve/detached/watcher.py opens it, which imports nothing of ours
    return open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
