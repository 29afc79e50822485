"""The memory of this host: its capacity, which no running process changes, and what is free now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 62
"""Control groups of version 1 have no word for "no limit", only a number this large."""
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage, in version 2 and version 1 of control groups."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of memory that a server on this host can use."""

    capacity_bytes: int
    """MemTotal, or the limit of the control group if that is less."""
    free_bytes: int
    """What is available now, never more than the capacity."""
    nodes: int = 1
    """NUMA nodes that the memory is spread over."""


def host_memory(*, root: Path = Path("/")) -> HostMemory:
    """The memory of this host, as the kernel and the control groups of this process report it.

    `root`: where `sys` and `proc/self/cgroup` are. Source: vllm/utils/cpu_resource_utils.py 0.32, which reads the
    same limits. It takes capacity from a NUMA node, whose MemTotal some virtual machines change while they run.
    """
    import psutil

    memory = psutil.virtual_memory()
    capacity, free = int(memory.total), int(memory.available)
    for limit, used in _limits(root):
        capacity = min(capacity, limit)
        free = min(free, limit - used)
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    return HostMemory(capacity, max(0, min(free, capacity)), max(1, nodes))


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage of each control group that bounds this process, in bytes."""
    for folder in _groups(root):
        for limit_file, usage_file in _FILES:
            limit = _number(folder / limit_file)
            if limit is not None and limit < _UNLIMITED:
                yield limit, _number(folder / usage_file) or 0


def _groups(root: Path) -> Iterator[Path]:
    """The memory control group of this process and its parents; in a container the mount itself is the group."""
    mount = root / "sys/fs/cgroup"
    own = {"": "", "memory": ""}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for name in controllers.split(","):
                if name in own:
                    own[name] = path.strip("/")
    for name, path in own.items():
        top = mount / name if name else mount
        folder = top / path
        yield top
        if ".." in Path(path).parts:
            continue
        while folder != top:
            yield folder
            folder = folder.parent


def _number(file: Path) -> int | None:
    with suppress(OSError, ValueError):  # absent, or the word `max`
        return int(file.read_text(encoding="ascii"))
    return None
