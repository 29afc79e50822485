"""Where a server's log goes when nobody says. Does not write it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from specserve.serve.statefolder import state_folder


def default_log(name: str) -> Path:
    """A new path: logs/NAME-20260131-235959.log in the user's state folder or `SPECSERVE_STATE_DIR`."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        path = state_folder() / "logs" / f"{stem}{f'-{number}' if number > 1 else ''}.log"
        if not (path.exists() or path.is_symlink()):
            break
    return path
