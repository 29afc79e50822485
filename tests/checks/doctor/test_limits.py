"""Lines about what the system grants: shared memory, open files, memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specserve.checks.doctor.limits import memory_line, open_files_line, shared_memory_lines
from specserve.hardware.accelerators import Accelerator, Machine

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("total", "free", "is_cpu", "gpus", "state"),
    [
        (64 * MIB, 64 * MIB, True, 0, "bad"),
        (64 * MIB, 64 * MIB, False, 2, "bad"),
        (64 * MIB, 64 * MIB, False, 1, "note"),
        (64 * MIB, 64 * MIB, False, 0, "note"),
        (512 * MIB, 512 * MIB, True, 0, "ok"),
        (512 * MIB, 512 * MIB, False, 2, "note"),
        (8 * GIB, 239 * MIB, True, 0, "bad"),
        (8 * GIB, 240 * MIB, True, 0, "ok"),
        (8 * GIB, 8 * GIB, False, 8, "ok"),
    ],
)
def test_several_processes_need_room_for_their_largest_queue(
    total: int, free: int, is_cpu: bool, gpus: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))(total, total - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    (line,) = shared_memory_lines(is_cpu=is_cpu, gpus=gpus)
    assert (line.name, line.state) == ("/dev/shm", state)
    assert (line.fix is None) == (state == "ok")


def test_a_full_one_is_to_be_cleared_and_a_small_one_to_be_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    fixes = []
    for total in (64 * MIB, 8 * GIB):
        usage = type(shutil.disk_usage("/"))(total, total, 0)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, usage=usage: usage)
        fixes += [line.fix for line in shared_memory_lines(is_cpu=True, gpus=0)]
    assert ["--shm-size" in str(fix) for fix in fixes] == [True, False]


def test_without_shared_memory_nothing_starts(tmp_path: Path) -> None:
    (line,) = shared_memory_lines(tmp_path / "none", is_cpu=False, gpus=1)
    assert line.state == "bad" and "No such file" in line.text


@pytest.mark.parametrize(
    ("soft", "hard", "state", "said"),
    [
        (1024, 65535, "ok", "1024, and vLLM raises it to 65535"),
        (1024, -1, "ok", "1024, and vLLM raises it to 65535"),
        (65535, 65535, "ok", "65535"),
        (1048576, 1048576, "ok", "1048576"),
        (-1, -1, "ok", "no limit"),
        (20000, 20000, "ok", "20000"),
        (4096, 4096, "ok", "4096"),
        (1024, 4096, "note", "1024, at most 4096"),
        (256, 256, "note", "256, at most 256"),
    ],
)
def test_few_open_files_are_a_note_where_vllm_cannot_raise_them(
    soft: int, hard: int, state: str, said: str
) -> None:
    line = open_files_line(soft=soft, hard=hard)
    assert line.state == state and line.text.startswith(said)


def test_a_soft_limit_that_is_too_low_is_raised_by_the_shell_a_hard_one_by_who_sets_it() -> None:
    assert open_files_line(soft=1024, hard=8192).fix == "`ulimit -n 8192`"
    assert "LimitNOFILE" in str(open_files_line(soft=1024, hard=1024).fix)


@pytest.mark.parametrize(("free", "state"), [(8 * GIB, "ok"), (GIB, "note")])
def test_little_memory_is_a_note(free: int, state: str) -> None:
    machine = Machine(Accelerator("cpu", 16 * GIB), 1, free_bytes=(free,))
    line = memory_line(machine)
    assert (line.state, line.text) == (state, f"{free / GIB:.1f} GiB of 16.0 GiB free")
