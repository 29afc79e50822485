"""Where a server's log goes when nobody says, and whether there is room for it. Does not write it."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from specserve.serve.statefolder import state_folder

_LEAST_FREE_BYTES = 4096


def is_disk_full(log_path: Path) -> bool:
    """Whether nothing more can be written to a log."""
    try:
        free = os.statvfs(log_path.parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _LEAST_FREE_BYTES


def default_log(name: str) -> Path:
    """A new path: logs/NAME-20260131-235959.log in the user's state folder or `SPECSERVE_STATE_DIR`."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        path = state_folder() / "logs" / f"{stem}{f'-{number}' if number > 1 else ''}.log"
        if not (path.exists() or path.is_symlink()):
            break
    return path
