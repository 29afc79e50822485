"""Where specserve keeps what must outlive it. Does not know what that is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


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
