"""To which launch a process belongs, and to which boot a pid. Signals nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from specserve.serve.statefolder import state_folder

MARK = "SPECSERVE_RUN"
"""The variable by which a process tells the launch that it came out of, as `PLACE:NAME:RUN`."""


def boot_id() -> str:
    """A name of this boot of this host; empty where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def place() -> str:
    """A short name of the state folder: servers of another one are not ours."""
    return hashlib.sha256(os.fsencode(os.path.realpath(state_folder()))).hexdigest()[:8]


def mark_of(pid: int) -> str | None:
    """What a process's environment says of its launch; None where it says nothing, or not to us.

    vLLM's engine processes write their title over their environment, so silence proves nothing.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None  # root may read it, and must not believe it
            variables = file.read().split(b"\0")
    except OSError:
        return None
    start = f"{MARK}=".encode()
    found = next((item for item in variables if item.startswith(start)), None)
    return found.removeprefix(start).decode(errors="replace") if found else None
