"""Which process a number means: pids are used again, a pid with its start time is not."""

from __future__ import annotations

from pathlib import Path


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
