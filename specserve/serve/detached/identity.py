"""Which process a number means: pids are used again, a pid with its start time and its boot are not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from specserve.serve.statefolder import state_folder

MARK = "SPECSERVE_RUN"
"""The variable by which a process tells the launch that it came out of, as `PLACE:NAME:RUN`."""


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
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = f"{MARK}=".encode()
    found = next((item for item in variables if item.startswith(start)), None)
    return found.removeprefix(start).decode(errors="replace") if found else None
