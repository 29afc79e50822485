"""Whether the kernel killed something for memory. Does not know what it killed."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))


def kills() -> int:
    """How often the out-of-memory killer has struck, here and in this container; 0 where it is not told."""
    total = 0
    for path in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total
