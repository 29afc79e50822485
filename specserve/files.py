"""Files: only regular ones are read, and what is written is there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from specserve.errors import FactError, system_reason

_NO_FILE = "it is not a regular file"


def open_descriptor(path: Path | str, flags: int, *, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises OSError, also for a pipe or a device: it may hang."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, "it is not a valid name of a file", str(path)) from error
    found = os.fstat(descriptor).st_mode
    if stat.S_ISREG(found):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(found):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, _NO_FILE, str(path))


def open_regular(path: Path | str) -> BinaryIO:
    """A regular file to read. Raises OSError."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def read_named(name: str, limit_bytes: int) -> bytes:
    """The beginning of a file that the user names: a regular one, or a pipe of the shell (`<(…)`).

    Raises OSError, and ValueError for a name that no file can have.
    """
    is_of_shell = name.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    with Path(name).open("rb") if is_of_shell else open_regular(name) as stream:
        return stream.read(limit_bytes)


def read_start(path: Path, limit_bytes: int) -> bytes:
    """The beginning of a regular file; nothing of a link or a pipe, or if it cannot be read."""
    try:
        if stat.S_ISREG(path.lstat().st_mode):  # to open a pipe would wake who writes to it
            with os.fdopen(open_descriptor(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return file.read(limit_bytes)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        pass
    return b""


def write_whole(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write a file that others see whole or not at all. Raises OSError, and changes nothing then.

    A link is replaced, and what it leads to stays. `mode`, less the umask: default that of the file
    in its place, or what any program gives a new file.
    """
    data = content.encode() if isinstance(content, str) else content
    kept = None
    if os.path.lexists(path):
        found = path.lstat().st_mode
        is_link = stat.S_ISLNK(found) and (path.is_file() or not path.exists())
        if not stat.S_ISREG(found) and not is_link:
            raise OSError(errno.EINVAL, _NO_FILE, str(path))
        kept = stat.S_IMODE(found) & 0o777 if mode is None and stat.S_ISREG(found) else None
    new = path.parent / f".new-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = open_descriptor(new, flags, mode=0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if kept is not None:
                os.fchmod(descriptor, kept)
            os.fsync(descriptor)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_named(
    path: Path, content: str | bytes, *, mode: int | None = None, hint: str = ""
) -> None:
    """Write a file that the user named, or its folder. Raises FactError with its name."""
    try:
        write_whole(path, content, mode=mode)
    except (OSError, ValueError) as error:
        raise FactError(f"cannot write `{path}`: {system_reason(error)}", hint=hint) from error


def state_folder() -> Path:
    """`SPECSERVE_STATE_DIR`, or the user's state folder as the platform has it."""
    import platformdirs

    return Path(os.environ.get("SPECSERVE_STATE_DIR") or platformdirs.user_state_dir("specserve"))


def private(folder: Path) -> Path:
    """The folder, made if it is missing, for its owner alone: as is every folder of ours above it.

    Raises OSError, also if one of ours is a link or belongs to somebody else: who may exchange what
    lies in it chooses which processes are signalled.
    """
    base = state_folder()
    for each in (*reversed(folder.parents), folder):
        each.mkdir(exist_ok=True, mode=0o700)  # `parents=True` would let the umask choose
        if each != base and each.is_relative_to(base):
            status = each.lstat()
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is a link, not a folder", str(each))
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the folder belongs to another user", str(each))
            if status.st_mode & 0o077:
                each.chmod(0o700)
    return folder


def read_own(path: Path, *, most_bytes: int) -> bytes:
    """What stands in a plain file of this user; of a larger one a byte more than `most_bytes`.

    Raises OSError, also for a link and for a file of somebody else: it might name what is then
    signalled or removed.
    """
    with os.fdopen(open_descriptor(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        return file.read(most_bytes + 1)
