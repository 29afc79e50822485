"""Accelerators: names and what they have, machines told by a text, GPUs as the driver lists them, memory of a host."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.cli.app import _run
from specserve.errors import CONTROL, UsageError
from specserve.hardware import accelerators
from specserve.hardware.accelerators import (
    Accelerator,
    Machine,
    accelerator,
    assume,
    catalogue,
    find,
    gpus,
    known_as,
    this_cpu,
)

GIB = 2**30


def gpu(name: str, *, index: int = 0, free_gib: int = 20) -> Accelerator:
    kind, uuid = accelerator(name), f"GPU-{index}abc"
    return replace(kind, index=index, uuid=uuid, free_bytes=free_gib * GIB)


def test_every_name_says_where_its_figures_were_read_and_is_below_its_nameplate() -> None:
    file = Path(accelerators.__file__).with_name("accelerators.json")
    rows = json.loads(file.read_text(encoding="utf-8"))["accelerators"]
    for item in catalogue():
        nameplate = int(item.name.rpartition("-")[2].removesuffix("GB"))
        assert 0.9 * nameplate * 10**9 < item.total_bytes < 1.08 * nameplate * 10**9, item.name
        assert rows[item.name]["seen"]
        has_rates = item.bandwidth_bytes_per_s is not None and item.flops is not None
        assert has_rates == ("rates" in rows[item.name])


@pytest.mark.parametrize(
    ("text", "nodes", "count", "name"),
    [
        ("4xH100-80GB", 1, 4, "H100-80GB"),
        ("2x8xH200-141GB", 2, 8, "H200-141GB"),
        ("H100-80GB", 1, 1, "H100-80GB"),
        (" 1xrtx-3090-24gb ", 1, 1, "RTX-3090-24GB"),
        ("cpu", 1, 1, "cpu"),
    ],
)
def test_a_machine_is_told_by_nodes_count_and_name(text: str, nodes: int, count: int, name: str) -> None:
    told = assume(text)
    assert (told.nodes, told.count, told.accelerator.name, told.basis) == (nodes, count, name, "assumed")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4xH100", "`specserve doctor --accelerators` lists the names"),
        ("0xH100-80GB", "write it like `4xH100-80GB`, or `2x8xH100-80GB` for two nodes"),
        ("", "write it like `4xH100-80GB`, or `2x8xH100-80GB` for two nodes"),
    ],
)
def test_what_names_no_machine_is_answered_with_the_way_out(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        assume(text)
    assert caught.value.hint == hint


@given(st.text(max_size=80))
def test_any_text_is_a_machine_or_a_usage_error(text: str) -> None:
    try:
        told = assume(text)
    except UsageError as error:
        assert error.hint and not CONTROL.search(error.message)
    else:
        assert told.count >= 1 and told.nodes >= 1


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("H100 80GB HBM3", 79.65, "H100-80GB"),
        ("A100-SXM4-40GB", 40.0, "A100-40GB"),
        ("A100-SXM4-80GB", 80.0, "A100-80GB"),
        ("L40S", 44.99, "L40S-48GB"),
        ("L40", 44.99, "L40-48GB"),
        ("A10G", 22.49, "A10-24GB"),
        ("GeForce RTX 3090", 24.0, "RTX-3090-24GB"),
        ("Tesla T4", 15.0, "T4-16GB"),
    ],
)
def test_a_gpu_found_has_the_usable_memory_of_its_name(name: str, gib: float, expected: str) -> None:
    assert known_as(name, int(gib * GIB)) == accelerator(expected)


@pytest.mark.parametrize(("name", "gib"), [("H100 80GB HBM3 MIG 1g.10gb", 9.8), ("Quadro P4000", 8)])
def test_a_product_or_a_size_that_is_not_in_the_catalogue_has_no_name(name: str, gib: float) -> None:
    assert known_as(name, int(gib * GIB)) is None


def test_found_gpus_are_one_machine_of_the_least_kind_with_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    several = [gpu("H100-80GB", free_gib=10), gpu("A100-40GB", index=1, free_gib=40)]
    monkeypatch.setattr(accelerators, "gpus", lambda: several)
    assert find() == Machine(several[1], 2, basis="found", free_bytes=(10 * GIB, 40 * GIB))
    monkeypatch.setattr(accelerators, "gpus", list)
    assert find() is None


@pytest.mark.parametrize(
    ("devices", "environ", "indices"),
    [
        (None, {}, [0, 1, 2]),
        (None, {"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (None, {"CUDA_VISIBLE_DEVICES": "0,9,1"}, [0]),
        (None, {"CUDA_VISIBLE_DEVICES": "GPU-1abc"}, [1]),
        ([1], {"CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ([], {}, []),
    ],
)
def test_a_launch_sees_the_devices_that_cuda_shows(
    devices: list[int] | None, environ: dict[str, str], indices: list[int]
) -> None:
    three = [gpu("L4-24GB", index=index) for index in range(3)]
    found = accelerators.selected(three, devices=devices, environ=environ)
    assert [item.index for item in found] == indices


def test_the_command_lists_what_is_here_and_every_name_with_what_an_estimate_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: [])
    assert _run(["doctor", "--accelerators"]) == 0
    text = capsys.readouterr().out
    here, _, names = text.partition("Names for")
    assert "Found here: no NVIDIA GPU" in here and all(f"  {item.name} " in names for item in catalogue())
    assert all(len(line) <= 100 for line in text.splitlines())
    assert all(len(line) <= 80 for line in names.splitlines())
    assert re.search(r"H100-80GB +79.18 +9.0 +3,350 +989\n", names)
    assert re.search(r"DGX-Spark-128GB +119.18 +12.1 +- +-\n", names)
    assert _run(["doctor", "--accelerators", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in data["catalogue"]}
    assert (data["version"], len(data["found"])) == (1, len(gpus()))
    assert [*rows] == [item.name for item in catalogue()]
    assert data["cpu"]["accelerator"]["total_bytes"] == this_cpu().accelerator.total_bytes
    assert (rows["H100-80GB"]["bandwidth_bytes_per_s"], rows["H100-80GB"]["flops"]) == (3.35e12, 9.894e14)
    assert rows["DGX-Spark-128GB"]["flops"] is None


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 24 GiB, 18 of them available."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=24 * GIB, available=18 * GIB))


CGROUP = "sys/fs/cgroup"
SERVICE = f"{CGROUP}/system.slice"


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (24, 18)),
        ({f"{CGROUP}/memory.max": "max\n", f"{CGROUP}/memory.current": "5"}, (24, 18)),
        ({f"{CGROUP}/memory.max": f"{8 * GIB}\n", f"{CGROUP}/memory.current": f"{3 * GIB}\n"}, (8, 5)),
        (  # a service: the least limit, and what is free in every group above it
            {
                "proc/self/cgroup": "0::/system.slice/specserve.service\n",
                f"{SERVICE}/memory.max": f"{12 * GIB}",
                f"{SERVICE}/memory.current": f"{10 * GIB}",
                f"{SERVICE}/specserve.service/memory.max": f"{6 * GIB}",
                f"{SERVICE}/specserve.service/memory.current": "0",
            },
            (6, 2),
        ),
        (  # a job that is full
            {
                "proc/self/cgroup": "4:pids:/other\n0::/job/7\n",
                f"{CGROUP}/job/7/memory.max": f"{4 * GIB}",
                f"{CGROUP}/job/7/memory.current": f"{5 * GIB}",
            },
            (4, 0),
        ),
        ({f"{CGROUP}/memory.max": f"{64 * GIB}", f"{CGROUP}/memory.current": f"{2 * GIB}"}, (24, 18)),
    ],
    ids=["no group", "no limit", "container", "service", "full", "limit above"],
)
def test_capacity_is_what_the_kernel_or_a_control_group_grants(
    files: dict[str, str], expected: tuple[int, int], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = this_cpu(root=tmp_path)
    assert found.free_bytes is not None
    assert (found.accelerator.total_bytes, *found.free_bytes) == tuple(GIB * size for size in expected)


def test_no_plan_depends_on_what_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from specserve.plan.launch import default_kv_bytes, this_host

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
