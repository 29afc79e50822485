"""The memory of a host: what its kernel and control groups say; running processes change only what is free."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.hardware.accelerators import assume, this_cpu

GIB = 2**30


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 24 GiB, 18 of them available."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=24 * GIB, available=18 * GIB))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, (24 * GIB, 18 * GIB), id="no control group"),
        pytest.param(
            {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5"},
            (24 * GIB, 18 * GIB),
            id="version 2 without a limit",
        ),
        pytest.param(
            {"sys/fs/cgroup/memory.max": f"{8 * GIB}\n", "sys/fs/cgroup/memory.current": f"{3 * GIB}\n"},
            (8 * GIB, 5 * GIB),
            id="version 2 in a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/system.slice/specserve.service\n",
                "sys/fs/cgroup/system.slice/memory.max": f"{12 * GIB}",
                "sys/fs/cgroup/system.slice/memory.current": f"{10 * GIB}",
                "sys/fs/cgroup/system.slice/specserve.service/memory.max": f"{6 * GIB}",
                "sys/fs/cgroup/system.slice/specserve.service/memory.current": "0",
            },
            (6 * GIB, 2 * GIB),
            id="a service: the least limit, and what is free in every group above it",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:pids:/other\n0::/job/7\n",
                "sys/fs/cgroup/job/7/memory.max": f"{4 * GIB}",
                "sys/fs/cgroup/job/7/memory.current": f"{5 * GIB}",
            },
            (4 * GIB, 0),
            id="a job that is full",
        ),
        pytest.param(
            {"sys/fs/cgroup/memory.max": f"{64 * GIB}", "sys/fs/cgroup/memory.current": f"{2 * GIB}"},
            (24 * GIB, 18 * GIB),
            id="a limit above what there is",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "nonsense\n",
                "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 18000000 kB\n",
            },
            (24 * GIB, 18 * GIB),
            id="a node that reports less, as virtual machines do",
        ),
    ],
)
def test_capacity_is_what_the_kernel_or_a_control_group_grants(
    files: dict[str, str], expected: tuple[int, int], tmp_path: Path
) -> None:
    found = this_cpu(root=write(tmp_path, files))
    assert found.free_bytes is not None
    assert (found.accelerator.total_bytes, *found.free_bytes) == expected


def test_no_plan_depends_on_what_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from specserve.plan.host import default_kv_bytes, this_host

    monkeypatch.setattr("specserve.hardware.host.memory_limits", lambda root: [])
    seen = set()
    for free in (20, 9, 1):
        now = SimpleNamespace(total=24 * GIB, available=free * GIB)
        monkeypatch.setattr("psutil.virtual_memory", lambda now=now: now)
        assert this_cpu().free_bytes == (free * GIB,)
        seen.add(
            (this_cpu().accelerator, assume("cpu").accelerator, default_kv_bytes(this_host().capacity_bytes))
        )
    assert len(seen) == 1
