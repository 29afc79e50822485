"""Files of the state opened so that nobody else's are touched, and nothing is waited for. Knows no content."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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
